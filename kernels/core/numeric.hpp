// Element arithmetic: the storage and accumulate type of every Dtype, and what each ReduceOp does
// to two elements. Host and device; pure; torch-free.
//
// A reduction of x_0 .. x_{n-1} is
//   acc = prepare(widen(x_0), factor_0)
//   acc = combine(acc, prepare(widen(x_j), factor_j))        j = 1 .. n-1, in this order
//   result = round(finish(acc, divisor))
// with prepare, combine and finish from Reduction and widen and round from ElementTraits.
//
// The result is the same bits for every instruction set and device only if no multiplication is
// fused with an addition: translation units that use this header are compiled with
// -ffp-contract=off (nvcc: -fmad=false), without -ffast-math, with exact division and without
// flushing subnormals.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/core/dtype.hpp"
#include "kernels/core/narrow_float.hpp"
#include "kernels/core/platform.hpp"
#include "kernels/core/reduce_op.hpp"

namespace symm {

// torch.bool in memory. Any byte but zero reads as true; true is written as one.
struct Bool {
  std::uint8_t value;
};

template <class T>
struct Complex {
  T re;
  T im;
};

// ---- Types of each Dtype -------------------------------------------------------------------

template <Dtype dtype>
struct DtypeTraits;

// Sums of int8, uint8 and int16 are kept in int32, so that AVG does not wrap before it divides.
#define SYMM_DTYPE_TRAITS(name, storage, accumulate) \
  template <>                                        \
  struct DtypeTraits<Dtype::name> {                  \
    using Storage = storage;                         \
    using Accumulate = accumulate;                   \
  }
SYMM_DTYPE_TRAITS(kFloat16, Half, float);
SYMM_DTYPE_TRAITS(kBFloat16, BFloat16, float);
SYMM_DTYPE_TRAITS(kFloat32, float, float);
SYMM_DTYPE_TRAITS(kFloat64, double, double);
SYMM_DTYPE_TRAITS(kFloat8E4M3Fn, Float8E4M3Fn, float);
SYMM_DTYPE_TRAITS(kFloat8E5M2, Float8E5M2, float);
SYMM_DTYPE_TRAITS(kFloat8E4M3FnUz, Float8E4M3FnUz, float);
SYMM_DTYPE_TRAITS(kFloat8E5M2FnUz, Float8E5M2FnUz, float);
SYMM_DTYPE_TRAITS(kInt8, std::int8_t, std::int32_t);
SYMM_DTYPE_TRAITS(kUInt8, std::uint8_t, std::int32_t);
SYMM_DTYPE_TRAITS(kInt16, std::int16_t, std::int32_t);
SYMM_DTYPE_TRAITS(kInt32, std::int32_t, std::int32_t);
SYMM_DTYPE_TRAITS(kInt64, std::int64_t, std::int64_t);
SYMM_DTYPE_TRAITS(kBool, Bool, bool);
SYMM_DTYPE_TRAITS(kComplex64, Complex<float>, Complex<float>);
SYMM_DTYPE_TRAITS(kComplex128, Complex<double>, Complex<double>);
#undef SYMM_DTYPE_TRAITS

template <class T>
inline constexpr bool kIsComplex = false;
template <class T>
inline constexpr bool kIsComplex<Complex<T>> = true;

template <class T>
inline constexpr bool kIsBool = std::is_same_v<T, bool>;

// The accumulate type of one (dtype, op). Modular arithmetic, order and bit operations of narrow
// integers give the same bits without widening, so only AVG pays for it.
template <Dtype dtype, ReduceOp op>
using Accumulator = std::conditional_t<
    (dtype == Dtype::kInt8 || dtype == Dtype::kUInt8 || dtype == Dtype::kInt16) &&
        op != ReduceOp::kAvg,
    typename DtypeTraits<dtype>::Storage, typename DtypeTraits<dtype>::Accumulate>;

// widen: storage to accumulate type, exact. round: back, to nearest even for narrow floats and
// modulo 2^bits for integers.
template <class Storage, class Accumulate>
struct ElementTraits {
  SYMM_FORCE_INLINE static Accumulate widen(Storage value) {
    if constexpr (requires { Storage::to_float32(value); }) {
      return Storage::to_float32(value);
    } else if constexpr (kIsBool<Accumulate>) {
      return value.value != 0;
    } else {
      return static_cast<Accumulate>(value);
    }
  }

  SYMM_FORCE_INLINE static Storage round(Accumulate value) {
    if constexpr (requires { Storage::from_float32(value); }) {
      return Storage::from_float32(value);
    } else if constexpr (kIsBool<Accumulate>) {
      return Storage{static_cast<std::uint8_t>(value)};
    } else {
      return static_cast<Storage>(value);
    }
  }
};

// ---- Arithmetic ----------------------------------------------------------------------------

template <class T>
struct RealOf {
  using Type = T;
};
template <class T>
struct RealOf<Complex<T>> {
  using Type = T;
};

// Addition and multiplication in T; integers wrap, complex is the plain textbook form (no repair
// of NaN or infinity, which would make the result depend on the library).
template <class T>
struct Arithmetic {
  // Signed overflow is undefined, and int16 * int16 promotes to int, hence the unsigned detour.
  using Wrapping = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;

  SYMM_FORCE_INLINE static T add(T a, T b) {
    if constexpr (kIsComplex<T>) {
      return T{a.re + b.re, a.im + b.im};
    } else if constexpr (std::is_floating_point_v<T>) {
      return a + b;
    } else {
      return static_cast<T>(static_cast<Wrapping>(a) + static_cast<Wrapping>(b));
    }
  }

  SYMM_FORCE_INLINE static T multiply(T a, T b) {
    if constexpr (kIsComplex<T>) {
      using Real = Arithmetic<typename RealOf<T>::Type>;
      return T{a.re * b.re + Real::flip_sign(a.im * b.im), a.re * b.im + a.im * b.re};
    } else if constexpr (std::is_floating_point_v<T>) {
      return a * b;
    } else {
      return static_cast<T>(static_cast<Wrapping>(a) * static_cast<Wrapping>(b));
    }
  }

  // Negation through the bits. Written as a subtraction, the complex product becomes an alternating
  // subtract and add of products, which g++ 12 turns into a fused vfmaddsub for AVX-512 although
  // contraction is off; x + (-y) has the bits of x - y.
  SYMM_FORCE_INLINE static T flip_sign(T a) {
    constexpr Wrapping kSign = Wrapping{1} << (sizeof(T) * 8 - 1);
    return __builtin_bit_cast(T, __builtin_bit_cast(Wrapping, a) ^ kSign);
  }

  SYMM_FORCE_INLINE static T scale(T a, typename RealOf<T>::Type factor) {
    if constexpr (kIsComplex<T>) {
      return T{a.re * factor, a.im * factor};
    } else {
      return multiply(a, factor);
    }
  }

  // Integers truncate toward zero. The double quotient of two int32 is never rounded across an
  // integer, and unlike integer division it exists as a vector instruction.
  SYMM_FORCE_INLINE static T divide(T a, int divisor) {
    if constexpr (kIsComplex<T>) {
      using Real = typename RealOf<T>::Type;
      return T{a.re / static_cast<Real>(divisor), a.im / static_cast<Real>(divisor)};
    } else if constexpr (std::is_floating_point_v<T> || sizeof(T) == 8) {
      return a / static_cast<T>(divisor);
    } else {
      return static_cast<T>(static_cast<double>(a) / static_cast<double>(divisor));
    }
  }

  // The sign and payload of a NaN result depend on the instruction that the compiler chose, so
  // every NaN result becomes the positive quiet NaN without payload.
  SYMM_FORCE_INLINE static T canonical(T a) {
    if constexpr (kIsComplex<T>) {
      using Real = Arithmetic<typename RealOf<T>::Type>;
      return T{Real::canonical(a.re), Real::canonical(a.im)};
    } else if constexpr (std::is_floating_point_v<T>) {
      constexpr T kQuietNan = static_cast<T>(__builtin_bit_cast(float, 0x7fc00000u));
      return a != a ? kQuietNan : a;
    } else {
      return a;
    }
  }
};

// ---- Operators -----------------------------------------------------------------------------

// `op` on accumulators of type T; see the top of this file for how the steps compose.
template <ReduceOp op, class T>
struct Reduction {
  using Factor = typename RealOf<T>::Type;

  // One source's element before it is combined: PREMUL_SUM multiplies by that source's factor.
  SYMM_FORCE_INLINE static T prepare(T x, [[maybe_unused]] Factor factor) {
    if constexpr (op == ReduceOp::kPreMulSum) {
      return Arithmetic<T>::scale(x, factor);
    } else {
      return x;
    }
  }

  // MIN and MAX keep the accumulator when the two compare equal, and a NaN on either side wins.
  SYMM_FORCE_INLINE static T combine(T acc, T x) {
    constexpr ReduceOp kRule = kIsBool<T> ? bool_rule(op) : op;
    if constexpr (kRule == ReduceOp::kProduct) {
      return Arithmetic<T>::multiply(acc, x);
    } else if constexpr (kRule == ReduceOp::kMin) {
      return ((x < acc) | (x != x)) ? x : acc;
    } else if constexpr (kRule == ReduceOp::kMax) {
      return ((x > acc) | (x != x)) ? x : acc;
    } else if constexpr (kRule == ReduceOp::kBand) {
      return static_cast<T>(acc & x);
    } else if constexpr (kRule == ReduceOp::kBor) {
      return static_cast<T>(acc | x);
    } else if constexpr (kRule == ReduceOp::kBxor) {
      return static_cast<T>(acc ^ x);
    } else {
      return Arithmetic<T>::add(acc, x);
    }
  }

  // After the last source. `divisor` is read by AVG alone and must be positive there.
  SYMM_FORCE_INLINE static T finish(T acc, [[maybe_unused]] int divisor) {
    if constexpr (op == ReduceOp::kAvg) {
      return Arithmetic<T>::canonical(Arithmetic<T>::divide(acc, divisor));
    } else {
      return Arithmetic<T>::canonical(acc);
    }
  }
};

}  // namespace symm
