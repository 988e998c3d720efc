// How an all_reduce with the RMS norm of its rows is launched. Host, free of vendor headers.
#pragma once

#include <cstdint>

#include "kernels/core/collective.hpp"
#include "kernels/gpu/interface/norm_params.hpp"
#include "kernels/gpu/launch/wire_route.hpp"
#include "kernels/protocol/device_layout.hpp"

namespace symm {

// `args.norm` as the kernels get it; rows_per_block is left 0. `args` has been validated.
NormParams norm_params(const CollectiveArgs& args);

// Whether all rows begin and end at multiples of 16 bytes.
bool has_whole_rows(const NormParams& norm);

// What decides whether a call is one launch, the same on all ranks.
struct NormFacts {
  int world_size = 1;
  WireKind wire = WireKind::kLL;
  int most_blocks = 1;
  std::uint32_t box_tiles = 1;
};

// One launch over the wire that sums and norms, where the call is so small that one is best: sets
// rows_per_block and what blocks do in `launch`, and returns true. The same on every rank.
bool fits_norm_launch(NormParams& norm, const NormFacts& facts, WireLaunch& launch);

}  // namespace symm
