// The kernels of pipelined collectives. `Rules` of a reducing kernel: see NOTE [Reduction rules].
#pragma once

#include "kernels/algorithms/all_gather.hpp"
#include "kernels/algorithms/all_reduce.hpp"
#include "kernels/algorithms/all_reduce_ring.hpp"
#include "kernels/algorithms/barrier.hpp"
#include "kernels/algorithms/broadcast.hpp"
#include "kernels/algorithms/gather.hpp"
#include "kernels/algorithms/reduce.hpp"
#include "kernels/algorithms/reduce_scatter.hpp"
#include "kernels/algorithms/scatter.hpp"
#include "kernels/gpu/device/call_end.cuh"
#include "kernels/gpu/device/poison.cuh"
#include "kernels/gpu/simple/block_executor.cuh"

namespace symm {

inline constexpr int kBlockThreads = 512;
// Spinning blocks must all be resident; with two on a multiprocessor, several groups fit at once.
inline constexpr int kBlocksPerMultiprocessor = 2;

template <class Reducer, class Body>
__device__ inline bool try_channel(const GroupParams& group, const CollectiveParams& call,
                                   const WaitParams& wait, const Body& body) {
  __shared__ ChannelState state;
  if (!begin_collective(group)) return false;
  Waiter waiter(group, wait, collective_number(group), false);
  BlockExecutor<Reducer> executor(group, call, waiter, state);
  if (!executor.begin() || !body(executor) || !executor.end()) return false;
  if (threadIdx.x == 0 && is_last_block(&local_state(group).channel_ticket)) {
    end_collective(group, call.ends_call);
  }
  return true;
}

// Runs `body(executor)` as one channel of a pipelined collective.
template <class Reducer, class Body>
__device__ inline void run_channel(const GroupParams& group, const CollectiveParams& call,
                                   const WaitParams& wait, const Body& body) {
  if (!try_channel<Reducer>(group, call, wait, body))
    poison_outputs(group.rank, group.world_size, call);
}

template <class Rules>
__global__ void SYMM_LAUNCH_BOUNDS(kBlockThreads, kBlocksPerMultiprocessor)
    reduce_pipeline_kernel(const SYMM_GRID_CONSTANT GroupParams group,
                           const SYMM_GRID_CONSTANT CollectiveParams call,
                           const SYMM_GRID_CONSTANT WaitParams wait) {
  run_channel<BlockReducer<Rules>>(group, call, wait, [&](auto& x) {
    const std::size_t bytes = call.count * call.element_bytes;
    if (call.kind == CollectiveKind::kReduceScatter) {
      return reduce_scatter(x, call.parts, call.output);
    }
    if (call.kind == CollectiveKind::kReduce) {
      return call.algorithm == Algorithm::kTwoShot
                 ? reduce_two_shot(x, call.input, call.output, bytes, call.root)
                 : reduce_one_shot(x, call.input, call.output, bytes, call.root);
    }
    switch (call.algorithm) {
      case Algorithm::kRing:
        return all_reduce_ring(x, call.input, call.output, bytes);
      case Algorithm::kTwoShot:
        return all_reduce_two_shot(x, call.input, call.output, bytes);
      default:
        return all_reduce_one_shot(x, call.input, call.output, bytes);
    }
  });
}

}  // namespace symm
