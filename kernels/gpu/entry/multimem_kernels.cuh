// The kernels on multicast addresses, over a class of instructions (multimem.cuh).
//
// NOTE [Multimem]
// A load from the multicast address of an input makes the NVLink switch combine all ranks' words; a
// store to the multicast address of an output reaches every rank. Each block meets the same block
// of every rank before and after (NOTE [Meetings] in block_meeting.cuh). Once it has entered, the
// stream of every rank has reached this call, so inputs are written and outputs free; once all
// blocks of a launch have left, no access of it is under way anywhere. A rank reads and writes
// memory only where the locations of all ranks are equal. The same memory has two addresses, hence
// the proxy fences.
#pragma once

#include "kernels/gpu/device/block_meeting.cuh"
#include "kernels/gpu/device/block_reduce.cuh"
#include "kernels/gpu/device/call_end.cuh"
#include "kernels/gpu/device/multimem.cuh"
#include "kernels/gpu/device/poison.cuh"
#include "kernels/gpu/interface/kernel_table.hpp"

namespace symm {

inline constexpr int kMultimemUnrolled = 4;  // independent loads in flight a thread

// Calls store(i, load(i)) for the units [begin, end), by all threads of the grid.
template <class Load, class Store>
__device__ void for_units(std::uint64_t begin, std::uint64_t end, const Load& load,
                          const Store& store) {
  const std::uint64_t threads = std::uint64_t{gridDim.x} * blockDim.x;
  std::uint64_t i = begin + std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + (kMultimemUnrolled - 1) * threads < end; i += kMultimemUnrolled * threads) {
    Unit units[kMultimemUnrolled];
#pragma unroll
    for (int k = 0; k < kMultimemUnrolled; ++k) units[k] = load(i + k * threads);
#pragma unroll
    for (int k = 0; k < kMultimemUnrolled; ++k) store(i + k * threads, units[k]);
  }
  for (; i < end; i += threads) store(i, load(i));
}

// The thread of the launch that handles the end of a message.
__device__ inline bool is_first_thread() { return blockIdx.x == 0 && threadIdx.x == 0; }

__device__ inline std::uint64_t bytes_of(const CollectiveParams& call) {
  return call.count * call.element_bytes;
}

__device__ inline void store_everywhere(const GroupParams& group, const MultimemParams& memory,
                                        std::uint64_t offset, const Unit& unit,
                                        std::uint64_t bytes) {
  for (int rank = 0; rank < group.world_size; ++rank) {
    store_unit(memory.outputs[rank] + offset, unit, bytes);
  }
}

template <Dtype dtype, ReduceOp op, class Multicast>
__device__ void all_reduce_units(const Multicast& multicast, const GroupParams& group,
                                 const CollectiveParams& call, const MultimemParams& memory) {
  const auto world = static_cast<std::uint64_t>(group.world_size);
  const auto rank = static_cast<std::uint64_t>(group.rank);
  const std::uint64_t units = bytes_of(call) / kUnitBytes;
  for_units(
      units * rank / world, units * (rank + 1) / world,
      [&](std::uint64_t i) {
        return multicast.template pull<dtype, op>(memory.input_multicast + i * kUnitBytes);
      },
      [&](std::uint64_t i, const Unit& unit) {
        multicast.push(memory.output_multicast + i * kUnitBytes, unit);
      });
  const std::uint64_t rest = bytes_of(call) % kUnitBytes;
  if (rest == 0 || group.rank != group.world_size - 1 || !is_first_thread()) return;
  const std::uint64_t offset = units * kUnitBytes;
  const ReduceFacts facts{nullptr, false, 0, group.world_size};
  UnitSum<ElementRule<dtype, op>> sum;
  for (int r = 0; r < group.world_size; ++r) {
    sum.add(load_unit(memory.inputs[r] + offset, rest), facts, r);
  }
  store_everywhere(group, memory, offset, sum.finish(facts), rest);
}

// The output is ordinary memory, at any address.
template <Dtype dtype, ReduceOp op, class Multicast>
__device__ void reduce_scatter_units(const Multicast& multicast, const GroupParams& group,
                                     const CollectiveParams& call, const MultimemParams& memory) {
  const std::uint64_t bytes = bytes_of(call);
  const std::byte* const share =
      memory.input_multicast + bytes * static_cast<std::uint64_t>(group.rank);
  auto* const output = static_cast<std::byte*>(call.output);
  for_units(
      0, bytes / kUnitBytes,
      [&](std::uint64_t i) { return multicast.template pull<dtype, op>(share + i * kUnitBytes); },
      [&](std::uint64_t i, const Unit& unit) {
        store_unit(output + i * kUnitBytes, unit, kUnitBytes);
      });
}

// This rank's input, which is ordinary memory at any address, to `offset` of every rank's output.
template <class Multicast>
__device__ void push_units(const Multicast& multicast, const GroupParams& group,
                           const CollectiveParams& call, const MultimemParams& memory,
                           std::uint64_t offset) {
  const auto* const input = static_cast<const std::byte*>(call.input);
  const std::uint64_t units = bytes_of(call) / kUnitBytes;
  for_units(
      0, units, [&](std::uint64_t i) { return load_unit(input + i * kUnitBytes, kUnitBytes); },
      [&](std::uint64_t i, const Unit& unit) {
        multicast.push(memory.output_multicast + offset + i * kUnitBytes, unit);
      });
  const std::uint64_t rest = bytes_of(call) % kUnitBytes;
  if (rest == 0 || !is_first_thread()) return;
  store_everywhere(group, memory, offset + units * kUnitBytes,
                   load_unit(input + units * kUnitBytes, rest), rest);
}

template <class Body>
__device__ bool try_between_meetings(const GroupParams& group, const CollectiveParams& call,
                                     const WaitParams& wait, const Body& body) {
  if (!begin_collective(group)) return false;
  Waiter waiter(group, wait, collective_number(group), false);
  BlockMeeting meeting(group, call, waiter);
  order_both_addresses();
  if (!meeting.enter()) return false;
  order_both_addresses();
  body();
  order_both_addresses();
  if (!meeting.leave()) return false;
  if (threadIdx.x == 0 && is_last_block(&local_state(group).launch_ticket)) {
    end_collective(group, call.ends_call);
  }
  return true;
}

// Runs `body` in a block that has met those of all ranks, and ends when all have run theirs.
template <class Body>
__device__ void between_meetings(const GroupParams& group, const CollectiveParams& call,
                                 const WaitParams& wait, const Body& body) {
  if (!try_between_meetings(group, call, wait, body)) {
    poison_outputs(group.rank, group.world_size, call);
  }
  order_both_addresses();
}

template <class Multicast, Dtype dtype, ReduceOp op>
__global__ void SYMM_LAUNCH_BOUNDS(kMultimemThreads, 1)
    multimem_reduce_kernel([[maybe_unused]] const SYMM_GRID_CONSTANT GroupParams group,
                           [[maybe_unused]] const SYMM_GRID_CONSTANT CollectiveParams call,
                           [[maybe_unused]] const SYMM_GRID_CONSTANT WaitParams wait,
                           [[maybe_unused]] const SYMM_GRID_CONSTANT MultimemParams memory) {
  if constexpr (Multicast::kExists) {
    const Multicast multicast(memory, group.world_size);
    between_meetings(group, call, wait, [&] {
      if (call.kind == CollectiveKind::kAllReduce) {
        all_reduce_units<dtype, op>(multicast, group, call, memory);
      } else {
        reduce_scatter_units<dtype, op>(multicast, group, call, memory);
      }
    });
  }
}

template <class Multicast>
__global__ void SYMM_LAUNCH_BOUNDS(kMultimemThreads, 1)
    multimem_move_kernel([[maybe_unused]] const SYMM_GRID_CONSTANT GroupParams group,
                         [[maybe_unused]] const SYMM_GRID_CONSTANT CollectiveParams call,
                         [[maybe_unused]] const SYMM_GRID_CONSTANT WaitParams wait,
                         [[maybe_unused]] const SYMM_GRID_CONSTANT MultimemParams memory) {
  if constexpr (Multicast::kExists) {
    const Multicast multicast(memory, group.world_size);
    between_meetings(group, call, wait, [&] {
      if (call.kind == CollectiveKind::kAllGather) {
        push_units(multicast, group, call, memory,
                   bytes_of(call) * static_cast<std::uint64_t>(group.rank));
      } else if (group.rank == call.root) {
        push_units(multicast, group, call, memory, 0);
      }
    });
  }
}

// The kernel over these instructions, as multimem_kernel_address() gives it; null for what they do
// not have.
template <class Multicast, Dtype dtype, ReduceOp... ops>
const void* multimem_reduce_kernel_of(ReduceOp op) {
  const void* kernel = nullptr;
  ((kernel = op == ops
                 ? reinterpret_cast<const void*>(&multimem_reduce_kernel<Multicast, dtype, ops>)
                 : kernel),
   ...);
  return kernel;
}

template <class Multicast>
const void* multimem_kernel_of(CollectiveKind kind, Dtype dtype, ReduceOp op) {
  using enum ReduceOp;
  if (kind == CollectiveKind::kAllGather || kind == CollectiveKind::kBroadcast) {
    return reinterpret_cast<const void*>(&multimem_move_kernel<Multicast>);
  }
  if (kind != CollectiveKind::kAllReduce && kind != CollectiveKind::kReduceScatter) return nullptr;
  switch (dtype) {
    case Dtype::kFloat16:
      return multimem_reduce_kernel_of<Multicast, Dtype::kFloat16, kSum, kMin, kMax>(op);
    case Dtype::kBFloat16:
      return multimem_reduce_kernel_of<Multicast, Dtype::kBFloat16, kSum, kMin, kMax>(op);
    case Dtype::kFloat32:
      return multimem_reduce_kernel_of<Multicast, Dtype::kFloat32, kSum>(op);
    default:
      return nullptr;
  }
}

}  // namespace symm
