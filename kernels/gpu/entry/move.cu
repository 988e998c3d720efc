// Kernels that move data unchanged, and barriers.
#include "kernels/gpu/device/poison.cuh"
#include "kernels/gpu/entry/bulk_kernels.cuh"
#include "kernels/gpu/entry/wire_kernels.cuh"

namespace symm {

namespace {

// Sends `mine` to everybody in one tile and compares it with everybody's. What the streams of the
// ranks did before it is seen by what they do after it. False where the launch must end. By a block
// of one warp.
//
// The fence comes before the page is told that the call has begun, or it would wait until that is
// in the host's memory; and what peers released is acquired by a load, which waits for no store
// (docs/experiments.md, "Barriers").
template <class Block>
__device__ __forceinline__ bool meet(Block& block, BufferLocation mine) {
  release_earlier_work();
  if (!block.ready()) return false;
  const Unit unit{{static_cast<std::uint32_t>(mine), static_cast<std::uint32_t>(mine >> 32), 0, 0}};
  for (int peer = 0; peer < block.world_size(); ++peer) {
    if (peer != block.rank()) block.send(peer, 0, unit);
  }
  block.refresh([](int, std::uint32_t place) { return place == 0; });
  bool came = true;  // the same in all threads of a warp, where a wire needs them together
  bool ok = true;
  for (int base = 0; came && base < block.world_size(); base += Block::kBatch) {
    Unit units[Block::kBatch];
    came = block.receive(base, 0, units, [](int) { return true; });
#pragma unroll
    for (int k = 0; came && k < Block::kBatch; ++k) {
      const int peer = base + k;
      if (threadIdx.x != 0 || peer >= block.world_size() || peer == block.rank()) continue;
      const std::uint64_t theirs = units[k].words[0] | static_cast<std::uint64_t>(units[k].words[1])
                                                           << 32;
      if (theirs != mine) ok = block.fail(DeviceFault::kAsymmetricUse, peer, theirs, mine);
    }
  }
  block.acquire_all();
  return block_all(came && ok);
}

template <class Tile, int N>
__global__ void SYMM_LAUNCH_BOUNDS(kTileThreads, 1)
    barrier_kernel(const SYMM_GRID_CONSTANT WireParams<kWireRanks<N>> params) {
  WireBlock<Tile, N> block(params);
  if (meet(block, 0)) block.end();
}

// What a launch can have on every GPU.
static_assert(sizeof(WireParams<kMaxDeviceRanks>) + sizeof(CollectiveParams) <= 4096);

// Copy engines write rightly to the outputs of the peers only where all locations are equal, so the
// barriers around them compare these. `call`: what the copies carry out.
template <class Tile, int N>
__global__ void SYMM_LAUNCH_BOUNDS(kTileThreads, 1)
    copies_barrier_kernel(const SYMM_GRID_CONSTANT WireParams<kWireRanks<N>> params,
                          const SYMM_GRID_CONSTANT CollectiveParams call) {
  WireBlock<Tile, N> block(params);
  if (meet(block, call.location)) {
    block.end();
  } else if (call.ends_call) {  // copies come after the entry barrier, also where that has failed
    poison_outputs(params.rank, params.world_size, call);
  }
}

}  // namespace

// None of their own for LL wires on AMD, where that of four ranks has too few registers.
constexpr OwnKernels kOwnOfLL = SYMM_LINES ? OwnKernels::kCommon : OwnKernels::kAny;

WireKernels move_wire_kernels() { return wire_kernels<NoRules, OwnKernels::kCommon, kOwnOfLL>(); }
WireKernels share_wire_kernels() {
  return wire_kernels<ShareRules, OwnKernels::kCommon, kOwnOfLL>();
}
BulkKernels move_bulk_kernels() { return bulk_kernels<NoRules, OwnKernels::kCommon>(); }

namespace {

template <class Tile, int... Worlds>
void enter_barriers(WireKernels& kernels, WireKind kind) {
  int index = 0;
  auto& row = kernels.of[static_cast<std::size_t>(kind)];
  ((row[index++] = reinterpret_cast<const void*>(&barrier_kernel<Tile, Worlds>)), ...);
}

#if SYMM_LINES
template <int... Worlds>
void enter_meetings(WireKernels& kernels) {
  int index = 0;
  ((kernels.few_tiles[index++].whole =
        reinterpret_cast<const void*>(&few_tiles_kernel<LineTile, Worlds, MeetingRules, true>)),
   ...);
}
#endif

}  // namespace

WireKernels barrier_kernels() {
  WireKernels kernels;
  enter_barriers<LLTile, 2, 4, 8, 0>(kernels, WireKind::kLL);
#if SYMM_LINES
  kernels.of[static_cast<std::size_t>(WireKind::kLine)][kWireWorldCount - 1] =
      reinterpret_cast<const void*>(&barrier_kernel<LineTile, 0>);
  enter_meetings<2, 4, 8>(kernels);
#endif
  return kernels;
}
WireKernels copies_barrier_kernels() {
  WireKernels kernels;
  const auto enter = [&](WireKind kind, const void* kernel) {
    kernels.of[static_cast<std::size_t>(kind)][kWireWorldCount - 1] = kernel;
  };
  enter(WireKind::kLL, reinterpret_cast<const void*>(&copies_barrier_kernel<LLTile, 0>));
#if SYMM_LINES
  enter(WireKind::kLine, reinterpret_cast<const void*>(&copies_barrier_kernel<LineTile, 0>));
#endif
  return kernels;
}

}  // namespace symm
