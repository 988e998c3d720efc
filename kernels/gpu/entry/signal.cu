// The kernel of barrier, put_signal and wait_signal: one block. A barrier has a thread for each
// rank, the others one thread. The put's release is cumulative, so it covers the writes of earlier
// kernels of the stream.
#include "kernels/gpu/device/signal.cuh"
#include "kernels/gpu/interface/kernel_table.hpp"

namespace symm {

namespace {

__global__ void SYMM_LAUNCH_BOUNDS(kMaxDeviceRanks, 1)
    signal_kernel(const SYMM_GRID_CONSTANT SignalParams params) {
  SignalThread thread(params);
  if (!block_all(!thread.is_dead())) return;
  switch (params.operation) {
    case SignalOperation::kBarrier:
      signal_barrier(params, params.channel);
      return;
    case SignalOperation::kPutSignal:
      if (threadIdx.x == 0) thread.put(params.peer, params.channel);
      return;
    case SignalOperation::kWaitSignal:
      if (threadIdx.x == 0) thread.take(params.peer, params.channel);
      return;
    case SignalOperation::kExchangeRows:  // kernels of their own
      return;
  }
}

}  // namespace

const void* signal_kernel_address() { return reinterpret_cast<const void*>(&signal_kernel); }

}  // namespace symm
