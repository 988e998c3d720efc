// The RMS norm of rows by all threads of a block.
#pragma once

#include "kernels/gpu/device/block_memory.cuh"
#include "kernels/gpu/device/block_reduce.cuh"
#include "kernels/gpu/device/block_sum.cuh"
#include "kernels/gpu/device/wide_unit.cuh"
#include "kernels/gpu/interface/norm_params.hpp"

namespace symm {

// Both rounded to the dtype before, and the sum after.
template <class Rule>
__device__ Unit added(const Unit& a, const Unit& b) {
  return WideUnit<Rule>::of(a).plus(WideUnit<Rule>::of(b)).rounded();
}

// The norm of rows by all threads of a block, of which there are kNormThreads; others have no
// units. A thread has the same units of each part of a row (NOTE [Parts of a row]), and keeps those
// of one part. `kWhole`: rows begin and end at multiples of 16 bytes; `kUnits`: that a thread has
// of a part at most.
template <class Rule, bool kWhole = false, int kUnits = kNormUnits>
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
  // The values of `row`.
  __device__ void load_row(std::uint32_t part, const std::byte* row) {
    load(part,
         [&](std::uint32_t offset, std::size_t bytes) { return unit_at(row + offset, bytes); });
  }
  __device__ void load_weights(std::uint32_t part) {
    each_unit(part, [&](int k, std::uint32_t offset, std::size_t bytes) {
      weights_[k] = unit_at(norm_.weight + offset, bytes);
    });
  }
  // Adds `residual` to the values of a part, and stores them to `total`; both are of the row.
  __device__ void add(std::uint32_t part, const std::byte* residual, std::byte* total) {
    Unit units[kUnits];
    each_unit(part, [&](int k, std::uint32_t offset, std::size_t bytes) {
      units[k] = unit_at(residual + offset, bytes);
    });
    each_unit(part, [&](int k, std::uint32_t offset, std::size_t bytes) {
      values_[k] = added<Rule>(values_[k], units[k]);
      put(total + offset, values_[k], bytes);
    });
  }

  // The sum of the squares of a part, whose values are loaded, in every thread. Has one barrier.
  __device__ Real squares(std::uint32_t part) {
    Real squares = 0;
    each_unit(part, [&](int k, std::uint32_t, std::size_t) {
      const auto wide = Wide::of(values_[k]);
#pragma unroll
      for (int i = 0; i < Rule::kPerUnit; ++i) squares += wide.value[i] * wide.value[i];
    });
    return sum_.of(squares);
  }

  // Stores the norm of a part, whose values and weights are loaded. `squares`: of the row.
  __device__ void store(std::byte* result, std::uint32_t part, Real squares) const {
    const Real scale = inverse_root(squares, norm_);
    each_unit(part, [&](int k, std::uint32_t offset, std::size_t bytes) {
      const auto weights = Wide::of(weights_[k]);
      auto normed = Wide::of(values_[k]);
#pragma unroll
      for (int i = 0; i < Rule::kPerUnit; ++i) {
        normed.value[i] = normed.value[i] * scale * weights.value[i];
      }
      put(result + offset, normed.rounded(), bytes);
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
  using Wide = WideUnit<Rule>;

  __device__ static Unit unit_at(const std::byte* source, std::size_t bytes) {
    if constexpr (kWhole) return load_data(reinterpret_cast<const Unit*>(source));
    return load_unit(source, bytes);
  }
  __device__ static void put(std::byte* destination, const Unit& unit, std::size_t bytes) {
    if constexpr (kWhole) {
      store_data(reinterpret_cast<Unit*>(destination), unit);
    } else {
      store_unit(destination, unit, bytes);
    }
  }
  // Of the mean of the squares.
  __device__ static float inverse_root(float squares, const NormParams& norm) {
    return rsqrtf(squares * norm.inverse_columns_float32 + norm.eps_float32);
  }
  __device__ static double inverse_root(double squares, const NormParams& norm) {
    return rsqrt(squares * norm.inverse_columns + norm.eps);
  }

  // Calls body(k, offset in the row, bytes) for this thread's units of a part.
  template <class Body>
  __device__ void each_unit(std::uint32_t part, const Body& body) const {
    const std::uint32_t begin = part * norm_.part_bytes;
    const std::uint32_t bytes =
        static_cast<std::uint32_t>(min_size(norm_.part_bytes, norm_.row_bytes - begin));
#pragma unroll
    for (int k = 0; k < kUnits; ++k) {
      const std::uint32_t at =
          (threadIdx.x + static_cast<std::uint32_t>(k) * kNormThreads) * kUnitBytes;
      if (at >= bytes || (kWhole && threadIdx.x >= kNormThreads)) continue;
      body(k, begin + at, kWhole ? kUnitBytes : min_size(kUnitBytes, bytes - at));
    }
  }

  const NormParams& norm_;
  Sum sum_;
  Unit values_[kUnits];
  Unit weights_[kUnits];
};

}  // namespace symm
