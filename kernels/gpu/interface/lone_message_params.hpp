// The parameters of a kernel of kernels/gpu/wire/lone_message.cuh. Plain data; pointers are device
// addresses of this process.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/core/dtype.hpp"
#include "kernels/protocol/device_layout.hpp"

namespace symm {

inline constexpr int kMostLoneMessages = 8;  // of a launch
// Of a block whose warps take several tiles, so many at once.
inline constexpr unsigned kMostLoneWarps = 32;
inline constexpr unsigned kLoneTilesAtOnce = 3;
// Of a part at most. Longer messages go by the kernel for any: measured, this one takes as long
// there, or now longer and now shorter (docs/experiments.md, "Several launches").
inline constexpr unsigned kMostLoneBoxes = 12;

// A message by lines. What there is one of for each p2p channel is that of the first.
struct LoneMessage {
  std::byte* data;
  std::int64_t tag;
  std::uint32_t bytes;
  std::uint32_t part_bytes;  // of each p2p channel, but that the last ones may have less
  std::byte* boxes;          // at the peer where it is sent, else here
  std::uint32_t box_bytes;
  std::uint32_t box_tiles;
  bool is_send;
  std::int8_t peer;
  Dtype dtype;
  std::uint64_t* count;         // boxes filled, or emptied; every second word is of a p2p channel
  std::uint32_t* freed;         // boxes that the peer has freed here, or this rank at the peer
  const std::uint32_t* chunks;  // that went before, of messages in chunks
  std::uint64_t* ended;         // messages
  std::uint32_t* ticket;
  std::uint64_t* entered;  // in the page of host memory
  std::uint64_t* completed;
  const MessageSignal* signals;  // of the peer's chunks
  std::uint32_t slots;           // a power of two
};

// Block x of row y of the grid serves p2p channel x of message y, each of another peer, direction
// or tag channel.
struct LoneMessageParams {
  LocalState* local;
  DevicePage* page;
  std::uint64_t timeout_ns;
  std::uint32_t poll_period;
  bool poisons;
  LoneMessage messages[kMostLoneMessages];
};

// Null where the library has no lines. `whole`: where every message begins and ends at a multiple
// of 16 bytes; `any` else.
struct LoneMessageKernels {
  const void* whole = nullptr;  // where every warp has at most one tile
  const void* any = nullptr;
  const void* many_whole = nullptr;
  const void* many_any = nullptr;
};
LoneMessageKernels lone_message_kernels();  // transfer.cu

}  // namespace symm
