// The reduction kernels as templates, compiled once per instruction set. A translation unit names
// its namespace in SYMM_REDUCE_ISA before it includes this file.
//
// The compiler flags differ between those translation units, so they share no code: all functions
// are in the namespace of their instruction set or are inlined by force, and no function of the
// standard library is called. Compile with -O3 -ffp-contract=off, and for g++ -fno-trapping-math:
// without it a selection between two floating-point results stays a branch and the loop is not
// vectorised. (It changes no value; only exception flags may differ.)
//
// Structure: dtypes whose element widens in a vector loop are combined straight from memory.
// float16 and the 8-bit floats are widened block by block into a float32 buffer that stays in the
// first-level cache, combined by the float32 loops, and rounded from there. Complex numbers are
// pairs of reals except under PRODUCT.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/core/dtype.hpp"
#include "kernels/core/numeric.hpp"
#include "kernels/core/platform.hpp"
#include "kernels/core/reduce_op.hpp"
#include "kernels/cpu/reduce_kernels.hpp"
#include "kernels/cpu/reduce_table.hpp"

#if defined(__F16C__)
#include <immintrin.h>
#endif

#ifndef SYMM_REDUCE_ISA
#define SYMM_REDUCE_ISA baseline
#endif

// Iterations touch different elements: a destination equals a source or does not overlap it.
#if defined(__clang__)
#define SYMM_INDEPENDENT_ITERATIONS _Pragma("clang loop vectorize(assume_safety)")
#else
#define SYMM_INDEPENDENT_ITERATIONS _Pragma("GCC ivdep")
#endif

namespace symm::SYMM_REDUCE_ISA {

// Buffers have any alignment, so elements are copied by memcpy, which the compiler turns into
// unaligned vector accesses. Complex numbers are copied as two reals: only then is the loop over
// them vectorised.
template <class T>
SYMM_FORCE_INLINE T load(const void* base, std::size_t index) {
  if constexpr (kIsComplex<T>) {
    using Real = typename RealOf<T>::Type;
    return T{load<Real>(base, 2 * index), load<Real>(base, 2 * index + 1)};
  } else {
    T value;
    __builtin_memcpy(&value, static_cast<const unsigned char*>(base) + index * sizeof(T),
                     sizeof(T));
    return value;
  }
}

template <class T>
SYMM_FORCE_INLINE void store(void* base, std::size_t index, T value) {
  if constexpr (kIsComplex<T>) {
    store(base, 2 * index, value.re);
    store(base, 2 * index + 1, value.im);
  } else {
    __builtin_memcpy(static_cast<unsigned char*>(base) + index * sizeof(T), &value, sizeof(T));
  }
}

SYMM_FORCE_INLINE const void* advance(const void* base, std::size_t bytes) {
  return static_cast<const unsigned char*>(base) + bytes;
}

SYMM_FORCE_INLINE void* advance(void* base, std::size_t bytes) {
  return static_cast<unsigned char*>(base) + bytes;
}

// The five loops that every kernel is made of. Sources hold elements of `dtype`, `acc` buffers
// its accumulate type; a destination may be one of the inputs.
template <Dtype dtype, ReduceOp op>
struct Loops {
  using Storage = typename DtypeTraits<dtype>::Storage;
  using Value = Accumulator<dtype, op>;
  using Element = ElementTraits<Storage, Value>;
  // The type of an accumulator in memory: bool as its byte, for which vector loops exist.
  using Kept = std::conditional_t<kIsBool<Value>, Storage, Value>;
  using KeptElement = ElementTraits<Kept, Value>;
  using Rule = Reduction<op, Value>;
  using Factor = typename Rule::Factor;

  SYMM_FORCE_INLINE static Value source(const void* data, std::size_t i, Factor factor) {
    return Rule::prepare(Element::widen(load<Storage>(data, i)), factor);
  }

  SYMM_FORCE_INLINE static Value load_acc(const void* acc, std::size_t i) {
    return KeptElement::widen(load<Kept>(acc, i));
  }

  SYMM_FORCE_INLINE static void store_acc(void* acc, std::size_t i, Value value) {
    store<Kept>(acc, i, KeptElement::round(value));
  }

  SYMM_FORCE_INLINE static void finish(void* dst, std::size_t i, Value acc, int divisor) {
    store<Storage>(dst, i, Element::round(Rule::finish(acc, divisor)));
  }

  // acc = a
  static void start(void* acc, const void* a, Factor factor, std::size_t count) {
    SYMM_INDEPENDENT_ITERATIONS
    for (std::size_t i = 0; i < count; ++i) store_acc(acc, i, source(a, i, factor));
  }

  // acc = a op b
  static void start_two(void* acc, const void* a, const void* b, Factor factor_a, Factor factor_b,
                        std::size_t count) {
    SYMM_INDEPENDENT_ITERATIONS
    for (std::size_t i = 0; i < count; ++i) {
      store_acc(acc, i, Rule::combine(source(a, i, factor_a), source(b, i, factor_b)));
    }
  }

  // acc_out = acc_in op a
  static void step(void* acc_out, const void* acc_in, const void* a, Factor factor,
                   std::size_t count) {
    SYMM_INDEPENDENT_ITERATIONS
    for (std::size_t i = 0; i < count; ++i) {
      store_acc(acc_out, i, Rule::combine(load_acc(acc_in, i), source(a, i, factor)));
    }
  }

  // dst = result of (acc_in op a)
  static void last(void* dst, const void* acc_in, const void* a, Factor factor, int divisor,
                   std::size_t count) {
    SYMM_INDEPENDENT_ITERATIONS
    for (std::size_t i = 0; i < count; ++i) {
      finish(dst, i, Rule::combine(load_acc(acc_in, i), source(a, i, factor)), divisor);
    }
  }

  // dst = result of a alone
  static void only(void* dst, const void* a, Factor factor, int divisor, std::size_t count) {
    SYMM_INDEPENDENT_ITERATIONS
    for (std::size_t i = 0; i < count; ++i) finish(dst, i, source(a, i, factor), divisor);
  }

  // dst = result of (a op b)
  static void both(void* dst, const void* a, const void* b, Factor factor_a, Factor factor_b,
                   int divisor, std::size_t count) {
    SYMM_INDEPENDENT_ITERATIONS
    for (std::size_t i = 0; i < count; ++i) {
      finish(dst, i, Rule::combine(source(a, i, factor_a), source(b, i, factor_b)), divisor);
    }
  }
};

#if defined(__AVX512F__)
inline constexpr std::size_t kHalfLanes = 16;

// The zero-masked forms with a full mask: g++ 12 warns of an uninitialised value inside its own
// header for the plain ones. The instructions are the same.
inline constexpr __mmask16 kAllLanes = 0xffff;

SYMM_FORCE_INLINE void widen_lanes(float* out, const void* in) {
  const __m256i half = _mm256_loadu_si256(static_cast<const __m256i*>(in));
  _mm512_storeu_ps(out, _mm512_maskz_cvtph_ps(kAllLanes, half));
}

SYMM_FORCE_INLINE void round_lanes(void* out, const float* in) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  const __m256i half = _mm512_maskz_cvtps_ph(kAllLanes, _mm512_loadu_ps(in), kNearest);
  _mm256_storeu_si256(static_cast<__m256i*>(out), half);
}
#elif defined(__F16C__)
inline constexpr std::size_t kHalfLanes = 8;

SYMM_FORCE_INLINE void widen_lanes(float* out, const void* in) {
  _mm256_storeu_ps(out, _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(in))));
}

SYMM_FORCE_INLINE void round_lanes(void* out, const float* in) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  _mm_storeu_si128(static_cast<__m128i*>(out), _mm256_cvtps_ph(_mm256_loadu_ps(in), kNearest));
}
#else
inline constexpr std::size_t kHalfLanes = 0;

SYMM_FORCE_INLINE void widen_lanes(float*, const void*) {}
SYMM_FORCE_INLINE void round_lanes(void*, const float*) {}
#endif

// Storage to float32, `count` elements; the conversion instructions of the processor serve
// float16 where they exist. They differ from Half's own conversion only in the payload of a NaN
// that is rounded, and finish() has made every NaN the one that both encode alike.
// One copy a format, called once a block by all operators, keeps the code small.
template <class Storage>
struct Stage {
  static constexpr std::size_t kLanes = sizeof(Storage) == 2 ? kHalfLanes : 0;

  [[gnu::noinline]] static void widen(float* out, const void* in, std::size_t count) {
    std::size_t done = 0;
    if constexpr (kLanes > 0) {
      for (; done + kLanes <= count; done += kLanes) {
        widen_lanes(out + done, advance(in, done * sizeof(Storage)));
      }
    }
    SYMM_INDEPENDENT_ITERATIONS
    for (std::size_t i = done; i < count; ++i) out[i] = Storage::to_float32(load<Storage>(in, i));
  }

  [[gnu::noinline]] static void round(void* out, const float* in, std::size_t count) {
    std::size_t done = 0;
    if constexpr (kLanes > 0) {
      for (; done + kLanes <= count; done += kLanes) {
        round_lanes(advance(out, done * sizeof(Storage)), in + done);
      }
    }
    SYMM_INDEPENDENT_ITERATIONS
    for (std::size_t i = done; i < count; ++i) {
      store<Storage>(out, i, Storage::from_float32(in[i]));
    }
  }
};

// Selects the loops of a dtype.
template <Dtype dtype, ReduceOp op>
struct Layout {
  static constexpr bool kByComponent = is_complex(dtype) && op != ReduceOp::kProduct;
  static constexpr bool kStaged = is_floating(dtype) && dtype != Dtype::kFloat32 &&
                                  dtype != Dtype::kFloat64 && dtype != Dtype::kBFloat16;
  static constexpr Dtype kLoopDtype = kStaged || (kByComponent && dtype == Dtype::kComplex64)
                                          ? Dtype::kFloat32
                                      : kByComponent ? Dtype::kFloat64
                                                     : dtype;
  static constexpr std::size_t kComponents = kByComponent ? 2 : 1;
};

// The functions of one ReduceKernels.
template <Dtype dtype, ReduceOp op>
struct Kernels {
  using Path = Layout<dtype, op>;
  using Loop = Loops<Path::kLoopDtype, op>;
  using Value = typename Loop::Value;
  using Factor = typename Loop::Factor;
  using Storage = typename DtypeTraits<dtype>::Storage;

  static constexpr std::size_t kItemBytes = dtype_bytes(dtype) / Path::kComponents;
  // Two blocks of float32 or one of the widest accumulator take a fraction of a 32 KiB cache.
  static constexpr std::size_t kBlockBytes = 4096;
  static constexpr std::size_t kBlock = kBlockBytes / sizeof(Value);

  struct Scratch {
    alignas(64) unsigned char bytes[kBlockBytes];
  };

  // The block of `src` that starts at item `offset`, in the form that the loops read.
  SYMM_FORCE_INLINE static const void* stage(Scratch& scratch, const void* src, std::size_t offset,
                                             std::size_t count) {
    const void* block = advance(src, offset * kItemBytes);
    if constexpr (Path::kStaged) {
      Stage<Storage>::widen(reinterpret_cast<float*>(scratch.bytes), block, count);
      return scratch.bytes;
    } else {
      return block;
    }
  }

  SYMM_FORCE_INLINE static Factor factor_of(const double* factors, int j) {
    if constexpr (op == ReduceOp::kPreMulSum) {
      return static_cast<Factor>(factors[j]);
    } else {
      return Factor{};
    }
  }

  static void reduce_block(void* out, Scratch (&scratch)[2], const void* const* srcs, int n,
                           const double* factors, int divisor, std::size_t offset,
                           std::size_t count) {
    const void* a = stage(scratch[0], srcs[0], offset, count);
    if (n == 1) return Loop::only(out, a, factor_of(factors, 0), divisor, count);
    const void* b = stage(scratch[1], srcs[1], offset, count);
    const Factor factor_a = factor_of(factors, 0);
    const Factor factor_b = factor_of(factors, 1);
    if (n == 2) return Loop::both(out, a, b, factor_a, factor_b, divisor, count);
    void* acc = scratch[0].bytes;
    Loop::start_two(acc, a, b, factor_a, factor_b, count);
    for (int j = 2; j < n - 1; ++j) {
      const void* next = stage(scratch[1], srcs[j], offset, count);
      Loop::step(acc, acc, next, factor_of(factors, j), count);
    }
    const void* next = stage(scratch[1], srcs[n - 1], offset, count);
    Loop::last(out, acc, next, factor_of(factors, n - 1), divisor, count);
  }

  static void reduce(void* dst, const void* const* srcs, int n, const double* factors, int divisor,
                     std::size_t count) {
    Scratch scratch[2];
    const std::size_t items = count * Path::kComponents;
    const std::size_t block = !Path::kStaged && n <= 2 ? items : kBlock;
    for (std::size_t offset = 0; offset < items; offset += block) {
      const std::size_t length = min_size(block, items - offset);
      void* out = advance(dst, offset * kItemBytes);
      if constexpr (Path::kStaged) {
        reduce_block(scratch[0].bytes, scratch, srcs, n, factors, divisor, offset, length);
        Stage<Storage>::round(out, reinterpret_cast<const float*>(scratch[0].bytes), length);
      } else {
        reduce_block(out, scratch, srcs, n, factors, divisor, offset, length);
      }
    }
  }

  static void accumulate(void* acc_out, const void* acc_in, const void* src, double factor,
                         std::size_t count) {
    Scratch scratch;
    const std::size_t items = count * Path::kComponents;
    const std::size_t block = Path::kStaged ? kBlock : items;
    for (std::size_t offset = 0; offset < items; offset += block) {
      const std::size_t length = min_size(block, items - offset);
      const void* a = stage(scratch, src, offset, length);
      void* out = advance(acc_out, offset * sizeof(Value));
      if (acc_in == nullptr) {
        Loop::start(out, a, factor_of(&factor, 0), length);
      } else {
        const void* in = advance(acc_in, offset * sizeof(Value));
        Loop::step(out, in, a, factor_of(&factor, 0), length);
      }
    }
  }

  static void finish(void* dst, const void* acc_in, const void* src, double factor, int divisor,
                     std::size_t count) {
    Scratch scratch;
    const std::size_t items = count * Path::kComponents;
    const std::size_t block = Path::kStaged ? kBlock : items;
    for (std::size_t offset = 0; offset < items; offset += block) {
      const std::size_t length = min_size(block, items - offset);
      const void* a = stage(scratch, src, offset, length);
      const void* in = advance(acc_in, offset * sizeof(Value));
      void* out = advance(dst, offset * kItemBytes);
      void* result = Path::kStaged ? scratch.bytes : out;
      Loop::last(result, in, a, factor_of(&factor, 0), divisor, length);
      if constexpr (Path::kStaged) {
        Stage<Storage>::round(out, reinterpret_cast<const float*>(scratch.bytes), length);
      }
    }
  }
};

template <int cell>
constexpr ReduceKernels table_entry() {
  constexpr auto kDtype = static_cast<Dtype>(cell / kReduceOpCount);
  constexpr auto kOp = static_cast<ReduceOp>(cell % kReduceOpCount);
  if constexpr (op_supports(kOp, kDtype)) {
    using Kernel = Kernels<kDtype, kOp>;
    return {&Kernel::reduce, &Kernel::accumulate, &Kernel::finish,
            sizeof(typename Kernel::Value) * Kernel::Path::kComponents};
  } else {
    return {nullptr, nullptr, nullptr, 0};
  }
}

template <int... cells>
constexpr ReduceTable make_table(std::integer_sequence<int, cells...>) {
  return ReduceTable{{table_entry<cells>()...}};
}

inline constexpr ReduceTable kTable =
    make_table(std::make_integer_sequence<int, kDtypeCount * kReduceOpCount>{});

}  // namespace symm::SYMM_REDUCE_ISA
