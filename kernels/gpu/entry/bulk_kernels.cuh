// The kernels of collectives by lanes.
#pragma once

#include "kernels/gpu/interface/kernel_table.hpp"
#include "kernels/gpu/wire/bulk.cuh"

namespace symm {

// What a launch can have on every GPU.
static_assert(sizeof(BulkParams<kMaxDeviceRanks>) <= 4096);

template <int N, class Rules>
__global__ void SYMM_LAUNCH_BOUNDS(kBulkThreads, 1)
    bulk_kernel(const SYMM_GRID_CONSTANT BulkParams<kWireRanks<N>> params) {
  __shared__ BulkShared shared;
  Bulk<N, Rules>(params, shared).run();
}

// The kernels of `Rules`.
template <class Rules, OwnKernels kOwn>
BulkKernels bulk_kernels() {
  BulkKernels kernels;
  kernels.of[3] = reinterpret_cast<const void*>(&bulk_kernel<0, Rules>);
  if constexpr (kOwn >= OwnKernels::kFour) {
    kernels.of[0] = reinterpret_cast<const void*>(&bulk_kernel<2, Rules>);
    kernels.of[1] = reinterpret_cast<const void*>(&bulk_kernel<4, Rules>);
  }
  if constexpr (kOwn == OwnKernels::kCommon) {
    kernels.of[2] = reinterpret_cast<const void*>(&bulk_kernel<8, Rules>);
  }
  return kernels;
}

}  // namespace symm
