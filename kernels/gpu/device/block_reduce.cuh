// Reductions by all threads of a block, over the arithmetic of kernels/core/numeric.hpp.
//
// NOTE [Reduction rules]
// Many pairs of dtype and operator are the same arithmetic: SUM of a complex type is SUM of its
// reals, PRODUCT ignores an integer's sign, MAX of bool is its OR. reduction_rule() maps each pair
// to the compiled one. SUM, AVG and PREMUL_SUM are one rule: a factor of each source and a divisor
// are facts of the call (multiplying by 1 and not dividing change no bit).
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/core/numeric.hpp"
#include "kernels/gpu/device/block_memory.cuh"

namespace symm {

// The parameters of a rule in one call.
struct ReduceFacts {
  const double* factors;  // by rank, in shared memory
  bool premultiplies;
  int divisor;  // 0: none
  int world_size;
};

// One rule: `op` is kSum for SUM, AVG and PREMUL_SUM, else the operator itself.
template <Dtype dtype, ReduceOp op>
struct ElementRule {
  using Storage = typename DtypeTraits<dtype>::Storage;
  using Accumulate = Accumulator<dtype, op == ReduceOp::kSum ? ReduceOp::kAvg : op>;
  using Traits = ElementTraits<Storage, Accumulate>;
  using Real = typename RealOf<Accumulate>::Type;
  static constexpr int kPerUnit = static_cast<int>(kUnitBytes / sizeof(Storage));

  __device__ static Accumulate prepare(Storage value, const ReduceFacts& facts, int rank) {
    const Accumulate wide = Traits::widen(value);
    if constexpr (op == ReduceOp::kSum && std::is_floating_point_v<Accumulate>) {
      if (facts.premultiplies) {
        return Arithmetic<Accumulate>::scale(wide,
                                             static_cast<Real>(load_shared(&facts.factors[rank])));
      }
    }
    return wide;
  }
  __device__ static Accumulate combine(Accumulate a, Accumulate b) {
    return Reduction<op, Accumulate>::combine(a, b);
  }
  __device__ static Storage finish(Accumulate value, const ReduceFacts& facts) {
    if constexpr (op == ReduceOp::kSum) {
      if (facts.divisor != 0) {
        return Traits::round(Reduction<ReduceOp::kAvg, Accumulate>::finish(value, facts.divisor));
      }
    }
    return Traits::round(Reduction<op, Accumulate>::finish(value, 0));
  }
};

// The running combination of the ranks' units at one offset, added in rank order.
template <class Rule>
class UnitSum {
 public:
  using Storage = typename Rule::Storage;
  struct Elements {
    Storage value[Rule::kPerUnit];
  };

  __device__ void add(const Unit& unit, const ReduceFacts& facts, int rank) {
    const auto elements = __builtin_bit_cast(Elements, unit);
#pragma unroll
    for (int i = 0; i < Rule::kPerUnit; ++i) {
      const auto value = Rule::prepare(elements.value[i], facts, rank);
      sum_[i] = rank == 0 ? value : Rule::combine(sum_[i], value);
    }
  }
  __device__ Unit finish(const ReduceFacts& facts) const {
    Elements elements;
#pragma unroll
    for (int i = 0; i < Rule::kPerUnit; ++i) elements.value[i] = Rule::finish(sum_[i], facts);
    return __builtin_bit_cast(Unit, elements);
  }

 private:
  typename Rule::Accumulate sum_[Rule::kPerUnit];
};

template <class Rule>
struct BlockReducer {
  using Storage = typename Rule::Storage;
  using Accumulate = typename Rule::Accumulate;
  static constexpr std::size_t kElementBytes = sizeof(Storage);
  static constexpr std::size_t kAccumulateBytes = sizeof(Accumulate);

  // destination[i] = the combination of sources[0..world)[i]. No barrier. These three are not
  // inlined: algorithms call them in several places.
  __device__ SYMM_OUTLINED_METHOD static void reduce(std::byte* destination,
                                                     const void* const* sources, std::size_t count,
                                                     ReduceFacts facts) {
    bool aligned = is_aligned(destination, 16);
    for (int r = 0; r < facts.world_size; ++r) {
      aligned = aligned && is_aligned(load_shared(&sources[r]), 16);
    }
    const std::size_t units = aligned ? count / Rule::kPerUnit : 0;
    for (std::size_t u = threadIdx.x; u < units; u += blockDim.x) {
      const Unit combined = reduce_unit(sources, u, facts);
      store_data(reinterpret_cast<Unit*>(destination) + u, combined);
    }
    for (std::size_t i = units * Rule::kPerUnit + threadIdx.x; i < count; i += blockDim.x) {
      Accumulate sum = Rule::prepare(load_element<Storage>(load_shared(sources), i), facts, 0);
      for (int r = 1; r < facts.world_size; ++r) {
        const auto value = load_element<Storage>(load_shared(&sources[r]), i);
        sum = Rule::combine(sum, Rule::prepare(value, facts, r));
      }
      store_element(destination, i, Rule::finish(sum, facts));
    }
  }

  // The ring's steps: out[i] = in[i] combined with this rank's source[i]; `in` null on rank 0.
  __device__ SYMM_OUTLINED static void accumulate(std::byte* out, const std::byte* in,
                                                  const std::byte* source, std::size_t count,
                                                  ReduceFacts facts, int rank) {
    for (std::size_t i = threadIdx.x; i < count; i += blockDim.x) {
      store_element(out, i, partial(in, source, i, facts, rank));
    }
  }
  __device__ SYMM_OUTLINED static void finish(std::byte* destination, const std::byte* in,
                                              const std::byte* source, std::size_t count,
                                              ReduceFacts facts, int rank) {
    for (std::size_t i = threadIdx.x; i < count; i += blockDim.x) {
      store_element(destination, i, Rule::finish(partial(in, source, i, facts, rank), facts));
    }
  }

 private:
  // Loads of up to this many sources are in flight at once.
  static constexpr int kBatch = 4;

  __device__ static Unit reduce_unit(const void* const* sources, std::size_t u,
                                     const ReduceFacts& facts) {
    UnitSum<Rule> sum;
    for (int base = 0; base < facts.world_size; base += kBatch) {
      Unit units[kBatch];
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        if (base + k < facts.world_size) {
          units[k] = load_data(static_cast<const Unit*>(load_shared(&sources[base + k])) + u);
        }
      }
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        if (base + k < facts.world_size) sum.add(units[k], facts, base + k);
      }
    }
    return sum.finish(facts);
  }

  __device__ static Accumulate partial(const std::byte* in, const std::byte* source, std::size_t i,
                                       const ReduceFacts& facts, int rank) {
    const Accumulate own = Rule::prepare(load_element<Storage>(source, i), facts, rank);
    return in == nullptr ? own : Rule::combine(load_element<Accumulate>(in, i), own);
  }
};

// For kernels that only move data.
struct NoReducer {
  static constexpr std::size_t kElementBytes = 0;  // any
  static constexpr std::size_t kAccumulateBytes = 1;
  __device__ static void reduce(std::byte*, const void* const*, std::size_t, const ReduceFacts&) {}
  __device__ static void accumulate(std::byte*, const std::byte*, const std::byte*, std::size_t,
                                    const ReduceFacts&, int) {}
  __device__ static void finish(std::byte*, const std::byte*, const std::byte*, std::size_t,
                                const ReduceFacts&, int) {}
};

}  // namespace symm
