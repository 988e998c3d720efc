// The parameters of a kernel of lanes (NOTE [Lanes] in kernels/gpu/wire/lane.cuh). Plain data;
// pointers are device addresses of this process.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/core/dtype.hpp"
#include "kernels/core/reduce_op.hpp"
#include "kernels/gpu/interface/wire_params.hpp"
#include "kernels/protocol/device_layout.hpp"

namespace symm {

// A range of memory that is sent, or that what arrives is stored to; `data` may be null where
// nothing is stored.
struct BulkPiece {
  std::byte* data;
  std::uint64_t bytes;
};

// What a warp of a lane does (NOTE [Lanes] in lane.cuh): nothing, one of these, or one of them and
// the copy of this rank's own piece.
enum LaneRole : std::uint8_t {
  kLaneSends = 1,
  kLanePasses = 2,
  kLanePlaces = 4,
  kLaneCopiesOwn = 8,
};
// For the peers of number `part` modulo `parts`, counted from this rank on.
struct LaneWarp {
  std::uint8_t role;
  std::uint8_t part;
  std::uint8_t parts;
};

// NOTE [Routes] in wire_params.hpp says what the hops of a call are. All ranks launch equally many
// blocks, with the same warps_of_lane, lanes_of_block and slot_bytes.
template <int kRanks>
struct BulkParams {
  std::int32_t rank;
  std::int32_t world_size;
  std::int32_t root;
  std::int32_t divisor;  // AVG: world size; else 0
  bool sends_same;
  bool combines;
  bool relays;
  bool premultiplies;  // PREMUL_SUM
  bool counts_calls;   // in the page of host memory
  bool has_table;      // this rank knows symmetric segments: peers may want direct chunks
  Dtype dtype;         // this and op: the compiled rule of a reduction
  ReduceOp op;
  std::uint8_t warps_of_lane;
  std::uint8_t lanes_of_block;     // at most, where a block has so many warps
  LaneWarp warps[kMostLaneWarps];  // this rank's
  std::uint32_t poll_period;
  std::uint32_t slot_bytes;  // hence at most of a chunk
  double factor;
  std::uint64_t poison;      // NOTE [Poison] in poison.cuh; 0: none
  std::uint64_t first_hop;   // to whom this rank sends: a bit a rank
  std::uint64_t second_hop;  // to whom it sends what it has combined or relayed
  std::uint64_t placed;      // whose pieces of the last hop it places
  std::uint64_t timeout_ns;
  std::uint64_t local;  // offsets in a segment, as in DeviceLayout
  std::uint64_t signals;
  std::uint64_t counts;
  std::uint64_t slots;
  std::uint64_t table;
  SymmetricRange output;  // where peers may store this rank's output; without bytes nowhere
  std::uint32_t second_hop_lanes;  // the first of them
  DevicePage* page;
  std::byte* segments[kRanks];  // by rank
  BulkPiece send[kRanks];
  BulkPiece take[kRanks];
};

}  // namespace symm
