// Short messages: tiles through boxes, by a block for each p2p channel.
//
// NOTE [Short messages]
// A p2p channel leads from one rank to another and has kP2pBoxes boxes in the receiver's segment,
// which it takes in turns. A message that fits in boxes goes as LL tiles (NOTE [Wires] in tile.cuh)
// in equal parts, one a p2p channel of its tag channel, a power of two of them: no fence, and no
// count of what is filled. The epoch of a box is its number in its channel. A part begins with its
// header, in the first unit of the first tile, whose position counts the parts of its own p2p
// channel; the first part takes a box even where it is empty, so there that is the message's. A
// message that fits in one box, up to kMostUndividedMessage, has one part. The tiles are LL's in
// every group, since two ranks may exchange messages before their group has chosen a wire. Boxes
// hold tiles alone, as payload in a slot might look like one.
//
// Sender and receiver choose by the size between boxes and chunks. Where their sizes differ they
// may choose differently (NOTE [Position of a message] in message.cuh).
#pragma once

#include "kernels/gpu/wire/message.cuh"

namespace symm {

// Writes the tiles [first, last) of a box, without data. By the whole block.
[[maybe_unused]] static __device__ SYMM_OUTLINED void refresh_tiles(std::byte* box,
                                                                    std::uint32_t first,
                                                                    std::uint32_t last,
                                                                    std::uint64_t flag) {
  for (std::uint32_t tile = first + threadIdx.x / kTileThreads; tile < last;
       tile += blockDim.x / kTileThreads) {
    LLTile::send(box + tile * LLTile::kSpace, Unit{}, flag);
  }
}

class MessageBoxes {
 public:
  // `channel` of the tag channel's.
  __device__ MessageBoxes(const MessageMemory& memory, int channel)
      : memory_(memory), channel_(channel), count_(memory.boxes(channel)) {}

  // Before the first message to the peer.
  __device__ void look_for_credit() { freed_ = load_relaxed(&memory_.own_freed(channel_)); }

  // Both by the whole block, with the same result in every thread. Threads go on by themselves,
  // each when it has credit, or its unit. `next_chunk`: the number of the next chunk to the peer,
  // or from it.
  __device__ bool send(const TransferItem& item, std::uint32_t next_chunk, Waiter& waiter) {
    const Part part = part_of(item);
    if (!part.exists) return true;
    const BoxHeader header{static_cast<std::uint32_t>(item.bytes), position_after(next_chunk),
                           item.tag};
    const std::uint32_t tiles = tiles_of(part.bytes);
    std::uint32_t tile = threadIdx.x / kTileThreads;
    Unit unit = unit_of(header, part, tile);  // while the credit is looked at
    const bool ok = has_credit(waiter);
    if (ok) {
      std::byte* const box = memory_.peer_box(channel_, count_);
      for (; tile < tiles; tile += blockDim.x / kTileThreads) {
        Tile::send(box + tile * Tile::kSpace, unit, flag());
        unit = unit_of(header, part, tile + blockDim.x / kTileThreads);
      }
      refresh(tiles);
    }
    ++count_;
    return block_all(ok);
  }

  __device__ bool receive(const TransferItem& item, std::uint32_t next_chunk, Waiter& waiter) {
    const Part part = part_of(item);
    if (!part.exists) return true;
    bool ok = true;
    for (std::uint32_t tile = threadIdx.x / kTileThreads; ok && tile < tiles_of(part.bytes);
         tile += blockDim.x / kTileThreads) {
      Unit unit;
      ok = has_come(item, tile, next_chunk, waiter, &unit);
      const std::uint32_t offset = offset_of(tile);
      if (!ok || is_header(tile) || offset >= part.bytes) continue;
      store_unit(part.data + offset, unit, min_size(part.bytes - offset, kUnitBytes));
    }
    if (!block_all(ok)) return false;
    ++count_;
    // What was in the box has been loaded, since its epoch was looked at.
    if (threadIdx.x == 0) {
      store_relaxed(&memory_.peer_freed(channel_), static_cast<std::uint32_t>(count_));
    }
    return true;
  }

  // After the last message, where no other block reads the count in this launch.
  __device__ void end() {
    __syncthreads();
    if (threadIdx.x == 0) memory_.boxes(channel_) = count_;
  }

  // Whether a message has a part in a p2p channel of the tag channel.
  __device__ static bool has_part(const MessageMemory& memory, const TransferItem& item,
                                  int channel) {
    return channel == 0 || part_of(memory, item, channel).bytes > 0;
  }

 private:
  using Tile = LLTile;
  // Epochs of LL tiles repeat: in so many the sender writes all of a box once.
  static constexpr std::uint64_t kRefreshPeriod = 1u << 30;

  // Less than 4 GiB, as all messages in boxes.
  struct Part {
    std::byte* data;
    std::uint32_t bytes;
    bool exists;
  };
  __device__ static Part part_of(const MessageMemory& memory, const TransferItem& item,
                                 int channel) {
    const auto bytes = static_cast<std::uint32_t>(item.bytes);
    const std::uint32_t channels = memory.layout().p2p_channels_of(bytes, memory.tag_channel());
    const std::uint32_t share = (bytes + channels - 1) >> (__ffs(static_cast<int>(channels)) - 1);
    constexpr std::uint32_t kLine = kCacheLine;
    const std::uint32_t even = channels == 1 ? bytes : (share + kLine - 1) / kLine * kLine;
    const std::uint32_t begin = min(even * static_cast<std::uint32_t>(channel), bytes);
    const std::uint32_t own = min(even, bytes - begin);
    return {static_cast<std::byte*>(item.data) + begin, own, channel == 0 || own > 0};
  }
  __device__ Part part_of(const TransferItem& item) const {
    return part_of(memory_, item, channel_);
  }

  // Waits until the box may be filled again. Nothing is acquired: the peer has loaded what was in
  // it before it said so.
  __device__ bool has_credit(Waiter& waiter) {
    const auto target = static_cast<std::uint32_t>(count_ + 1 - kP2pBoxes);
    if (has_reached(freed_, target)) return true;
    return waiter.wait(memory_.peer(), [&] {
      freed_ = load_relaxed(&memory_.own_freed(channel_));
      return has_reached(freed_, target);
    });
  }

  // Waits for this thread's unit of a tile; false too, and reported, where it is the header and
  // that of another message.
  __device__ bool has_come(const TransferItem& item, std::uint32_t tile, std::uint32_t next_chunk,
                           Waiter& waiter, Unit* unit) const {
    const int& peer = memory_.peer();
    std::byte* place = memory_.own_box(channel_, count_) + tile * Tile::kSpace;
    if (!is_header(tile)) {
      return waiter.wait(peer, [&] { return Tile::receive(place, flag(), unit); });
    }
    const MessageSignal& chunk = memory_.own_signal(next_chunk);
    const std::uint32_t position = position_after(next_chunk);
    BoxHeader in_box{};
    bool is_short = false;
    std::uint32_t polls = 0;
    const bool came = waiter.wait(peer, [&] {
      if (Tile::receive(place, flag(), unit)) {
        in_box = __builtin_bit_cast(BoxHeader, *unit);
        is_short = in_box.position == position;
      }
      return is_short || (channel_ == 0 && ++polls % kOtherFormPeriod == 0 &&
                          has_chunk(chunk, filled_with(next_chunk, position)));
    });
    if (!came) return false;
    const MessageHeader header =
        is_short ? MessageHeader{in_box.bytes, in_box.tag} : header_of(chunk);
    return matches(header, item, peer, waiter, threadIdx.x == 0);
  }

  // Writes all tiles of the box from `first` on, in the few epochs in which that is due.
  __device__ void refresh(std::uint32_t first) const {
    if (count_ % kRefreshPeriod >= kP2pBoxes) return;
    const auto tiles = static_cast<std::uint32_t>(
        memory_.layout().p2p_box_bytes(memory_.tag_channel()) / Tile::kSpace);
    refresh_tiles(memory_.peer_box(channel_, count_), first, tiles, flag());
  }

  // The header is the first unit, and `offset_of` that of another one in the data of a part.
  __device__ static bool is_header(std::uint32_t tile) { return tile == 0 && tile_thread() == 0; }
  __device__ static std::uint32_t offset_of(std::uint32_t tile) {
    return tile * Tile::kBytes + Tile::offset() - std::uint32_t{sizeof(BoxHeader)};
  }
  __device__ static std::uint32_t tiles_of(std::uint32_t bytes) {
    return (std::uint32_t{sizeof(BoxHeader)} + bytes + Tile::kBytes - 1) / Tile::kBytes;
  }
  __device__ static Unit unit_of(const BoxHeader& header, const Part& part, std::uint32_t tile) {
    if (is_header(tile)) return __builtin_bit_cast(Unit, header);
    const std::uint32_t offset = offset_of(tile);
    if (offset >= part.bytes) return Unit{};
    return load_unit(part.data + offset, min_size(part.bytes - offset, kUnitBytes));
  }
  __device__ std::uint32_t position_after(std::uint32_t chunks) const {
    return chunks + static_cast<std::uint32_t>(count_);
  }
  __device__ std::uint64_t flag() const { return Tile::flag_of(count_ + 1); }

  const MessageMemory& memory_;
  const int channel_;
  std::uint64_t count_;      // boxes filled, or emptied, so far
  std::uint32_t freed_ = 0;  // of the peer's that this thread knows of
};

}  // namespace symm
