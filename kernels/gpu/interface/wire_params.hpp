// The parameters of a kernel of kernels/gpu/wire. Plain data; pointers are device addresses of this
// process.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/core/dtype.hpp"
#include "kernels/core/reduce_op.hpp"
#include "kernels/protocol/device_layout.hpp"

namespace symm {

// World sizes for which kernels are compiled; 0: any.
inline constexpr int kWireWorlds[] = {2, 4, 8, 0};
inline constexpr int kWireWorldCount = 4;
inline constexpr int kTileThreads = 32;  // that share a tile
// NOTE [Blocks of a multiprocessor]
// A multiprocessor of NVIDIA gives out registers by its four quarters. Two blocks of nine or ten
// warps, of which a quarter gets two or three, fit on it only at times where threads have more than
// 80 registers (launch bounds of two blocks allow 96: they count threads); of eight warps two
// always do, up to 128 (docs/gpu.md, "Blocks of ten warps"). All blocks of a launch must be
// resident, of all ranks that share a GPU: where one a multiprocessor would not be enough for them,
// blocks have eight warps.
//
// Tiles of a block before there are more blocks. Where there are as many as can be, a block takes
// more of them at once: nine are what a power of two of bytes has there.
inline constexpr std::uint32_t kWireTiles = 8;
inline constexpr int kMostWireThreads = 320;
inline constexpr std::uint32_t kMostWireTiles = kMostWireThreads / kTileThreads;
// Of a block of wire_kernel for so many ranks (0: any), at most: those of more have too few
// registers.
constexpr int wire_threads(int world, WireKind wire) {
  const bool is_wide = world == 2 || (world == 4 && wire == WireKind::kLine);
  return is_wide ? kMostWireThreads : static_cast<int>(kWireTiles) * kTileThreads;
}

// Warps of a block of few_tiles_kernel at most (NOTE [Few tiles] in few_tiles.cuh): as many as a
// multiprocessor has registers for, of eight ranks as above.
constexpr std::uint32_t few_tiles_warps(int world) { return world <= 4 ? 32 : kMostWireTiles; }
// Where there are more tiles than warps: those that a warp has at once, in rounds; 0 for no kernel.
constexpr std::uint32_t tiles_of_round(int world) { return world == 2 ? 3 : world == 4 ? 1 : 0; }

// A range of memory that is sent, or that what arrives is stored to.
struct WirePiece {
  std::byte* data;  // may be null where nothing is stored
  std::uint32_t bytes;
  std::uint32_t tiles;  // of a share (NOTE [Shares] in route.cuh) those of each block
};

// NOTE [Routes]
// A collective is at most two hops. In a hop a rank sends pieces to some ranks and hears from some.
// In the first it sends `send[p]` to p, or `send[rank]` to all of them, and what it hears
//   is placed     the piece of p in take[p];
//   is combined   with its own piece send[rank], in rank order, into take[rank];
//   is relayed    the root's piece to take[rank].
// A second hop sends what was combined or relayed, and places the piece of p in take[p].
//
//                    hop 1                                 hop 2
//   all_reduce       the same to all, combine
//   , large          slice p to p, combine                 to all, place
//   reduce           the same to the root, combine
//   , large          slice p to p, combine                 to the root, place
//                    (by lanes the root may have no slice, and combines nothing)
//   reduce_scatter   share p to p, combine
//   all_gather       the same to all, place
//   all_to_all       share p to p, place
//   broadcast        root: the same to all; place
//   , large          root: slice p to p; relay             to all but the root, place
//   gather           the same to the root, place
//   scatter          root: share p to p; place
//
// Sizes are those of one launch. All ranks launch equally many blocks, with the same
// tiles_per_block.
template <int kRanks>
struct WireParams {
  std::int32_t rank;
  std::int32_t world_size;
  std::int32_t root;
  std::int32_t divisor;  // AVG: world size; else 0
  bool sends_same;
  bool combines;
  bool relays;
  bool copies_own;     // send[rank] to take[rank]
  bool premultiplies;  // PREMUL_SUM
  bool ends_call;      // the last of the launches of a call
  bool counts_calls;   // in the page of host memory
  Dtype dtype;         // this and op: the compiled rule of a reduction
  ReduceOp op;
  std::uint32_t poll_period;
  // Of every piece, of shares at most; in a box, those of hop 2 follow.
  std::uint32_t tiles_per_block;
  std::uint32_t share_blocks;  // NOTE [Shares] in route.cuh: that have shares
  std::uint32_t box_tiles;     // the tile behind them is the factor's
  std::uint64_t factor;        // the bits of the double
  std::uint64_t sends[2];      // in hop 1 and 2, to whom: a bit a rank
  std::uint64_t hears[2];      // from whom
  std::uint64_t poison;        // NOTE [Poison] in poison.cuh; 0: none
  std::uint64_t stores;        // whose `take` this rank writes
  std::uint64_t timeout_ns;
  std::uint64_t local;  // offsets in a segment
  std::uint64_t done;
  std::uint64_t boxes;
  std::uint64_t box_bytes;
  std::uint64_t box_blocks;
  DevicePage* page;
  std::byte* segments[kRanks];  // by rank
  WirePiece send[kRanks];
  WirePiece take[kRanks];
};

// Ranks that the parameters of a kernel for world size N hold.
template <int N>
inline constexpr int kWireRanks = N == 0 ? kMaxDeviceRanks : N;

}  // namespace symm
