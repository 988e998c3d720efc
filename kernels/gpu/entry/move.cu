// Kernels that move data unchanged, and the barriers around copy engines.
#include "kernels/gpu/entry/kernels.cuh"
#include "kernels/gpu/interface/kernel_table.hpp"

namespace symm {

namespace {

__global__ void SYMM_LAUNCH_BOUNDS(kBlockThreads, kBlocksPerMultiprocessor)
    move_pipeline_kernel(const SYMM_GRID_CONSTANT GroupParams group,
                         const SYMM_GRID_CONSTANT CollectiveParams call,
                         const SYMM_GRID_CONSTANT WaitParams wait) {
  run_channel<NoReducer>(group, call, wait, [&](auto& x) {
    const std::size_t bytes = call.count * call.element_bytes;
    switch (call.kind) {
      case CollectiveKind::kBroadcast:
        return broadcast(x, call.input, call.output, bytes, call.root);
      case CollectiveKind::kAllGather:
        return all_gather(x, call.input, call.parts);
      case CollectiveKind::kGather:
        return gather(x, call.input, bytes, call.parts, call.root);
      case CollectiveKind::kScatter:
        return scatter(x, call.parts, call.output, bytes, call.root);
      default:
        return barrier(x);
    }
  });
}

__global__ void SYMM_LAUNCH_BOUNDS(kBlockThreads, kBlocksPerMultiprocessor)
    move_ll_kernel(const SYMM_GRID_CONSTANT GroupParams group,
                   const SYMM_GRID_CONSTANT CollectiveParams call,
                   const SYMM_GRID_CONSTANT WaitParams wait) {
  run_ll(group, call, wait, [&](LLCall& x) {
    switch (call.kind) {
      case CollectiveKind::kBroadcast:
        return ll_broadcast(x, call);
      case CollectiveKind::kAllGather:
        return ll_all_gather(x, call);
      case CollectiveKind::kGather:
        return ll_gather(x, call);
      case CollectiveKind::kScatter:
        return ll_scatter(x, call);
      default:
        return ll_barrier(x);
    }
  });
}

// The entry and the exit barrier around copy engines. The ranks compare the locations of their
// outputs: copy engines may write to the outputs of the peers only where all locations are equal.
__global__ void SYMM_LAUNCH_BOUNDS(kBlockThreads, kBlocksPerMultiprocessor)
    copy_barrier_kernel(const SYMM_GRID_CONSTANT GroupParams group,
                        const SYMM_GRID_CONSTANT CollectiveParams call,
                        const SYMM_GRID_CONSTANT WaitParams wait) {
  const auto meet = [&](LLCall& x) {
    x.refresh(1);
    const int peer = static_cast<int>(threadIdx.x);
    if (peer >= group.world_size || peer == group.rank) return true;
    release_earlier_work();
    x.send(peer, 0,
           Unit{{static_cast<std::uint32_t>(call.location),
                 static_cast<std::uint32_t>(call.location >> 32), 0, 0}});
    Unit unit;
    const bool came = x.receive(peer, 0, &unit);
    acquire_for_later_work();
    const std::uint64_t theirs = unit.words[0] | (static_cast<std::uint64_t>(unit.words[1]) << 32);
    if (!came || theirs == call.location) return came;
    return x.waiter().fail(DeviceFault::kAsymmetricUse, peer, theirs, call.location);
  };
  // Copies come after the entry barrier, also where that has failed.
  if (!try_ll(group, call, wait, meet) && call.ends_call) poison_outputs(group, call);
}

}  // namespace

const void* move_pipeline_kernel_address() {
  return reinterpret_cast<const void*>(&move_pipeline_kernel);
}
const void* move_ll_kernel_address() { return reinterpret_cast<const void*>(&move_ll_kernel); }
const void* copy_barrier_kernel_address() {
  return reinterpret_cast<const void*>(&copy_barrier_kernel);
}

}  // namespace symm
