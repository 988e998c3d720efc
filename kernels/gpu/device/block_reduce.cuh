// Reductions by all threads of a block, over the arithmetic of kernels/core/numeric.hpp.
//
// NOTE [Reduction rules]
// Many pairs of dtype and operator are the same arithmetic: SUM of a complex type is SUM of its
// reals, PRODUCT ignores an integer's sign, MAX of bool is its OR. reduction_rule() maps each pair
// to the compiled one. SUM, AVG and PREMUL_SUM are one rule: a factor of each source and a divisor
// are facts of the call (multiplying by 1 and not dividing change no bit).
//
// A kernel is compiled for one rule (ElementRule), or for all rules of some dtypes (SharedRules),
// where dtype and operator are facts of the call too. Rules that are seldom used share kernels:
// what surrounds a reduction is three quarters of a kernel's machine code and of its time to
// compile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/core/numeric.hpp"
#include "kernels/gpu/device/block_memory.cuh"
#include "kernels/gpu/device/convert.cuh"
#include "kernels/gpu/interface/call_params.hpp"
#include "kernels/gpu/interface/kernel_table.hpp"

namespace symm {

// The parameters of a rule in one call.
struct ReduceFacts {
  const double* factors;  // by rank, in shared memory
  bool premultiplies;
  int divisor;  // 0: none
  int world_size;
};

// The elements of a unit; widen and round convert one of them.
template <class Storage, class Accumulate>
struct UnitElements {
  Storage value[kUnitBytes / sizeof(Storage)];

  __device__ static UnitElements of(const Unit& unit) {
    return __builtin_bit_cast(UnitElements, unit);
  }
  __device__ static Unit unit(const UnitElements& elements) {
    return __builtin_bit_cast(Unit, elements);
  }
  __device__ static Accumulate widen(Storage element) {
    if constexpr (kIsNarrow) {
      return Conversion<Storage>::widen(element);
    } else {
      return ElementTraits<Storage, Accumulate>::widen(element);
    }
  }
  __device__ static Storage round(Accumulate element) {
    if constexpr (kIsNarrow) {
      return Conversion<Storage>::round(element);
    } else {
      return ElementTraits<Storage, Accumulate>::round(element);
    }
  }

 private:
  static constexpr bool kIsNarrow = requires(Storage value) { Storage::to_float32(value); };
};

// Sixteen 8-bit floats. Without instructions for them, and for NaN, they take some twenty
// instructions each to convert, of which a kernel has one copy.
template <class Storage>
requires(kGpuSharesReduceKernels && sizeof(Storage) == 1) struct UnitElements<Storage, float> {
  float value[kUnitBytes];

  __device__ static UnitElements of(const Unit& unit) {
    if constexpr (kConvertsPairs<Storage>) {
      bool is_special = false;
#pragma unroll
      for (const std::uint32_t four : unit.words) {
        is_special = is_special || Conversion<Storage>::has_special(four);
      }
      if (!is_special) {
        return widened(unit, [](Pair pair) { return Conversion<Storage>::widen_plain(pair); });
      }
    }
    return widened_any(unit);
  }
  __device__ static Unit unit(const UnitElements& elements) {
    if constexpr (kConvertsPairs<Storage>) {
      bool is_plain = true;
#pragma unroll
      for (std::size_t i = 0; i < kUnitBytes; ++i) {
        is_plain = is_plain & Conversion<Storage>::is_plain(elements.value[i]);
      }
      if (is_plain) {
        Unit unit;
#pragma unroll
        for (std::size_t i = 0; i < kUnitBytes; i += 4) {
          const float* four = &elements.value[i];
          unit.words[i / 4] =
              Conversion<Storage>::round_plain({four[0], four[1]}) |
              static_cast<std::uint32_t>(Conversion<Storage>::round_plain({four[2], four[3]}))
                  << 16;
        }
        return unit;
      }
    }
    return rounded_any(elements);
  }
  __device__ static float widen(float element) { return element; }
  __device__ static float round(float element) { return element; }

 private:
  using Pair = NarrowPair<Storage>;
  struct Narrow {
    Storage value[kUnitBytes];
  };

  template <class Widen>
  __device__ __forceinline__ static UnitElements widened(const Unit& unit, const Widen& widen) {
    const auto narrow = __builtin_bit_cast(Narrow, unit);
    UnitElements elements;
#pragma unroll
    for (std::size_t i = 0; i < kUnitBytes; i += 2) {
      const FloatPair pair = widen(Pair{narrow.value[i], narrow.value[i + 1]});
      elements.value[i] = pair.low;
      elements.value[i + 1] = pair.high;
    }
    return elements;
  }
  __device__ SYMM_OUTLINED static UnitElements widened_any(Unit unit) {
    return widened(unit, [](Pair pair) { return Conversion<Storage>::widen(pair); });
  }
  __device__ SYMM_OUTLINED static Unit rounded_any(UnitElements elements) {
    Narrow narrow;
#pragma unroll
    for (std::size_t i = 0; i < kUnitBytes; i += 2) {
      const Pair pair =
          Conversion<Storage>::round(FloatPair{elements.value[i], elements.value[i + 1]});
      narrow.value[i] = pair.low;
      narrow.value[i + 1] = pair.high;
    }
    return __builtin_bit_cast(Unit, narrow);
  }
};

// One rule: `op` is kSum for SUM, AVG and PREMUL_SUM, else the operator itself.
template <Dtype dtype, ReduceOp op>
struct ElementRule {
  static constexpr bool kScales = op == ReduceOp::kSum;  // AVG and PREMUL_SUM do
  using Facts = ReduceFacts;
  using Storage = typename DtypeTraits<dtype>::Storage;
  using Accumulate = Accumulator<dtype, op == ReduceOp::kSum ? ReduceOp::kAvg : op>;
  using Traits = ElementTraits<Storage, Accumulate>;
  using Real = typename RealOf<Accumulate>::Type;
  static constexpr std::size_t kElementBytes = sizeof(Storage);
  static constexpr int kPerUnit = static_cast<int>(kUnitBytes / kElementBytes);

  // `call`: CollectiveParams or WireParams, which is the group as well.
  template <class Call, class Group>
  __device__ static Facts facts_of(const double* factors, const Call& call, const Group& group) {
    return {factors, call.premultiplies, call.divisor, group.world_size};
  }
  // Calls `body` with the call's rule.
  template <class Body>
  __device__ static void visit(const Facts&, const Body& body) {
    body(ElementRule{});
  }

  __device__ static Accumulate prepare(Accumulate wide, const ReduceFacts& facts, int rank) {
    if constexpr (op == ReduceOp::kSum && std::is_floating_point_v<Accumulate>) {
      if (facts.premultiplies) {
        return Arithmetic<Accumulate>::scale(wide,
                                             static_cast<Real>(load_shared(&facts.factors[rank])));
      }
    }
    return wide;
  }
  __device__ static Accumulate combine(Accumulate a, Accumulate b, const Facts&) {
    return Reduction<op, Accumulate>::combine(a, b);
  }
  __device__ static Accumulate finish(Accumulate value, const ReduceFacts& facts) {
    if constexpr (op == ReduceOp::kSum) {
      if (facts.divisor != 0) {
        return Reduction<ReduceOp::kAvg, Accumulate>::finish(value, facts.divisor);
      }
    }
    return Reduction<op, Accumulate>::finish(value, 0);
  }
};

// A sum of a call that neither premultiplies nor divides, without the code for both.
template <class Rule>
struct PlainSum : Rule {
  template <class Facts>
  __device__ static typename Rule::Accumulate prepare(typename Rule::Accumulate wide, const Facts&,
                                                      int) {
    return wide;
  }
  template <class Facts>
  __device__ static typename Rule::Accumulate finish(typename Rule::Accumulate value,
                                                     const Facts&) {
    return Rule::finish(value, ReduceFacts{});
  }
};

// Whether an average by a power of two is a product with its inverse: of the same bits, as both are
// rounded from the same number.
template <class Rule>
inline constexpr bool kIsScaled =
    std::conjunction_v<std::bool_constant<Rule::kScales>,
                       std::is_floating_point<typename Rule::Accumulate>>;

// A sum of such a call that does not premultiply, times `scale`.
template <class Rule>
struct ScaledSum : PlainSum<Rule> {
  struct Facts : Rule::Facts {
    typename Rule::Accumulate scale;
  };
  __device__ static typename Rule::Accumulate finish(typename Rule::Accumulate value,
                                                     const Facts& facts) {
    return PlainSum<Rule>::finish(value * facts.scale, facts);
  }
};
__device__ inline bool has_exact_inverse(int divisor) { return (divisor & (divisor - 1)) == 0; }
// `divisor`: a power of two, or 0 for none.
template <class Rule>
__device__ typename ScaledSum<Rule>::Facts scaled_facts(const typename Rule::Facts& facts,
                                                        int divisor) {
  using Accumulate = typename Rule::Accumulate;
  return {facts, Accumulate{1} / static_cast<Accumulate>(divisor == 0 ? 1 : divisor)};
}

// For which world sizes a rule has kernels of its own: only the sums of training for each, so that
// the library compiles within two minutes.
enum class OwnKernels {
  kNone,    // those of SharedRules
  kAny,     // one for any size
  kTwo,     // and small calls of two ranks
  kFour,    // and each size of kWireWorlds to 4: eight ranks have no registers for 8-bit floats
  kCommon,  // and each size of kWireWorlds
};
constexpr OwnKernels own_kernels(Dtype dtype, ReduceOp op) {
  if (!kGpuSharesReduceKernels) return OwnKernels::kAny;
  if (op == ReduceOp::kMax && (dtype == Dtype::kBFloat16 || dtype == Dtype::kFloat32)) {
    return OwnKernels::kTwo;
  }
  if (op != ReduceOp::kSum) return OwnKernels::kNone;
  if (dtype == Dtype::kFloat64 || dtype == Dtype::kInt64) return OwnKernels::kTwo;
  if (dtype == Dtype::kFloat8E4M3Fn || dtype == Dtype::kFloat8E5M2) return OwnKernels::kFour;
  return is_training_sum(op, dtype) ? OwnKernels::kCommon : OwnKernels::kNone;
}
constexpr bool has_own_kernels(Dtype dtype, ReduceOp op) {
  return own_kernels(dtype, op) != OwnKernels::kNone;
}

struct SharedFacts : ReduceFacts {
  Dtype dtype;
  ReduceOp op;
};

// The rules of a dtype that have no kernels of their own, in the accumulate type of its sum: order,
// products and bit operations of integers give the same bits in a wider type.
template <Dtype dtype>
struct AnyOpRule : ElementRule<dtype, ReduceOp::kSum> {
  using Facts = SharedFacts;
  using Accumulate = typename ElementRule<dtype, ReduceOp::kSum>::Accumulate;

  // By selection among all results, which is shorter than branches in every element of a unit.
  __device__ static Accumulate combine(Accumulate a, Accumulate b, const Facts& facts) {
    Accumulate result = a;
    [&]<std::size_t... ops>(std::index_sequence<ops...>) {
      (select<static_cast<ReduceOp>(ops)>(result, a, b, facts.op), ...);
    }
    (std::make_index_sequence<kReduceOpCount>{});
    return result;
  }

 private:
  template <ReduceOp op>
  __device__ static void select(Accumulate& result, Accumulate a, Accumulate b, ReduceOp chosen) {
    if constexpr (is_rule(dtype, op) && !has_own_kernels(dtype, op)) {
      const Accumulate combined = Reduction<op, Accumulate>::combine(a, b);
      result = chosen == op ? combined : result;
    }
  }
};

// The rules of these dtypes that have no kernels of their own.
template <Dtype... dtypes>
struct SharedRules {
  using Facts = SharedFacts;

  template <class Call, class Group>
  __device__ static Facts facts_of(const double* factors, const Call& call, const Group& group) {
    return {{factors, call.premultiplies, call.divisor, group.world_size}, call.dtype, call.op};
  }
  template <class Body>
  __device__ static void visit(const Facts& facts, const Body& body) {
    (visit_if<dtypes>(facts, body), ...);
  }

 private:
  template <Dtype dtype, class Body>
  __device__ static void visit_if(const Facts& facts, const Body& body) {
    if (facts.dtype == dtype) body(AnyOpRule<dtype>{});
  }
};

// The running combination of the ranks' units at one offset, added in rank order.
template <class Rule>
class UnitSum {
 public:
  using Facts = typename Rule::Facts;
  using Elements = UnitElements<typename Rule::Storage, typename Rule::Accumulate>;

  __device__ void add(const Unit& unit, const Facts& facts, int rank) {
    const auto elements = Elements::of(unit);
#pragma unroll
    for (int i = 0; i < Rule::kPerUnit; ++i) {
      const auto value = Rule::prepare(Elements::widen(elements.value[i]), facts, rank);
      sum_[i] = rank == 0 ? value : Rule::combine(sum_[i], value, facts);
    }
  }
  // As `OfRule` finishes it, of which Rule is a base.
  template <class OfRule = Rule>
  __device__ Unit finish(const typename OfRule::Facts& facts) const {
    Elements elements;
#pragma unroll
    for (int i = 0; i < Rule::kPerUnit; ++i) {
      elements.value[i] = Elements::round(OfRule::finish(sum_[i], facts));
    }
    return Elements::unit(elements);
  }

 private:
  typename Rule::Accumulate sum_[Rule::kPerUnit];
};

// The reductions of one rule.
template <class Rule>
struct RuleReducer {
  using Facts = typename Rule::Facts;
  using Storage = typename Rule::Storage;
  using Accumulate = typename Rule::Accumulate;
  using Traits = typename Rule::Traits;

  __device__ static void reduce(std::byte* destination, const void* const* sources,
                                std::size_t count, const Facts& facts) {
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
      Accumulate sum = load(load_shared(sources), i, facts, 0);
      for (int r = 1; r < facts.world_size; ++r) {
        sum = Rule::combine(sum, load(load_shared(&sources[r]), i, facts, r), facts);
      }
      store_element(destination, i, Traits::round(Rule::finish(sum, facts)));
    }
  }

 private:
  // Loads of up to this many sources are in flight at once.
  static constexpr int kBatch = 4;

  __device__ static Unit reduce_unit(const void* const* sources, std::size_t u,
                                     const Facts& facts) {
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

  __device__ static Accumulate load(const void* source, std::size_t i, const Facts& facts,
                                    int rank) {
    return Rule::prepare(Traits::widen(load_element<Storage>(source, i)), facts, rank);
  }
};

// destination[i] = the combination of sources[0..world)[i], by the call's rule. By the whole block,
// without a barrier.
template <class Rules>
__device__ __forceinline__ void block_reduce(std::byte* destination, const void* const* sources,
                                             std::size_t count,
                                             const typename Rules::Facts& facts) {
  Rules::visit(facts, [&](auto rule) {
    RuleReducer<decltype(rule)>::reduce(destination, sources, count, facts);
  });
}

}  // namespace symm
