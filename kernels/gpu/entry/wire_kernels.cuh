// The kernels of collectives over a wire.
#pragma once

#include "kernels/gpu/interface/kernel_table.hpp"
#include "kernels/gpu/wire/few_tiles.cuh"
#include "kernels/gpu/wire/route.cuh"
#include "kernels/gpu/wire/tile_sets.cuh"

namespace symm {

template <class Tile, class Route, class Params>
__device__ __forceinline__ void run_route(const Params& params) {
  if constexpr (Route::kByShares && !Tile::kEpochsRepeat) {
    if (blockIdx.x >= params.share_blocks) {
      end_idle_blocks(params);
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

template <class Tile, int N, class Rules>
__global__ void SYMM_LAUNCH_BOUNDS(wire_threads(N, Tile::kKind), 2)
    wire_kernel(const SYMM_GRID_CONSTANT WireParams<kWireRanks<N>> params) {
  run_route<Tile, Route<Tile, N, Rules>>(params);
}

// NOTE [Sets of tiles] in tile_sets.cuh.
template <class Tile, int N, class Rules>
__global__ void SYMM_LAUNCH_BOUNDS(kMostWireThreads, 2)
    set_wire_kernel(const SYMM_GRID_CONSTANT WireParams<kWireRanks<N>> params) {
  run_route<Tile, SetRoute<Tile, N, Rules>>(params);
}

// Two blocks of kMostWireThreads fit on a multiprocessor, whatever the kernel can have at most.
template <int N>
inline constexpr int kFewTilesThreads = static_cast<int>(few_tiles_warps(N)) * kTileThreads;

template <class Tile, int N, class Rules, bool kWhole, bool kHasRounds = false>
__global__ void SYMM_LAUNCH_BOUNDS(kFewTilesThreads<N>,
                                   kFewTilesThreads<N> <= kMostWireThreads ? 2 : 1)
    few_tiles_kernel(const SYMM_GRID_CONSTANT FewTilesParams<N - 1> params) {
  if (kByShare<Rules> && blockIdx.x >= params.share_blocks) {
    end_idle_blocks(params);
    return;
  }
  FewTiles<Tile, N, Rules, kWhole, kHasRounds> call(params);
  if (call.run()) {
    call.end();
  } else {
    poison_tiles<Tile, kByShare<Rules>>(params);
  }
}

template <class Tile, class Rules, OwnKernels kOwn>
void enter_wire(WireKernels& kernels, WireKind kind) {
  auto& row = kernels.of[static_cast<std::size_t>(kind)];
  row[3] = reinterpret_cast<const void*>(&wire_kernel<Tile, 0, Rules>);
  if constexpr (kOwn >= OwnKernels::kFour && Tile::kKind == WireKind::kLine) {
    row[0] = reinterpret_cast<const void*>(&set_wire_kernel<Tile, 2, Rules>);
    kernels.two_take_sets = true;
  } else if constexpr (kOwn >= OwnKernels::kTwo) {
    row[0] = reinterpret_cast<const void*>(&wire_kernel<Tile, 2, Rules>);
  }
  if constexpr (kOwn >= OwnKernels::kFour) {
    row[1] = reinterpret_cast<const void*>(&wire_kernel<Tile, 4, Rules>);
  }
  if constexpr (kOwn == OwnKernels::kCommon) {
    row[2] = reinterpret_cast<const void*>(&wire_kernel<Tile, 8, Rules>);
  }
}

#if SYMM_LINES
template <int N, class Rules, OwnKernels kOwn>
void enter_few_tiles(FewTilesKernels& kernels) {
  constexpr bool kIsCommon = kOwn == OwnKernels::kCommon;
  kernels.whole = reinterpret_cast<const void*>(&few_tiles_kernel<LineTile, N, Rules, true>);
  if constexpr (tiles_of_round(N) != 0 && kIsCommon) {
    kernels.rounds =
        reinterpret_cast<const void*>(&few_tiles_kernel<LineTile, N, Rules, true, true>);
  }
  if constexpr (N <= 4 && kIsCommon && !kByShare<Rules>) {
    kernels.any = reinterpret_cast<const void*>(&few_tiles_kernel<LineTile, N, Rules, false>);
  }
}
#endif

// The kernels of `Rules`; `kOwnOfLL`: those of an LL wire.
template <class Rules, OwnKernels kOwn, OwnKernels kOwnOfLL = OwnKernels::kAny>
WireKernels wire_kernels() {
  WireKernels kernels;
  enter_wire<LLTile, Rules, kOwnOfLL>(kernels, WireKind::kLL);
#if SYMM_LINES
  enter_wire<LineTile, Rules, kOwn>(kernels, WireKind::kLine);
  if constexpr (kOwn >= OwnKernels::kTwo) enter_few_tiles<2, Rules, kOwn>(kernels.few_tiles[0]);
  if constexpr (kOwn == OwnKernels::kCommon) {
    enter_few_tiles<4, Rules, kOwn>(kernels.few_tiles[1]);
    enter_few_tiles<8, Rules, kOwn>(kernels.few_tiles[2]);
  }
#endif
  return kernels;
}

}  // namespace symm
