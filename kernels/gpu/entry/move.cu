// Kernels that move data unchanged, and the gates around copy engines.
#include "kernels/gpu/entry/kernels.cuh"
#include "kernels/gpu/interface/kernel_table.hpp"

namespace symm {

namespace {

__global__ void SYMM_LAUNCH_BOUNDS(kBlockThreads, kBlocksPerMultiprocessor)
    move_pipeline(const SYMM_GRID_CONSTANT GroupParams group,
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
    move_packets(const SYMM_GRID_CONSTANT GroupParams group,
                 const SYMM_GRID_CONSTANT CollectiveParams call,
                 const SYMM_GRID_CONSTANT WaitParams wait) {
  run_packets(group, call, wait, [&](PacketCall& x) {
    switch (call.kind) {
      case CollectiveKind::kBroadcast:
        return packet_broadcast(x, call);
      case CollectiveKind::kAllGather:
        return packet_all_gather(x, call);
      case CollectiveKind::kGather:
        return packet_gather(x, call);
      case CollectiveKind::kScatter:
        return packet_scatter(x, call);
      default:
        return packet_barrier(x);
    }
  });
}

// A barrier in which every rank says where its output stands: copy engines may write to the peers'
// outputs only where all say the same.
__global__ void SYMM_LAUNCH_BOUNDS(kBlockThreads, kBlocksPerMultiprocessor)
    copy_gate(const SYMM_GRID_CONSTANT GroupParams group,
              const SYMM_GRID_CONSTANT CollectiveParams call,
              const SYMM_GRID_CONSTANT WaitParams wait) {
  __shared__ PacketState state;
  if (!begin_collective(group)) return;
  Waiter waiter(group, wait, collective_number(group), false);
  PacketCall packets(group, call, waiter, state);
  if (!packets.begin()) return;
  packets.refresh(1);
  const int peer = static_cast<int>(threadIdx.x);
  bool ok = true;
  if (peer < group.world_size && peer != group.rank) {
    release_earlier_work();
    packets.send(peer, 0,
                 Unit{{static_cast<std::uint32_t>(call.place),
                       static_cast<std::uint32_t>(call.place >> 32), 0, 0}});
    Unit unit;
    ok = packets.receive(peer, 0, &unit);
    acquire_for_later_work();
    const std::uint64_t theirs = unit.words[0] | (static_cast<std::uint64_t>(unit.words[1]) << 32);
    if (ok && theirs != call.place) {
      ok = waiter.fail(DeviceFault::kBrokenPromise, peer, theirs, call.place);
    }
  }
  if (block_all(ok)) packets.end();
}

}  // namespace

const void* move_pipeline_kernel() { return reinterpret_cast<const void*>(&move_pipeline); }
const void* move_packet_kernel() { return reinterpret_cast<const void*>(&move_packets); }
const void* copy_gate_kernel() { return reinterpret_cast<const void*>(&copy_gate); }

}  // namespace symm
