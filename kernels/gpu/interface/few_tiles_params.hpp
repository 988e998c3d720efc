// The parameters of a kernel of kernels/gpu/wire/few_tiles.cuh. Plain data; pointers are device
// addresses of this process.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/gpu/interface/call_params.hpp"
#include "kernels/gpu/interface/wire_params.hpp"
#include "kernels/protocol/device_layout.hpp"

namespace symm {

// What WireParams say of one peer, ready for use: addresses of block 0 in an epoch that is even.
struct FewTilesPeer {
  std::byte* to;        // this rank's box at the peer
  std::byte* from;      // the peer's box here
  std::uint64_t* done;  // where the peer reads which epoch this rank has ended
  WirePiece send;       // `tiles` of pieces: of shares alone (NOTE [Shares] in route.cuh)
  WirePiece take;
};

// Peers are the other ranks in ascending order; their sets are bits by that order. Where the kernel
// has no rounds a warp has at most one tile of every piece.
template <int kPeers>
struct FewTilesParams {
  FewTilesPeer peers[kPeers];
  WirePiece own_send;  // what is combined or copied here; empty where nothing is
  WirePiece own_take;
  LocalState* local;
  DevicePage* page;
  const std::uint64_t* done;  // of rank 0, as this rank knows it
  std::uint64_t timeout_ns;
  std::uint64_t poison;      // NOTE [Poison] in poison.cuh; 0: none
  std::uint32_t box_step;    // from a box of one block to that of the next, in bytes
  std::uint32_t box_blocks;  // so many of these to the boxes of odd epochs
  std::uint32_t tiles_per_block;
  std::uint32_t share_blocks;  // NOTE [Shares]: that have shares
  std::uint32_t poll_period;
  std::uint32_t sends[2];  // in hop 1 and 2
  std::uint32_t hears[2];
  std::uint32_t stores;  // whose `take` this rank writes
  std::int32_t divisor;  // AVG: world size; else 0
  std::uint8_t rank;
  std::uint8_t root;  // the peer whose pieces are relayed
  bool combines;
  bool relays;
  bool copies_own;    // own_send to own_take
  bool stores_own;    // own_take
  bool ends_call;     // the last launch of a call
  bool counts_calls;  // in the page of host memory
};

}  // namespace symm
