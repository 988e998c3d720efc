// The kernels of collectives over a wire.
#pragma once

#include "kernels/gpu/interface/kernel_table.hpp"
#include "kernels/gpu/wire/route.cuh"
#include "kernels/gpu/wire/tile_sets.cuh"

namespace symm {

template <class Tile, class Route, class Params>
__device__ __forceinline__ void run_route(const Params& params) {
  if constexpr (Route::kByShares && !Tile::kEpochsRepeat) {
    if (blockIdx.x >= params.share_blocks) {
      end_idle_blocks(params, params.share_blocks);
      return;
    }
  }
  __shared__ double factors[kMaxDeviceRanks];
  Route route(params);
  if (route.run(factors)) {
    route.end();
  } else {
    poison_pieces<Tile, Route::kByShares>(params);
  }
}

template <class Tile, int N, class Rules, int kThreads = wire_threads(N)>
__global__ void SYMM_LAUNCH_BOUNDS(kThreads, 2)
    wire_kernel(const SYMM_GRID_CONSTANT WireParams<kWireRanks<N>> params) {
  run_route<Tile, Route<Tile, N, Rules>>(params);
}

// NOTE [Sets of tiles] in tile_sets.cuh.
template <class Tile, int N, class Rules>
__global__ void SYMM_LAUNCH_BOUNDS(kMostWireThreads, 2)
    set_wire_kernel(const SYMM_GRID_CONSTANT WireParams<kWireRanks<N>> params) {
  run_route<Tile, SetRoute<Tile, N, Rules>>(params);
}

template <class Tile, class Rules, OwnKernels kOwn>
void enter_wire(WireKernels& kernels, WireKind kind) {
  auto& row = kernels.of[static_cast<std::size_t>(kind)];
  row[3] = reinterpret_cast<const void*>(&wire_kernel<Tile, 0, Rules>);
  if constexpr (kOwn >= OwnKernels::kTwo) {
    row[0] = reinterpret_cast<const void*>(&wire_kernel<Tile, 2, Rules>);
  }
  if constexpr (kOwn >= OwnKernels::kFour) {
    row[1] = reinterpret_cast<const void*>(&wire_kernel<Tile, 4, Rules>);
  }
  if constexpr (kOwn == OwnKernels::kCommon) {
    row[2] = reinterpret_cast<const void*>(&wire_kernel<Tile, 8, Rules>);
  }
}

// The kernels of `Rules`; `kOwnOfLL`: those of an LL wire.
template <class Rules, OwnKernels kOwn, OwnKernels kOwnOfLL = OwnKernels::kAny>
WireKernels wire_kernels() {
  WireKernels kernels;
  enter_wire<LLTile, Rules, kOwnOfLL>(kernels, WireKind::kLL);
#if SYMM_LINES
  enter_wire<LineTile, Rules, kOwn>(kernels, WireKind::kLine);
  if constexpr (kOwn >= OwnKernels::kFour) {
    kernels.large[0] = reinterpret_cast<const void*>(&set_wire_kernel<LineTile, 2, Rules>);
    kernels.large[1] =
        reinterpret_cast<const void*>(&wire_kernel<LineTile, 4, Rules, kMostWireThreads>);
  }
#endif
  return kernels;
}

}  // namespace symm
