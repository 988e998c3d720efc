// The kernel of barrier, put_signal and wait_signal: one block. A barrier has a thread for each
// rank, the others one thread. The put's release is cumulative, so it covers the writes of earlier
// kernels of the stream.
#include "kernels/gpu/device/signal.cuh"
#include "kernels/gpu/interface/kernel_table.hpp"

namespace symm {

namespace {

// NOTE [Traps] in signal_kernels.hpp. All threads of a block that has given up call it, each after
// its report and its withdrawn signals.
__device__ void trap_for_lost_signal(const SignalParams& params) {
  system_fence();
  block_all(true);
  if (threadIdx.x != 0) return;
  const SignalPage& page = *params.page;
  switch (static_cast<DeviceFault>(load_acquire(&page.report.fault))) {
    case DeviceFault::kTimeout:
    case DeviceFault::kPeerGaveUp:
      device_trap();
      return;
    case DeviceFault::kAborted:
      if (load_relaxed(&page.lost) != 0) device_trap();
      return;
    default:
      return;
  }
}

__global__ void SYMM_LAUNCH_BOUNDS(kMaxDeviceRanks, 1)
    signal_kernel(const SYMM_GRID_CONSTANT SignalParams params) {
  SignalThread thread(params);
  if (!block_all(!thread.is_dead())) return;
  bool done = true;
  switch (params.operation) {
    case SignalOperation::kBarrier:
      done = signal_barrier(params, params.channel);
      break;
    case SignalOperation::kPutSignal:
      if (threadIdx.x == 0) done = thread.put(params.peer, params.channel);
      break;
    case SignalOperation::kWaitSignal:
      if (threadIdx.x == 0) done = thread.take(params.peer, params.channel);
      break;
    case SignalOperation::kExchangeRows:  // kernels of their own
      break;
  }
  if (!done && params.traps != 0) trap_for_lost_signal(params);
}

}  // namespace

const void* signal_kernel_address() { return reinterpret_cast<const void*>(&signal_kernel); }

}  // namespace symm
