// Kernels that move data unchanged, and barriers.
#include "kernels/gpu/device/poison.cuh"
#include "kernels/gpu/entry/bulk_kernels.cuh"
#include "kernels/gpu/entry/wire_kernels.cuh"

namespace symm {

namespace {

// Sends `mine` to everybody in one tile and compares it with everybody's. What the streams of the
// ranks did before it is seen by what they do after it. False in threads that must end the launch.
template <class Block>
__device__ __forceinline__ bool meet(Block& block, BufferLocation mine) {
  release_earlier_work();
  const Unit unit{{static_cast<std::uint32_t>(mine), static_cast<std::uint32_t>(mine >> 32), 0, 0}};
  for (int peer = 0; peer < block.world_size(); ++peer) {
    if (peer != block.rank()) block.send(peer, 0, unit);
  }
  block.refresh([](int, std::uint32_t place) { return place == 0; });
  bool ok = true;
  for (int base = 0; base < block.world_size(); base += Block::kBatch) {
    Unit units[Block::kBatch];
    if (!block.receive(base, 0, units, [](int) { return true; })) return false;
#pragma unroll
    for (int k = 0; k < Block::kBatch; ++k) {
      const int peer = base + k;
      if (threadIdx.x != 0 || peer >= block.world_size() || peer == block.rank()) continue;
      const std::uint64_t theirs = units[k].words[0] | static_cast<std::uint64_t>(units[k].words[1])
                                                           << 32;
      if (theirs != mine) ok = block.fail(DeviceFault::kAsymmetricUse, peer, theirs, mine);
    }
  }
  acquire_for_later_work();
  return ok;
}

// What a launch can have on every GPU.
static_assert(sizeof(WireParams<kMaxDeviceRanks>) + sizeof(CollectiveParams) <= 4096);

// Copy engines may write to the outputs of the peers only where all locations are equal, so the
// barriers around them compare these. `call`: what the copies carry out.
template <class Tile, int N>
__global__ void SYMM_LAUNCH_BOUNDS(kTileThreads, 1)
    wire_barrier_kernel(const SYMM_GRID_CONSTANT WireParams<kWireRanks<N>> params,
                        const SYMM_GRID_CONSTANT CollectiveParams call) {
  WireBlock<Tile, N> block(params);
  if (block.ready() && block_all(meet(block, call.location))) {
    block.end();
  } else if (call.ends_call) {  // copies come after the entry barrier, also where that has failed
    poison_outputs(params.rank, params.world_size, call);
  }
}

}  // namespace

WireKernels move_wire_kernels() {
  WireKernels kernels = wire_kernels<NoRules, OwnKernels::kCommon>();
#if SYMM_LINES
  // Not on AMD, where that of four ranks has too few registers.
  enter_wire<LLTile, NoRules, OwnKernels::kCommon>(kernels, WireKind::kLL);
#endif
  return kernels;
}
BulkKernels move_bulk_kernels() { return bulk_kernels<NoRules, OwnKernels::kCommon>(); }
WireKernels wire_barrier_kernels() {
  WireKernels kernels;
  const auto enter = [&](WireKind kind, const void* kernel) {
    kernels.of[static_cast<std::size_t>(kind)][kWireWorldCount - 1] = kernel;
  };
  enter(WireKind::kLL, reinterpret_cast<const void*>(&wire_barrier_kernel<LLTile, 0>));
#if SYMM_LINES
  enter(WireKind::kLine, reinterpret_cast<const void*>(&wire_barrier_kernel<LineTile, 0>));
#endif
  return kernels;
}

}  // namespace symm
