// How a launch begins and ends in the eyes of the group.
#pragma once

#include "kernels/gpu/wait.cuh"

namespace symm {

// True in the block that is the last of the grid to come here; that block then sees what the others
// did before. By one thread a block.
__device__ inline bool is_last_block(std::uint32_t* ticket) {
  __threadfence();
  if (atomicAdd(ticket, 1u) + 1 != gridDim.x) return false;
  *ticket = 0;
  __threadfence();
  return true;
}

// Number of the collective that this launch carries out.
__device__ inline std::uint64_t collective_number(const GroupParams& group) {
  return local_state(group).sequence + 1;
}

// False in a dead group. Tells the host that the collective has begun. By the whole block.
__device__ inline bool begin_collective(const GroupParams& group) {
  const bool alive = threadIdx.x != 0 || load_relaxed(&local_state(group).dead) == 0;
  if (__syncthreads_and(alive) == 0) return false;
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    store_relaxed(&group.page->entered, collective_number(group));
  }
  return true;
}

// By one thread of the last block.
__device__ inline void end_collective(const GroupParams& group, bool ends_call) {
  if (!ends_call) return;
  LocalState& local = local_state(group);
  local.sequence += 1;
  store_relaxed(&group.page->completed, local.sequence);
}

}  // namespace symm
