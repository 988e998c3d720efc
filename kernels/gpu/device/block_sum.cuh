// The sum of one value of each thread of a block, in an order that is the same on every GPU.
#pragma once

#include "kernels/gpu/vendor/gpu_api.hpp"

namespace symm {

template <class T, unsigned kThreads>
class BlockSum {
 public:
  static constexpr unsigned kGroup = 32;  // threads that add up by shuffles, on any GPU
  static constexpr unsigned kGroups = kThreads / kGroup;
  // Two sets: while one sum is read, the next may be written.
  struct Shared {
    T sums[2][kGroups];
  };

  __device__ explicit BlockSum(Shared& shared) : shared_(shared) {}

  // The same bits in every thread. Has one barrier. By the whole block, of which threads from
  // number kThreads on add nothing.
  __device__ T of(T value) {
#pragma unroll
    for (unsigned mask = kGroup / 2; mask > 0; mask /= 2) value += shuffle_xor(value, mask);
    T* const sums = shared_.sums[set_];
    set_ ^= 1;
    if (threadIdx.x % kGroup == 0 && threadIdx.x < kThreads) {
      store_shared(&sums[threadIdx.x / kGroup], value);
    }
    block_all(true);
    T parts[kGroups];
#pragma unroll
    for (unsigned i = 0; i < kGroups; ++i) parts[i] = load_shared(&sums[i]);
      // As a tree, for the latency of an addition.
#pragma unroll
    for (unsigned i = kGroups - 1; i > 0; --i) parts[(i - 1) / 2] += parts[i];
    return parts[0];
  }

 private:
  static_assert(kThreads % kGroup == 0 && (kGroups & (kGroups - 1)) == 0);

  Shared& shared_;
  unsigned set_ = 0;
};

}  // namespace symm
