// The elements of a unit while they are computed with.
//
// Every NaN becomes the one that a reduction gives. What rounding to 16 bits takes is mostly its
// selection, and it is seldom there: so it is looked for once in a unit.
#pragma once

#include "kernels/gpu/device/block_reduce.cuh"

namespace symm {

// Of a sum that neither premultiplies nor divides.
__device__ inline ReduceFacts no_facts(int world_size) { return {nullptr, false, 0, world_size}; }

template <class Rule>
struct WideUnit {
  using Real = typename Rule::Accumulate;
  using Storage = typename Rule::Storage;
  using Elements = UnitElements<Storage, Real>;
  static constexpr bool kHasPlain = kRoundsToWords<Storage>;

  Real value[Rule::kPerUnit];

  __device__ static WideUnit of(const Unit& unit) {
    WideUnit wide;
    if constexpr (std::is_same_v<Storage, BFloat16>) {
      // The upper half of a float32: by words, one instruction each.
#pragma unroll
      for (int i = 0; i < Rule::kPerUnit; ++i) {
        const std::uint32_t word = unit.words[i / 2];
        wide.value[i] = __builtin_bit_cast(float, i % 2 == 0 ? word << 16 : word & 0xffff0000u);
      }
    } else {
      const auto elements = Elements::of(unit);
#pragma unroll
      for (int i = 0; i < Rule::kPerUnit; ++i) wide.value[i] = Elements::widen(elements.value[i]);
    }
    return wide;
  }
  __device__ WideUnit plus(const WideUnit& other) const {
    WideUnit sum;
#pragma unroll
    for (int i = 0; i < Rule::kPerUnit; ++i) sum.value[i] = value[i] + other.value[i];
    return sum;
  }

  __device__ Unit rounded() const {
    if constexpr (kHasPlain) return is_plain() ? rounded_plain() : rounded_any(*this);
    return selected(*this);
  }
  // False where an element is NaN; may be where others are infinite.
  __device__ bool is_plain() const {
    Real sums[Rule::kPerUnit];
#pragma unroll
    for (int i = 0; i < Rule::kPerUnit; ++i) sums[i] = value[i];
#pragma unroll
    for (int i = Rule::kPerUnit - 1; i > 0; --i) sums[(i - 1) / 2] += sums[i];
    return sums[0] == sums[0];
  }
  // Where no element is NaN: other NaN than rounded() gives would come of it.
  __device__ Unit rounded_plain() const {
    Unit unit;
#pragma unroll
    for (int i = 0; i < Rule::kPerUnit; i += 2) {
      unit.words[i / 2] = Conversion<Storage>::round_plain({value[i], value[i + 1]});
    }
    return unit;
  }
  // As rounded(), where that seldom happens.
  __device__ SYMM_OUTLINED static Unit rounded_any(WideUnit wide) { return selected(wide); }

 private:
  __device__ __forceinline__ static Unit selected(const WideUnit& wide) {
    Elements elements;
#pragma unroll
    for (int i = 0; i < Rule::kPerUnit; ++i) {
      elements.value[i] = Elements::round(Rule::finish(wide.value[i], no_facts(0)));
    }
    return Elements::unit(elements);
  }
};

}  // namespace symm
