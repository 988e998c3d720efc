// The kernels of collectives over a wire.
#pragma once

#include "kernels/gpu/interface/kernel_table.hpp"
#include "kernels/gpu/wire/route.cuh"

namespace symm {

template <class Tile, int N, class Rules>
__global__ void SYMM_LAUNCH_BOUNDS(kWireThreads, 2)
    wire_kernel(const SYMM_GRID_CONSTANT WireParams<kWireRanks<N>> params) {
  __shared__ double factors[kMaxDeviceRanks];
  Route<Tile, N, Rules> route(params);
  if (route.run(factors)) {
    route.end();
  } else {
    poison_pieces<Tile>(params);
  }
}

template <class Tile, class Rules>
void enter_wire_worlds(WireKernels& kernels, WireKind kind) {
  auto& row = kernels.of[static_cast<std::size_t>(kind)];
  row[0] = reinterpret_cast<const void*>(&wire_kernel<Tile, 2, Rules>);
  row[1] = reinterpret_cast<const void*>(&wire_kernel<Tile, 4, Rules>);
  row[2] = reinterpret_cast<const void*>(&wire_kernel<Tile, 8, Rules>);
}
template <class Tile, class Rules>
void enter_wire(WireKernels& kernels, WireKind kind) {
  kernels.of[static_cast<std::size_t>(kind)][3] =
      reinterpret_cast<const void*>(&wire_kernel<Tile, 0, Rules>);
}

// The kernels of `Rules`. What is common and has lines is compiled for each world size.
template <class Rules, bool kIsCommon>
WireKernels wire_kernels() {
  WireKernels kernels;
  enter_wire<LLTile, Rules>(kernels, WireKind::kLL);
#if SYMM_LINES
  enter_wire<LineTile, Rules>(kernels, WireKind::kLine);
  if constexpr (kIsCommon) enter_wire_worlds<LineTile, Rules>(kernels, WireKind::kLine);
#endif
  return kernels;
}

}  // namespace symm
