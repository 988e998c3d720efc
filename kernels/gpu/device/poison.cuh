// What a launch leaves where it gives up.
//
// NOTE [Poison]
// The stream of a launch that gives up goes on, and what comes next on it would take what happens
// to be in memory for results. So each block that gives up, or finds the group dead, fills what it
// was to write with poison_of(dtype). Other blocks of the launch may have succeeded: every element
// is right or poison. The host's errors come later; a replay of a graph has no others.
//
// A block fills its own part only: in a call in place other blocks may still be sending what it
// would write over, to peers whose calls succeed. Where a rank's memory is written by its peers'
// blocks or by copies, which have no blocks here, each fills all that the call was to write.
#pragma once

#include "kernels/core/atomics.hpp"
#include "kernels/gpu/device/block_memory.cuh"
#include "kernels/gpu/interface/call_params.hpp"

namespace symm {

// By `threads` threads together, of which the caller is number `thread`; at least 8. `pattern`
// repeats from `data` on.
[[maybe_unused]] static __device__ SYMM_OUTLINED void fill_poison(void* data, std::size_t bytes,
                                                                  std::uint64_t pattern,
                                                                  unsigned thread,
                                                                  unsigned threads) {
  if (bytes == 0) return;
  auto* const start = static_cast<std::byte*>(data);
  const std::size_t lead = (0 - reinterpret_cast<std::uintptr_t>(start)) & 7;
  const std::size_t head = min_size(lead, bytes);
  const std::size_t tail = head + align_down(bytes - head, 8);
  const auto fill_bytes = [&](std::size_t begin, std::size_t end) {
    const std::size_t i = begin + thread;
    if (i < end) store_data(start + i, static_cast<std::byte>(pattern >> (8 * (i % 8)) & 0xff));
  };
  fill_bytes(0, head);
  fill_bytes(tail, bytes);
  const std::uint64_t word =
      head == 0 ? pattern : pattern >> (8 * head) | pattern << (64 - 8 * head);
  auto* const words = reinterpret_cast<std::uint64_t*>(start + head);
  for (std::size_t i = thread; i < (tail - head) / 8; i += threads) {
    store_data(words + i, word);
  }
}
// By the whole block.
__device__ inline void fill_poison(void* data, std::size_t bytes, std::uint64_t pattern) {
  fill_poison(data, bytes, pattern, threadIdx.x, blockDim.x);
}

// Fills what a call by multimem or copy engines was to write on this rank, where it poisons at all.
// By the whole block, once the group is dead.
[[maybe_unused]] static __device__ SYMM_OUTLINED_METHOD void poison_outputs(
    int rank, int world_size, const CollectiveParams& call) {
  if (call.poison == 0) return;
  // A peer that reads in place what follows also finds that this rank is dead.
  release_earlier_work();
  const Part& own = call.parts[rank];
  const auto fill = [&](void* data, std::size_t count) {
    fill_poison(data, count * call.element_bytes, call.poison);
  };
  switch (call.kind) {
    case CollectiveKind::kBarrier:
      return;
    case CollectiveKind::kBroadcast:
      if (call.output != call.input || rank != call.root) fill(call.output, call.count);
      return;
    case CollectiveKind::kReduceScatter:
      fill(call.output, own.count);
      return;
    case CollectiveKind::kAllGather:
      for (int r = 0; r < world_size; ++r) {
        if (r != rank || own.data != call.input) fill(call.parts[r].data, call.parts[r].count);
      }
      return;
    default:
      fill(call.output, call.count);
  }
}

}  // namespace symm
