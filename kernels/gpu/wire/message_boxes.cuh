// Messages in boxes: tiles through boxes, by a block for each p2p channel.
//
// NOTE [Messages in boxes]
// A p2p channel leads from one rank to another and has kP2pBoxes boxes in the receiver's segment,
// which it takes in turns. A message in boxes goes in equal parts, one a p2p channel of its tag
// channel, a power of two of them, as tiles (NOTE [Wires] in tile.cuh): no fence, and no count of
// what is filled. By LL a part fits in one box; by lines it may take several. The epoch of a box is
// its number in its channel. A part begins with its header, in the first unit of its first tile,
// whose position counts the boxes of its own p2p channel; the first part takes a box even where it
// is empty, so there that is the message's. A message that fits in one box, and has few tiles, has
// one part. How much boxes take depends on the tiles (DeviceLayout::most_in_boxes): of two ranks
// 0.75 MiB by LL, 1.4 GiB by lines.
//
// Two ranks use lines where both their GPUs say so, and LL else, for all of the group's life: they
// may exchange messages before their group has chosen a wire, and apart from it. Boxes hold tiles
// alone, as payload in a slot might look like one.
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

// `kMany`: a part may take several boxes, and the block has all threads. What is said below to be
// done by the threads of a tile is with LL done by each thread.
template <class Tile, bool kMany>
class MessageBoxes {
 public:
  // `channel` of the tag channel's.
  __device__ MessageBoxes(const MessageMemory& memory, int channel)
      : memory_(memory), channel_(channel), count_(memory.boxes(channel)) {}

  // Before the first message to the peer.
  __device__ void look_for_credit() { freed_ = load_relaxed(&memory_.own_freed(channel_)); }

  // Both by the whole block, with the same result in every thread. The threads of a tile go on by
  // themselves, when they have credit, or the tile. `next_chunk`: the number of the next chunk to
  // the peer, or from it.
  __device__ bool send(const TransferItem& item, std::uint32_t next_chunk, Waiter& waiter) {
    const Part part = part_of(item);
    if (!part.exists) return true;
    const BoxHeader header{static_cast<std::uint32_t>(item.bytes), position_after(next_chunk),
                           item.tag};
    const bool ok = each_box(part, [&](std::uint32_t first, std::uint32_t last) {
      const bool sent = send_box(header, part, first, last, waiter);
      ++count_;
      return sent;
    });
    return block_all(ok);
  }

  __device__ bool receive(const TransferItem& item, std::uint32_t next_chunk, Waiter& waiter) {
    const Part part = part_of(item);
    if (!part.exists) return true;
    return each_box(part, [&](std::uint32_t first, std::uint32_t last) {
      if (!block_all(receive_box(item, part, first, last, next_chunk, waiter))) return false;
      ++count_;
      // What was in the box has been loaded, since its epoch was looked at.
      if (threadIdx.x == 0) {
        store_relaxed(&memory_.peer_freed(channel_), static_cast<std::uint32_t>(count_));
      }
      return true;
    });
  }

  // After the last message, where no other block reads the count in this launch.
  __device__ void end() {
    __syncthreads();
    if (threadIdx.x == 0) memory_.boxes(channel_) = count_;
  }

  // That a message takes in a p2p channel of the tag channel.
  __device__ static std::uint32_t boxes_of(const MessageMemory& memory, const TransferItem& item,
                                           int channel) {
    const Part part = part_of(memory, item, channel);
    if (!part.exists) return 0;
    return kMany ? (tiles_of(part.bytes) - 1) / tiles_of_box(memory) + 1 : 1;
  }

 private:
  // Epochs of LL tiles repeat: in so many the sender writes all of a box once.
  static constexpr std::uint64_t kRefreshPeriod = 1u << 30;
  // Tiles that a warp takes at once (NOTE [Sets of tiles] in tile_sets.cuh); 0: one by one.
  static constexpr std::uint32_t kSet = kMany && Tile::kLoadsAgain ? 3 : 0;

  // Less than 4 GiB, as all messages in boxes.
  struct Part {
    std::byte* data;
    std::uint32_t bytes;
    bool exists;
  };
  __device__ static Part part_of(const MessageMemory& memory, const TransferItem& item,
                                 int channel) {
    const auto bytes = static_cast<std::uint32_t>(item.bytes);
    const std::uint32_t channels =
        memory.layout().p2p_channels_of(bytes, memory.tag_channel(), Tile::kKind);
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

  // `step(first, last)` for the tiles [first, last) of each box.
  template <class Step>
  __device__ __forceinline__ bool each_box(const Part& part, const Step& step) {
    const std::uint32_t tiles = tiles_of(part.bytes);
    if constexpr (!kMany) return step(0u, tiles);
    const std::uint32_t of_box = tiles_of_box(memory_);
    bool ok = true;
    for (std::uint32_t first = 0; ok && first < tiles; first += of_box) {
      ok = step(first, min(tiles, first + of_box));
    }
    return ok;
  }
  __device__ static std::uint32_t tiles_of_box(const MessageMemory& memory) {
    return memory.layout().p2p_box_tiles(memory.tag_channel(), Tile::kKind);
  }

  __device__ __forceinline__ bool send_box(const BoxHeader& header, const Part& part,
                                           std::uint32_t first, std::uint32_t last,
                                           Waiter& waiter) {
    std::uint32_t tile = first + threadIdx.x / kTileThreads;
    Unit unit = unit_of(header, part, tile);  // while the credit is looked at
    if (!Tile::all(has_credit(waiter))) return false;
    std::byte* const box = memory_.peer_box(channel_, count_);
    const auto send_one = [&](std::uint32_t number, const Unit& data) {
      Tile::converge();
      Tile::send(box + (number - first) * Tile::kSpace, data, flag());
    };
    if constexpr (kSet > 0) {
      const std::uint32_t stride = blockDim.x / kTileThreads;
      if (tile == 0) {
        send_one(tile, unit);
        tile += stride;
      }
      for (std::uint32_t sets = sets_of(part, tile, last); sets > 0; --sets) {
        Unit set[kSet];
#pragma unroll
        for (std::uint32_t i = 0; i < kSet; ++i) {
          set[i] = Tile::load_whole(part.data + begin_of(tile + i * stride));
        }
#pragma unroll
        for (std::uint32_t i = 0; i < kSet; ++i) send_one(tile + i * stride, set[i]);
        tile += kSet * stride;
      }
      unit = unit_of(header, part, tile);
    }
    for (; tile < last; tile += blockDim.x / kTileThreads) {
      send_one(tile, unit);
      unit = unit_of(header, part, tile + blockDim.x / kTileThreads);
    }
    refresh(last - first);
    return true;
  }

  __device__ __forceinline__ bool receive_box(const TransferItem& item, const Part& part,
                                              std::uint32_t first, std::uint32_t last,
                                              std::uint32_t next_chunk, Waiter& waiter) const {
    std::byte* const box = memory_.own_box(channel_, count_);
    std::uint32_t tile = first + threadIdx.x / kTileThreads;
    const auto receive_one = [&] {
      std::byte* const place = box + (tile - first) * Tile::kSpace;
      Unit unit;
      if (tile == 0) {
        if (!first_has_come(item, place, next_chunk, waiter, &unit)) return false;
      } else if (!poll(waiter, [&] { return Tile::receive(place, flag(), &unit); })) {
        return false;
      }
      const std::uint32_t offset = begin_of(tile) + Tile::offset();
      if (!is_header(tile) && offset < part.bytes) {
        Tile::store(part.data + offset, unit, part.bytes - offset);
      }
      return true;
    };
    if constexpr (kSet > 0) {
      const std::uint32_t stride = blockDim.x / kTileThreads;
      if (tile == 0) {
        if (!receive_one()) return false;
        tile += stride;
      }
      for (std::uint32_t sets = sets_of(part, tile, last); sets > 0; --sets) {
        Unit set[kSet];
        if (!set_has_come(box + (tile - first) * Tile::kSpace, waiter, set)) return false;
#pragma unroll
        for (std::uint32_t i = 0; i < kSet; ++i) {
          Tile::store_whole(part.data + begin_of(tile + i * stride), set[i]);
        }
        tile += kSet * stride;
      }
    }
    for (; tile < last; tile += blockDim.x / kTileThreads) {
      if (!receive_one()) return false;
    }
    return true;
  }

  // Of the tiles of a box, `tile` and those of this warp behind it, that are whole and aligned.
  __device__ __forceinline__ static std::uint32_t sets_of(const Part& part, std::uint32_t tile,
                                                          std::uint32_t last) {
    const std::uint32_t whole = (part.bytes + kHeaderBytes) / Tile::kBytes;
    const std::uint32_t end = min(last, whole);
    if (end <= tile || !is_aligned(part.data, kUnitBytes)) return 0;
    return ((end - tile - 1) / (blockDim.x / kTileThreads) + 1) / kSet;
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

  // The threads of a tile wait until is_here() is true in all of them; false where the launch must
  // end. What a line has is believed in the call after that (NOTE [Wires]).
  template <class IsHere>
  __device__ __forceinline__ bool poll(Waiter& waiter, const IsHere& is_here) const {
    for (std::uint32_t polls = 1;; ++polls) {
      Tile::converge();
      const bool here = is_here();
      if (Tile::all(here)) {
        if constexpr (Tile::kLoadsAgain) static_cast<void>(is_here());
        return true;
      }
      if (waiter.is_due(polls) && Tile::any(!here && waiter.gives_up(memory_.peer()))) return false;
    }
  }
  template <std::uint32_t kCount>
  __device__ __forceinline__ bool set_has_come(std::byte* place, Waiter& waiter,
                                               Unit (&set)[kCount]) const {
    const std::uint32_t step = blockDim.x / kTileThreads * Tile::kSpace;
    bool was_here = false;
    for (std::uint32_t polls = 1;; ++polls) {
      Tile::converge();
      typename Tile::Arrival arrivals[kCount];
#pragma unroll
      for (std::uint32_t i = 0; i < kCount; ++i) arrivals[i] = Tile::look(place + i * step);
      bool here = true;
#pragma unroll
      for (std::uint32_t i = 0; i < kCount; ++i) here = arrivals[i].has(flag(), &set[i]) && here;
      if (Tile::all(here)) {
        if (was_here) return true;
        was_here = true;
      } else if (waiter.is_due(polls) && Tile::any(!here && waiter.gives_up(memory_.peer()))) {
        return false;
      }
    }
  }
  // The same of the first tile of a part; false too, and reported, where the header is that of
  // another message.
  __device__ __forceinline__ bool first_has_come(const TransferItem& item, std::byte* place,
                                                 std::uint32_t next_chunk, Waiter& waiter,
                                                 Unit* unit) const {
    const bool has_header = is_header(0);
    const int& peer = memory_.peer();
    const MessageSignal& chunk = memory_.own_signal(next_chunk);
    const std::uint32_t position = position_after(next_chunk);
    for (std::uint32_t polls = 1;; ++polls) {
      Tile::converge();
      if (Tile::all(Tile::receive(place, flag(), unit))) {
        if constexpr (Tile::kLoadsAgain) static_cast<void>(Tile::receive(place, flag(), unit));
        const auto header = __builtin_bit_cast(BoxHeader, *unit);
        if (Tile::all(!has_header || header.position == position)) {
          const MessageHeader found{header.bytes, header.tag};
          return Tile::all(!has_header || matches(found, item, peer, waiter, threadIdx.x == 0));
        }
      }
      if (polls % kOtherFormPeriod == 0) {
        const bool is_other =
            has_header && channel_ == 0 && has_chunk(chunk, filled_with(next_chunk, position));
        if (is_other) matches(header_of(chunk), item, peer, waiter, threadIdx.x == 0);
        if (Tile::any(is_other)) return false;
      }
      if (waiter.is_due(polls) && Tile::any(waiter.gives_up(peer))) return false;
    }
  }

  // Writes all tiles of the box from `first` on, in the few epochs in which that is due.
  __device__ void refresh(std::uint32_t first) const {
    if constexpr (Tile::kEpochsRepeat) {
      if (count_ % kRefreshPeriod >= kP2pBoxes) return;
      refresh_tiles(memory_.peer_box(channel_, count_), first, tiles_of_box(memory_), flag());
    }
  }

  static constexpr std::uint32_t kHeaderBytes = sizeof(BoxHeader);
  // The header is the first unit. `begin_of` a tile is an offset in the data of its part, of the
  // first one that of what follows its header.
  __device__ static bool is_header(std::uint32_t tile) { return tile == 0 && tile_thread() == 0; }
  __device__ static std::uint32_t begin_of(std::uint32_t tile) {
    return tile * Tile::kBytes - kHeaderBytes;
  }
  __device__ static std::uint32_t tiles_of(std::uint32_t bytes) {
    return (kHeaderBytes + bytes + Tile::kBytes - 1) / Tile::kBytes;
  }
  __device__ static Unit unit_of(const BoxHeader& header, const Part& part, std::uint32_t tile) {
    if (is_header(tile)) return __builtin_bit_cast(Unit, header);
    const std::uint32_t offset = begin_of(tile) + Tile::offset();
    if (offset >= part.bytes) return Unit{};
    return Tile::load(part.data + offset, part.bytes - offset);
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
