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

// NOTE [Routes] in wire_params.hpp says what the hops of a call are. All ranks launch equally many
// blocks, with the same roles and slot_bytes.
template <int kRanks>
struct BulkParams {
  std::int32_t rank;
  std::int32_t world_size;
  std::int32_t root;
  std::int32_t divisor;  // AVG: world size; else 0
  bool sends_same;
  bool combines;
  bool relays;
  bool copies_own;     // send[rank] to take[rank]
  bool premultiplies;  // PREMUL_SUM
  bool counts_calls;   // in the page of host memory
  bool has_table;      // this rank knows symmetric segments: peers may want direct chunks
  Dtype dtype;         // this and op: the compiled rule of a reduction
  ReduceOp op;
  std::int32_t roles;  // of a lane, on the rank that has most of them
  std::uint32_t poll_period;
  std::uint32_t slot_bytes;  // hence at most of a chunk
  double factor;
  std::uint64_t poison;  // NOTE [Poison] in poison.cuh; 0: none
  std::uint64_t
      second_hop;  // to whom this rank sends what it has combined or relayed: a bit a rank
  std::uint64_t timeout_ns;
  std::uint64_t local;  // offsets in a segment, as in DeviceLayout
  std::uint64_t signals;
  std::uint64_t counts;
  std::uint64_t slots;
  std::uint64_t table;
  SymmetricRange output;  // where peers may store this rank's output; without bytes nowhere
  std::uint32_t second_hop_lanes;  // the first of them
  std::uint8_t sender_count;
  std::uint8_t placer_count;
  std::uint8_t senders[kRanks];  // to whom this rank sends in hop 1, and from whom it places
  std::uint8_t placers[kRanks];  // pieces in the last hop, in the order in which it does
  DevicePage* page;
  std::byte* segments[kRanks];  // by rank
  BulkPiece send[kRanks];
  BulkPiece take[kRanks];
};

}  // namespace symm
