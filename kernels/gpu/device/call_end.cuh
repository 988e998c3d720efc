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

// For calls whose blocks do not meet: what each block that ends adds to the sequence.
__device__ inline std::uint64_t block_of_call() {
  return blockIdx.x == 0 ? kSequenceUnit - (gridDim.x - 1) : 1;
}
// By one thread of the block. Returns the sequence before it, of which tell_end() makes use.
// `before`: that when the launch began, of which only a launch of one block makes use.
__device__ inline std::uint64_t count_block(LocalState& local, std::uint64_t before) {
  if (gridDim.x != 1) return device_fetch_add(&local.sequence, block_of_call());
  store_data(&local.sequence, before + block_of_call());
  return before;
}
// The last one to add its part completes the call, and says so in `page` where that is not null.
__device__ inline void tell_end(DevicePage* page, std::uint64_t before) {
  const std::uint64_t sum = before + block_of_call();
  if (page != nullptr && sum % kSequenceUnit == 0) {
    store_relaxed(&page->completed, sum / kSequenceUnit);
  }
}
__device__ inline void count_call(LocalState& local, DevicePage* page, std::uint64_t before) {
  tell_end(page, count_block(local, before));
}

// What a wait for `peer` does now and then, by NOTE [Giving up]. Returns the time of its first
// look, or 0 where the launch must end. `number`, called: of the collective, or of the message
// where `transfer`.
template <class Number>
__device__ __forceinline__ std::uint64_t look_while(LocalState* local, DevicePage* page,
                                                    std::uint64_t timeout_ns, int peer,
                                                    std::uint64_t first_look, bool transfer,
                                                    const Number& number) {
  if (load_relaxed(&local->dead) != 0) return 0;
  const std::uint64_t now = device_clock_ns();
  if (first_look == 0) first_look = now;
  const bool aborted = load_relaxed(&global_pointer(page)->abort) != 0;
  if (!aborted && now - first_look < timeout_ns) return first_look;
  fail_group(*local, *global_pointer(page), aborted ? DeviceFault::kAborted : DeviceFault::kTimeout,
             peer, number(), transfer, 0, 0);
  return 0;
}
// Of a collective. By values alone: what a kernel keeps in registers stays there.
[[maybe_unused]] static __device__ SYMM_OUTLINED_METHOD std::uint64_t look_up(
    LocalState* local, DevicePage* page, std::uint64_t timeout_ns, int peer,
    std::uint64_t first_look) {
  return look_while(local, page, timeout_ns, peer, first_look, false,
                    [=] { return collective_number(*local); });
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
