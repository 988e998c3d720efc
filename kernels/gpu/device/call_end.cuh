// Begins and ends a launch in the counters of the group.
#pragma once

#include "kernels/gpu/device/wait.cuh"

namespace symm {

// True in the last block of the grid to call this; that block then sees what the others did before.
// By one thread a block.
__device__ inline bool is_last_block(std::uint32_t* ticket) {
  device_fence();
  if (device_fetch_add(ticket, 1u) + 1 != gridDim.x) return false;
  store_data(ticket, 0);
  device_fence();
  return true;
}

// Number of the collective that this launch carries out; exact until its last block has ended.
__device__ inline std::uint64_t collective_number(const LocalState& local) {
  return load_relaxed(&local.sequence) / kSequenceUnit + 1;
}
__device__ inline std::uint64_t collective_number(const GroupParams& group) {
  return collective_number(local_state(group));
}

// False in a dead group. Reports to the host that the collective has begun. By the whole block.
__device__ inline bool begin_collective(const GroupParams& group) {
  const bool alive = threadIdx.x != 0 || load_relaxed(&local_state(group).dead) == 0;
  if (!block_all(alive)) return false;
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    store_relaxed(&page_of(group).entered, collective_number(group));
  }
  return true;
}

// By one thread of the last block.
__device__ inline void end_collective(const GroupParams& group, bool ends_call) {
  if (!ends_call) return;
  LocalState& local = local_state(group);
  const std::uint64_t number = collective_number(local);
  store_data(&local.sequence, number * kSequenceUnit);
  store_relaxed(&page_of(group).completed, number);
}

}  // namespace symm
