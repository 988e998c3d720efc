// The device memory of one group on one rank, and the page of host memory that its GPU writes.
//
// NOTE [Device memory of a group]
// Each rank allocates one segment, laid out alike on every rank, and maps every peer's:
//
//   signals      the peers' progress, written by them
//   local        counters that only this rank's GPU reads and writes
//   table        addresses of the group's symmetric segments, for reading in place
//   wire boxes   tiles from peers: two sets, by parity of a block's epoch, of one box a block and
//                sender
//   p2p boxes    tiles of messages from peers: kP2pBoxes boxes a p2p channel
//   message slots  chunks of longer messages from peers, by sender and tag channel
//   bulk slots   chunks from peers: kBulkSlots slots a lane, hop and sender
//
// All of it is zero at the start. Counters only grow (NOTE [Steps] in kernels/protocol/signal.hpp)
// and live in device memory, so that a captured graph replays. Nothing here is ever reset.
//
// Host and device; free of vendor headers; owns nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/core/platform.hpp"

namespace symm {

// Ranks of one group that share a host and use GPUs.
inline constexpr int kMaxDeviceRanks = 64;

// Blocks of a collective at most; a plan's `channels`.
inline constexpr int kMaxChannels = 64;

// Symmetric segments that one group can know.
inline constexpr int kMaxSegments = 256;

// Tag channels from one rank to another: number tag % kTagChannels carries the messages with that
// tag. So messages whose tags differ modulo kTagChannels never wait for each other.
inline constexpr int kTagChannels = 4;
// Messages in boxes go through the p2p channels of their tag channel, of which a large group has
// fewer.
inline constexpr int kMostP2pChannelsPerTag = 32;
inline constexpr int kLeastP2pChannelsPerTag = 8;
inline constexpr int kP2pChannels = kTagChannels * kMostP2pChannelsPerTag;
inline constexpr std::uint32_t kP2pBoxes = 4;
// Blocks for the messages of a peer and direction at most, where a collective has `most_blocks`:
// half, so that sends and recvs together have as many.
SYMM_INLINE constexpr int blocks_of_messages(int most_blocks) {
  return most_blocks < 2 ? 1 : most_blocks / 2;
}
// The largest message that one p2p channel carries alone has, with its header, so many tiles: a
// unit for each thread of a block. And the part of a longer one that one has, where there are
// channels enough.
inline constexpr std::uint32_t kTilesOfUndivided = 16;
inline constexpr std::uint32_t kGoodMessagePart = 4u << 10;
// By lines a part may take so many boxes, one after the other; by LL one.
inline constexpr std::uint32_t kMostBoxesOfPart = 1024;
// Longer ones go as chunks through the slots of their tag channel (NOTE [Chunks of messages] in
// kernels/gpu/wire/message_chunks.cuh): at most so many, a power of two, and fewer where a part
// of them would be smaller.
inline constexpr std::uint32_t kMostMessageSlots = 512;
inline constexpr std::uint32_t kLeastMessageSlots = 2;
// How large they are, in parts of what a sender has: most programs use tag 0 alone, whose tag
// channel has most.
inline constexpr std::uint32_t kSlotPartsOfTag0 = 13;
inline constexpr std::uint32_t kSlotPartsOfSender = kSlotPartsOfTag0 + kTagChannels - 1;
// The same of p2p boxes: those of tag 0 are larger. Of two ranks they are 24 KiB, three tiles for
// each warp of a block, so that messages of 750 KiB go by LL and of 1.4 GiB by lines. Such sizes
// take less time by tiles than as chunks with a fence each, or as much (docs/experiments.md,
// "Messages").
inline constexpr std::uint32_t kBoxPartsOfTag0 = 12;
inline constexpr std::uint32_t kBoxPartsOfSender = kBoxPartsOfTag0 + kTagChannels - 1;
inline constexpr std::uint64_t kMostP2pBoxPart = 4u << 10;
inline constexpr std::uint64_t kP2pBoxUnit = 1u << 10;  // a tile of LL, two of lines

// That chunks, of messages and of lanes, are a multiple of, and of how many bytes at least.
inline constexpr std::uint32_t kChunkUnit = 512;
inline constexpr std::uint32_t kLeastChunk = 1024;

// Beside a chunk.
struct alignas(16) MessageHeader {
  std::uint64_t bytes;  // of the whole message
  std::int64_t tag;
};
// Before the data in a box.
struct alignas(16) BoxHeader {
  std::uint32_t bytes;     // of the whole message
  std::uint32_t position;  // NOTE [Position of a message] in kernels/gpu/wire/message.cuh
  std::int64_t tag;
};
constexpr int tag_channel_of(std::int64_t tag) {
  return static_cast<int>(static_cast<std::uint64_t>(tag) % kTagChannels);
}

// How data and its epoch travel in one store (NOTE [Wires] in kernels/gpu/wire/tile.cuh); the same
// on all ranks of a group.
enum class WireKind : std::uint8_t {
  kLL,    // 8 bytes in 16
  kLine,  // 120 bytes in 128; NVIDIA GPUs with NVLink between all pairs
};
inline constexpr int kWireKindCount = 2;

// Blocks of a collective over a wire, each with epochs and boxes of its own.
inline constexpr int kMaxWireBlocks = 64;
// Of all ranks that share a GPU, at most, where two fit on a multiprocessor: all must be resident.
inline constexpr int kMostWireBlocksOfGpu = 256;
// A box holds at least the tiles of two hops of an LL wire, and the factor of PREMUL_SUM.
inline constexpr std::uint64_t kLeastWireBox = 4096;

// Blocks of a collective by lanes of warps (NOTE [Lanes] in kernels/gpu/wire/lane.cuh), and the
// warps of a block at most.
inline constexpr int kMaxBulkBlocks = 64;
// Of all ranks that share a GPU, at most: each fills a multiprocessor, and all must be resident.
inline constexpr int kMostBulkBlocksOfGpu = 128;
inline constexpr int kBulkThreads = 1024;
inline constexpr int kMostBulkWarps = kBulkThreads / 32;
inline constexpr int kBulkHops = 2;
inline constexpr std::uint32_t kBulkSlots = 2;  // of a lane, hop and sender; a power of two
inline constexpr std::uint64_t kLeastBulkSlot = 1024;
inline constexpr std::uint64_t kGoodBulkSlot = 8u << 10;
inline constexpr std::uint64_t kMostBulkSlot = 32u << 10;

// Lanes that a group has at most: of three warps, for two hops, in all blocks. And how few there
// may be before slots become half of what is good, and smaller still.
inline constexpr int kMostLanes = kMaxBulkBlocks * kBulkHops * (kMostBulkWarps / 3);
inline constexpr int kFewLanes = 512;
inline constexpr int kLeastLanes = 16;

// Each warp of a lane has a place for each rank in the block's memory.
inline constexpr int kMostLaneWarps = 7;
inline constexpr int kBulkPlaces = 448;
static_assert(kBulkPlaces >= kMostLaneWarps * kMaxDeviceRanks);
SYMM_INLINE constexpr int lanes_of_block(int warps_of_lane, int world_size, int warps_of_block) {
  const int with_places = kBulkPlaces / world_size;
  return (with_places < warps_of_block ? with_places : warps_of_block) / warps_of_lane;
}

// What goes with a chunk.
struct alignas(16) ChunkHeader {
  std::uint64_t bytes;  // of the whole piece; and kDirectChunk where the chunk is in no slot
  double factor;        // the sender's of PREMUL_SUM
};
inline constexpr std::uint64_t kDirectChunk = std::uint64_t{1} << 63;

// Location {segment, offset} of a rank's buffer: 0 for none, else 1 + the segment's row of `table`
// in the upper 16 bits and the offset in bytes in the lower 48.
using BufferLocation = std::uint64_t;
inline constexpr int kLocationShift = 48;

// Memory of this rank in a symmetric segment of its group.
struct SymmetricRange {
  std::byte* data;  // in this process
  std::uint64_t bytes;
  BufferLocation location;  // of `data`
};

// Where a piece is to be stored that goes without slots, and which chunk is its first: 0 for none,
// else its number and a bit above.
struct alignas(16) ChunkTarget {
  BufferLocation location;
  std::uint64_t first;
};
constexpr std::uint64_t target_first(std::uint32_t number) {
  return std::uint64_t{1} << 32 | number;
}

// Of one lane, hop and peer of this rank: what the peer has sent, and what it has taken of what
// this rank sent. Chunks are counted from the group's start.
struct BulkSignal {
  alignas(kCacheLine) std::uint32_t filled;
  alignas(16) ChunkHeader headers[kBulkSlots];
  alignas(kCacheLine) std::uint32_t freed;
  ChunkTarget target;  // in the peer's memory
};

// The same, as this rank's GPU counts it.
struct alignas(8) BulkCount {
  std::uint32_t sent;
  std::uint32_t received;
};

// Boxes of a block, by sender: a rank's own is unused, since addresses are cheaper so; but two
// ranks, which have one sender each, have one box.
constexpr int wire_senders(int world_size) { return world_size == 2 ? 1 : world_size; }

// A tile is what 32 threads store at once: bytes of data, and the space that they take in a box.
struct WireTile {
  std::uint32_t bytes;
  std::uint32_t space;
};
constexpr WireTile wire_tile(WireKind kind) {
  return kind == WireKind::kLine ? WireTile{480, 512} : WireTile{512, 1024};
}

// Where the tensors of a call lie that ranks compare: two locations, of which the second may be 0.
struct alignas(16) MeetingLocations {
  BufferLocation first;
  BufferLocation second;
};

// Signals of a peer's block to the same block of this rank (NOTE [Meetings] in
// kernels/gpu/device/block_meeting.cuh), counted in calls.
struct alignas(kCacheLine) MeetingSignal {
  std::uint64_t entered;
  std::uint64_t done;
  MeetingLocations locations;  // of the call entered last
};

// Signals of one peer to one slot of a tag channel: what the peer has sent to this rank's, and what
// it has taken from its own of what this rank sent. Chunks are counted from the group's start.
struct alignas(kCacheLine) MessageSignal {
  std::uint64_t filled;  // the chunk's number + 1; in the upper half the position of its message
  std::uint32_t freed;
  MessageHeader header;
};

// LocalState::sequence in units: the blocks of a launch each add a part, so that it passes the next
// multiple with the last of them, whichever that is.
inline constexpr std::uint64_t kSequenceUnit = 1u << 16;

struct P2pCounter {
  std::uint64_t sent;      // boxes filled at the peer, ever
  std::uint64_t received;  // and emptied here
};

// How a message goes in chunks: what its size and tag channel say, so that both its ends cut it
// alike.
struct MessageCut {
  std::uint32_t chunk;   // bytes, but for the last
  std::uint32_t chunks;  // at least 1
};

// This rank's GPU writes it, and alone reads it, but for `dead`.
struct alignas(kCacheLine) LocalState {
  std::uint32_t launch_ticket;  // blocks that have finished the running multimem
  std::uint32_t dead;           // the group failed: kernels end at once, and peers look
  std::uint64_t sequence;       // collectives that have ended, in units of kSequenceUnit
  alignas(kCacheLine) std::uint64_t wire_epoch[kMaxWireBlocks];  // calls of the block so far
  // The last epoch of the block in which a tile of the peer came.
  std::uint64_t wire_heard[kMaxWireBlocks][kMaxDeviceRanks];
  // NOTE [Values of blocks] in kernels/gpu/wire/block_values.cuh
  alignas(kCacheLine) std::uint64_t block_values[kMaxWireBlocks][4];
  alignas(kCacheLine) std::uint64_t meetings[kMaxChannels];  // of the block so far
  alignas(kCacheLine) P2pCounter p2p_channels[kMaxDeviceRanks][kP2pChannels];
  std::uint32_t tag_tickets[kMaxDeviceRanks][kTagChannels][2];     // [..][0] send, [..][1] recv
  std::uint32_t message_chunks[kMaxDeviceRanks][kTagChannels][2];  // sent or received, ever
  std::uint64_t messages[kMaxDeviceRanks][kTagChannels][2];        // that have ended
};

// Offsets in bytes from the start of a rank's segment; the same on every rank.
struct DeviceLayout {
  std::uint64_t meeting_signals;  // [kMaxChannels][world_size] MeetingSignal
  std::uint64_t wire_done;    // [world_size][wire_blocks] uint64: epoch that the peer's block ended
  std::uint64_t p2p_freed;    // [world_size][kP2pChannels] uint32: boxes that the peer has freed
  std::uint64_t local;        // LocalState
  std::uint64_t table;        // [kMaxSegments][world_size] pointers
  std::uint64_t wire_boxes;   // [2][wire_blocks][wire_senders()] of wire_box_bytes
  std::uint64_t wire_blocks;  // at most kMaxWireBlocks
  std::uint64_t wire_box_bytes;
  // [world_size - 1][kTagChannels][p2p_channels][kP2pBoxes] of p2p_box_bytes()
  std::uint64_t p2p_boxes;
  std::uint32_t p2p_channels;  // of a tag channel, a power of two
  std::uint64_t p2p_box_part;  // 0 where not even a tile would fit: then there are no boxes
  // By WireKind, that fits in a box behind the header: of tag 0, and of others.
  std::uint32_t p2p_data_of_box[kWireKindCount][2];
  std::uint64_t message_signals;  // [world_size][kTagChannels][message_slots_of_tag] MessageSignal
  // [world_size - 1][kTagChannels][message_slots_of_tag] of message_slot_bytes()
  std::uint64_t message_slots;
  std::uint32_t message_slots_of_tag;  // a power of two
  std::uint32_t message_slot_part;     // bytes of a slot with one part
  // At most kMostLanes. A launch of two hops has at most half of them, and hop 2 the others.
  std::uint64_t bulk_lanes;
  std::uint64_t bulk_second_hop;  // the first lane of hop 2
  std::uint64_t bulk_signals;     // [bulk_lanes][world_size] BulkSignal
  std::uint64_t bulk_counts;      // [bulk_lanes][world_size] BulkCount
  std::uint64_t bulk_slots;       // [bulk_lanes][world_size - 1][kBulkSlots] of bulk_slot_bytes
  std::uint64_t bulk_slot_bytes;
  std::uint64_t total_bytes;

  // `workspace_bytes`: wire boxes and all slots together; p2p boxes are beside it; at least
  // kLeastDeviceWorkspace. `most_blocks` of a collective, by which messages have p2p channels.
  static DeviceLayout of(int world_size, std::uint64_t workspace_bytes,
                         int most_blocks = kMaxChannels);

  // Tiles of a box; the last is kept for PREMUL_SUM's factor.
  constexpr std::uint32_t wire_box_tiles(WireKind kind) const {
    return static_cast<std::uint32_t>(wire_box_bytes / wire_tile(kind).space) - 1;
  }
  constexpr std::uint32_t p2p_box_bytes(int tag_channel) const {
    return p2p_box_part * (tag_channel == 0 ? kBoxPartsOfTag0 : 1);
  }
  // Box `count` of p2p channel `channel` of a tag channel, from a sender, by the sender's number
  // among the others. All boxes together are less than 4 GiB.
  constexpr std::uint64_t p2p_box(int sender, int tag_channel, int channel,
                                  std::uint32_t count) const {
    const auto tag = static_cast<std::uint32_t>(tag_channel);
    const std::uint32_t tags = tag == 0 ? 0 : kBoxPartsOfTag0 + tag - 1;
    const std::uint32_t parts = static_cast<std::uint32_t>(sender) * kBoxPartsOfSender + tags;
    const std::uint32_t number =
        static_cast<std::uint32_t>(channel) * kP2pBoxes + count % kP2pBoxes;
    return p2p_boxes +
           (parts * p2p_channels * kP2pBoxes * p2p_box_part + number * p2p_box_bytes(tag_channel));
  }
  constexpr std::uint32_t p2p_box_tiles(int tag_channel, WireKind kind) const {
    return p2p_box_bytes(tag_channel) / wire_tile(kind).space;
  }
  static constexpr std::uint32_t most_undivided(WireKind kind) {
    return kTilesOfUndivided * wire_tile(kind).bytes - kCacheLine;
  }
  // Data that fits in a box, behind the header.
  constexpr std::uint32_t p2p_box_data(int tag_channel, WireKind kind) const {
    return p2p_data_of_box[static_cast<int>(kind)][tag_channel == 0 ? 0 : 1];
  }
  constexpr std::uint32_t message_slot_bytes(int tag_channel) const {
    return message_slot_part * (tag_channel == 0 ? kSlotPartsOfTag0 : 1);
  }
  // The slot for chunk `number` of a sender, by the sender's number among the others.
  constexpr std::uint64_t message_slot(int sender, int tag_channel, std::uint32_t number) const {
    std::uint32_t parts = static_cast<std::uint32_t>(sender) * kSlotPartsOfSender;
    if (tag_channel > 0) parts += kSlotPartsOfTag0 + static_cast<std::uint32_t>(tag_channel - 1);
    return message_slots + std::uint64_t{parts} * message_slots_of_tag * message_slot_part +
           std::uint64_t{slot_of(number)} * message_slot_bytes(tag_channel);
  }
  constexpr std::uint64_t message_signal(int peer, int tag_channel, std::uint32_t number) const {
    const auto tag = static_cast<std::uint32_t>(peer * kTagChannels + tag_channel);
    return message_signals +
           std::uint64_t{tag * message_slots_of_tag + slot_of(number)} * sizeof(MessageSignal);
  }
  // That send or receive the chunks of a tag channel at most: two slots for each, so that one is
  // filled while the other is emptied.
  constexpr std::uint32_t message_warps() const { return message_slots_of_tag / 2; }
  constexpr std::uint32_t slot_of(std::uint32_t chunk) const {
    return chunk & (message_slots_of_tag - 1);
  }
  // A chunk for each warp that there can be, as far as chunks stay large enough, and fit.
  constexpr MessageCut message_cut(std::uint64_t bytes, int tag_channel) const {
    const auto units = static_cast<std::uint32_t>((bytes + kChunkUnit - 1) / kChunkUnit);
    const std::uint32_t most = message_slot_bytes(tag_channel) / kChunkUnit;
    const std::uint32_t fair = units == 0 ? 0 : (units - 1) / message_warps() + 1;
    const auto least = static_cast<std::uint32_t>(min_size(kLeastChunk / kChunkUnit, most));
    const std::uint32_t chunk = fair > most ? most : fair < least ? least : fair;
    return {chunk * kChunkUnit, units == 0 ? 1 : (units - 1) / chunk + 1};
  }
  // Whether a message goes through boxes, of each p2p channel that has a part of it. This and the
  // next follow from size, tag and the pair's kind of tile alone, so that the two ends agree. (If
  // their sizes differ, that is found: transfer.cu.)
  constexpr bool goes_in_boxes(std::uint64_t bytes, int tag_channel, WireKind kind) const {
    return p2p_box_part != 0 && bytes <= most_in_boxes(tag_channel, kind);
  }
  constexpr std::uint64_t most_in_boxes(int tag_channel, WireKind kind) const {
    const std::uint32_t boxes = kind == WireKind::kLine ? kMostBoxesOfPart : 1;
    return std::uint64_t{boxes} * p2p_channels * p2p_box_data(tag_channel, kind);
  }
  constexpr std::uint32_t p2p_channels_of(std::uint64_t bytes, int tag_channel,
                                          WireKind kind) const {
    const std::uint32_t data = p2p_box_data(tag_channel, kind);
    if (bytes <= min_size(data, most_undivided(kind))) return 1;
    const auto part = static_cast<std::uint32_t>(min_size(data, kGoodMessagePart));
    std::uint32_t channels = 1;
    while (channels < p2p_channels && channels * part < bytes) channels *= 2;
    return channels;
  }
};

inline constexpr std::uint64_t kLeastDeviceWorkspace = 4u << 20;
inline constexpr std::uint64_t kMostDeviceWorkspace = std::uint64_t{1} << 32;
inline constexpr std::uint64_t kDeviceWorkspaceUnit = 1u << 20;

// Why a kernel gave up.
enum class DeviceFault : std::uint32_t {
  kNone = 0,
  kAborted = 1,        // the abort word was set
  kTimeout = 2,        // `peer` did not arrive within the time-out
  kCountMismatch = 3,  // `peer` sends `theirs` bytes where `mine` are expected
  kTagMismatch = 4,    // `peer` sent a message of tag `theirs` where `mine` is expected
  kAsymmetricUse = 5,  // `peer` used another offset of its segment than this rank
  kPeerGaveUp = 6,     // `peer` gave up before its memory was read, or withdrew its signal
  kWrongSplits = 7,    // of a row exchange, on all ranks
};

// What a rank's GPU reports to the hosts of the group. Shared host memory that the GPU maps;
// written by this rank alone (its GPU, except `abort`), read by all hosts.
struct alignas(4096) DevicePage {
  std::uint32_t abort;                        // written by this rank's host: kernels end
  alignas(kCacheLine) std::uint64_t entered;  // collectives begun, replays of graphs included
  std::uint64_t completed;                    // collectives that succeeded

  struct alignas(kCacheLine) Report {
    std::uint32_t fault;  // DeviceFault; written last
    std::int32_t peer;    // group rank
    std::uint64_t sequence;
    std::uint32_t transfer;  // 1: of a send or recv, whose number `sequence` then is
    std::uint32_t reserved;
    std::uint64_t theirs;
    std::uint64_t mine;
  } report;

  // Messages begun and ended by peer, tag channel and direction (0: send, 1: recv).
  alignas(kCacheLine) std::uint64_t messages_entered[kMaxDeviceRanks][kTagChannels][2];
  std::uint64_t messages_completed[kMaxDeviceRanks][kTagChannels][2];
};

}  // namespace symm
