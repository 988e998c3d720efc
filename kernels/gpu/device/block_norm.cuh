// The RMS norm of rows by all threads of a block.
#pragma once

#include "kernels/gpu/device/block_memory.cuh"
#include "kernels/gpu/device/block_reduce.cuh"
#include "kernels/gpu/device/block_sum.cuh"
#include "kernels/gpu/interface/norm_params.hpp"

namespace symm {

// Of a sum that neither premultiplies nor divides.
__device__ inline ReduceFacts no_facts(int world_size) { return {nullptr, false, 0, world_size}; }

// Both rounded to the dtype before, and the sum after.
template <class Rule>
__device__ Unit added(const Unit& a, const Unit& b) {
  UnitSum<Rule> sum;
  sum.add(a, no_facts(2), 0);
  sum.add(b, no_facts(2), 1);
  return sum.finish(no_facts(2));
}

// The norm of rows by all threads of a block, of which there are kNormThreads. A thread has the
// same units of each part of a row (NOTE [Parts of a row]), and keeps those of one part.
template <class Rule>
class BlockNorm {
 public:
  using Real = typename Rule::Accumulate;
  using Sum = BlockSum<Real, kNormThreads>;
  using Shared = typename Sum::Shared;

  __device__ BlockNorm(const NormParams& norm, Shared& shared) : norm_(norm), sum_(shared) {}

  // read(offset, bytes): the unit at this offset of the row.
  template <class Read>
  __device__ void load(std::uint32_t part, const Read& read) {
    each_unit(part, [&](int k, std::uint32_t offset, std::size_t bytes) {
      values_[k] = read(offset, bytes);
    });
  }
  __device__ void load_weights(std::uint32_t part) {
    each_unit(part, [&](int k, std::uint32_t offset, std::size_t bytes) {
      weights_[k] = load_unit(norm_.weight + offset, bytes);
    });
  }
  // Adds `residual` to the values of a part, and stores them to `total`; both are of the row.
  __device__ void add(std::uint32_t part, const std::byte* residual, std::byte* total) {
    Unit units[kNormUnits];
    each_unit(part, [&](int k, std::uint32_t offset, std::size_t bytes) {
      units[k] = load_unit(residual + offset, bytes);
    });
    each_unit(part, [&](int k, std::uint32_t offset, std::size_t bytes) {
      values_[k] = added<Rule>(values_[k], units[k]);
      store_unit(total + offset, values_[k], bytes);
    });
  }

  // The sum of the squares of a part, whose values are loaded, in every thread. Has one barrier.
  __device__ Real squares(std::uint32_t part) {
    Real squares = 0;
    each_unit(part, [&](int k, std::uint32_t, std::size_t) {
      const auto elements = Elements::of(values_[k]);
#pragma unroll
      for (int i = 0; i < Rule::kPerUnit; ++i) {
        const Real value = Elements::widen(elements.value[i]);
        squares += value * value;
      }
    });
    return sum_.of(squares);
  }

  // Stores the norm of a part, whose values and weights are loaded. `squares`: of the row.
  __device__ void store(std::byte* result, std::uint32_t part, Real squares) const {
    const Real mean = squares / static_cast<Real>(norm_.columns);
    const Real scale = inverse_root(mean + static_cast<Real>(norm_.eps));
    each_unit(part, [&](int k, std::uint32_t offset, std::size_t bytes) {
      const auto values = Elements::of(values_[k]);
      const auto weights = Elements::of(weights_[k]);
      Elements normed;
#pragma unroll
      for (int i = 0; i < Rule::kPerUnit; ++i) {
        normed.value[i] = Elements::round(Elements::widen(values.value[i]) * scale *
                                          Elements::widen(weights.value[i]));
      }
      store_unit(result + offset, Elements::unit(normed), bytes);
    });
  }

  // A whole row. load(part) loads values, and load_again(part) the same once more, where there are
  // several parts; the weights of part 0 are loaded.
  template <class Load, class LoadAgain>
  __device__ void row(std::byte* result, const Load& load, const LoadAgain& load_again) {
    Real squares_of_row = 0;
    for (std::uint32_t part = 0; part < norm_.row_parts; ++part) {
      load(part);
      squares_of_row += squares(part);
    }
    if (norm_.row_parts == 1) return store(result, 0, squares_of_row);
    for (std::uint32_t part = 0; part < norm_.row_parts; ++part) {
      load_again(part);
      load_weights(part);
      store(result, part, squares_of_row);
    }
  }

 private:
  using Elements = UnitElements<typename Rule::Storage, Real>;

  __device__ static float inverse_root(float value) { return rsqrtf(value); }
  __device__ static double inverse_root(double value) { return rsqrt(value); }

  // Calls body(k, offset in the row, bytes) for this thread's units of a part.
  template <class Body>
  __device__ void each_unit(std::uint32_t part, const Body& body) const {
    const std::uint32_t begin = part * norm_.part_bytes;
    const std::uint32_t bytes =
        static_cast<std::uint32_t>(min_size(norm_.part_bytes, norm_.row_bytes - begin));
#pragma unroll
    for (int k = 0; k < kNormUnits; ++k) {
      const std::uint32_t at =
          (threadIdx.x + static_cast<std::uint32_t>(k) * kNormThreads) * kUnitBytes;
      if (at < bytes) body(k, begin + at, min_size(kUnitBytes, bytes - at));
    }
  }

  const NormParams& norm_;
  Sum sum_;
  Unit values_[kNormUnits];
  Unit weights_[kNormUnits];
};

}  // namespace symm
