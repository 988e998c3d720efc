// The kernel that combines arrays of this GPU's memory, without peers: the partial results of
// hosts. Blocks have ranges of their own; each element is combined in the order of the sources.
#pragma once

#include "kernels/gpu/device/block_reduce.cuh"
#include "kernels/gpu/interface/call_params.hpp"

namespace symm {

template <class Rules>
__global__ void SYMM_LAUNCH_BOUNDS(512, 2) fold_kernel(const SYMM_GRID_CONSTANT FoldParams fold) {
  __shared__ const void* sources[kMostFolded];
  const std::size_t begin = min_size(blockIdx.x * fold.block_elements, fold.count);
  const std::size_t count = min_size(fold.block_elements, fold.count - begin);
  const std::size_t offset = begin * fold.element_bytes;
  for (int i = static_cast<int>(threadIdx.x); i < fold.world_size;
       i += static_cast<int>(blockDim.x)) {
    sources[i] = static_cast<const std::byte*>(fold.sources[i]) + offset;
  }
  __syncthreads();
  block_reduce<Rules>(static_cast<std::byte*>(fold.result) + offset, sources, count,
                      Rules::facts_of(static_cast<const double*>(nullptr), fold, fold));
}

}  // namespace symm
