// send, recv and all_to_all: messages through p2p channels.
//
// NOTE [P2p channels]
// A p2p channel leads from one rank to another and has kP2pSlots slots in the receiver's segment.
// The sender stores a piece into the next free slot and then the count of filled slots into the
// receiver's P2pSignal; the receiver copies the piece and stores the count of freed slots into the
// sender's. Both counts only grow and live in device memory. A message is divided into
// kP2pChannelsPerTag equal parts, one for each p2p channel of its tag channel; the first part also
// carries the message's size and tag, so even an empty message takes one slot. A block serves one
// p2p channel in one direction, so sends and recvs of one launch never wait for each other, and the
// receiver's blocks free the slots that the sender's fill.
//
// NOTE [Short messages]
// A message whose parts fit in boxes goes through them in place of slots, one box a slot, as LL
// tiles (NOTE [Wires] in tile.cuh): no fence, and no count of what is filled. The epoch of a box is
// the number of its slot. A part begins with its header, in the first unit of the first tile. A
// message that fits in one box, up to kMostUndividedMessage, has one part. The tiles are LL's in
// every group, since two ranks may exchange messages before their group has chosen a wire. Boxes
// hold tiles alone, as payload in a slot might look like one.
//
// Sender and receiver choose by the size. A receiver that waits in vain for the one form looks now
// and then whether the other has come, and reports the header of that.
#include "kernels/gpu/device/block_memory.cuh"
#include "kernels/gpu/device/call_end.cuh"
#include "kernels/gpu/device/poison.cuh"
#include "kernels/gpu/interface/kernel_table.hpp"
#include "kernels/gpu/wire/tile.cuh"

namespace symm {

namespace {

constexpr int kTransferThreads = 512;

static_assert(sizeof(PieceHeader) == kUnitBytes);

struct P2pPart {
  std::byte* data;
  std::uint64_t bytes;
  bool first;  // carries the header, hence takes a slot even where it is empty
};

// The part of a message that p2p channel `channel` of its tag channel carries.
__device__ P2pPart p2p_part(const DeviceLayout& layout, const TransferItem& item, int channel) {
  const std::uint64_t even =
      layout.p2p_channels_of(item.bytes) == 1
          ? item.bytes
          : align_up((item.bytes + kP2pChannelsPerTag - 1) / kP2pChannelsPerTag, kCacheLine);
  const std::uint64_t begin = min_size(even * static_cast<std::uint64_t>(channel), item.bytes);
  return {static_cast<std::byte*>(item.data) + begin, min_size(even, item.bytes - begin),
          channel == 0};
}

// Writes the tiles [first, last) of a box: the header, and else nothing. By the whole block.
__device__ SYMM_OUTLINED void refresh_tiles(std::byte* box, std::uint32_t first, std::uint32_t last,
                                            PieceHeader header, std::uint64_t flag) {
  for (std::uint32_t tile = first + threadIdx.x / kTileThreads; tile < last;
       tile += blockDim.x / kTileThreads) {
    const bool is_header = tile == 0 && tile_thread() == 0;
    LLTile::send(box + tile * LLTile::kSpace, is_header ? __builtin_bit_cast(Unit, header) : Unit{},
                 flag);
  }
}

// The header in a box, or that of a message of `bytes` where none has come. Looked at now and then.
__device__ SYMM_OUTLINED PieceHeader header_in(std::byte* box, std::uint64_t flag,
                                               std::uint64_t bytes) {
  Unit header;
  if (!LLTile::receive(box, flag, &header)) return {bytes, 0};
  return __builtin_bit_cast(PieceHeader, header);
}

// One p2p channel in one direction, served by a block.
template <MessageForms kForms>
class P2pChannel {
 public:
  __device__ P2pChannel(const GroupParams& group, const TransferGroup& messages, int channel,
                        Waiter& waiter)
      : group_(group),
        waiter_(waiter),
        peer_(messages.peer),
        channel_(messages.tag_channel * kP2pChannelsPerTag + channel),
        slot_data_(group.layout.p2p_slot_bytes - kSlotHeader),
        counter_(messages.is_send ? local_state(group).p2p_channels[peer_][channel_].sent
                                  : local_state(group).p2p_channels[peer_][channel_].received),
        count_(counter_) {
    if (messages.is_send) freed_ = load_relaxed(&signal(group_.rank, peer_).freed);
  }

  // Both by the whole block, with the same result in every thread.
  __device__ bool send(const TransferItem& item, const P2pPart& part) {
    if (is_short(item)) return send_tiles(item, part);
    if constexpr (kForms != MessageForms::kBoxes) return send_slots(item, part);
    return false;
  }
  __device__ bool receive(const TransferItem& item, const P2pPart& part) {
    if (is_short(item)) return receive_tiles(item, part);
    if constexpr (kForms != MessageForms::kBoxes) return receive_slots(item, part);
    return false;
  }

  // After the last message.
  __device__ void end() {
    __syncthreads();
    if (threadIdx.x == 0) counter_ = count_;
  }

 private:
  using Tile = LLTile;
  __device__ bool is_short(const TransferItem& item) const {
    if constexpr (kForms != MessageForms::kBoth) return kForms == MessageForms::kBoxes;
    return group_.layout.is_short_message(item.bytes);
  }
  // Epochs of LL tiles repeat: in so many the sender writes all of a box once.
  static constexpr std::uint64_t kRefreshPeriod = 1u << 30;
  static constexpr std::uint32_t kOtherFormPeriod = 256;  // failed polls between two looks for it

  __device__ bool send_slots(const TransferItem& item, const P2pPart& part) {
    const std::uint64_t pieces = pieces_of(part);
    for (std::uint64_t i = 0; i < pieces; ++i, ++count_) {
      const std::uint32_t* freed = &signal(group_.rank, peer_).freed;
      const auto target = static_cast<std::uint32_t>(count_ + 1 - kP2pSlots);
      const auto is_free = [=] { return counter_reached(freed, target); };
      if (!block_all(threadIdx.x != 0 || waiter_.wait(peer_, is_free))) return false;
      std::byte* slot = slot_at(peer_, group_.rank);
      if (threadIdx.x == 0) *reinterpret_cast<PieceHeader*>(slot) = {item.bytes, item.tag};
      block_copy(slot + kSlotHeader, part.data + i * slot_data_, bytes_of(part, i));
      refresh(item, 0);
      release_before_barrier();
      __syncthreads();
      if (threadIdx.x == 0) {
        release_after_barrier();
        store_relaxed(&signal(peer_, group_.rank).filled, static_cast<std::uint32_t>(count_ + 1));
      }
    }
    return true;
  }

  __device__ bool receive_slots(const TransferItem& item, const P2pPart& part) {
    const std::uint64_t pieces = pieces_of(part);
    for (std::uint64_t i = 0; i < pieces; ++i, ++count_) {
      if (!block_all(threadIdx.x != 0 || is_filled(item))) return false;
      const std::byte* slot = slot_at(group_.rank, peer_);
      if (part.first && i == 0 && !matches(*reinterpret_cast<const PieceHeader*>(slot), item)) {
        return false;
      }
      block_copy(part.data + i * slot_data_, slot + kSlotHeader, bytes_of(part, i));
      __syncthreads();
      if (threadIdx.x == 0) {
        release_after_barrier();
        store_relaxed(&signal(peer_, group_.rank).freed, static_cast<std::uint32_t>(count_ + 1));
      }
    }
    return true;
  }

  // Threads go on by themselves, each when it has credit.
  __device__ bool send_tiles(const TransferItem& item, const P2pPart& part) {
    if (!has_pieces(part)) return true;
    const std::uint32_t tiles = tiles_of(part.bytes);
    std::uint32_t tile = threadIdx.x / kTileThreads;
    Unit unit = unit_of(item, part, tile);  // while the credit is looked at
    const bool ok = has_credit();
    if (ok) {
      for (; tile < tiles; tile += blockDim.x / kTileThreads) {
        Tile::send(box_at(peer_, group_.rank) + tile * Tile::kSpace, unit, flag());
        unit = unit_of(item, part, tile + blockDim.x / kTileThreads);
      }
      refresh(item, tiles);
    }
    ++count_;
    return block_all(ok);
  }

  __device__ bool receive_tiles(const TransferItem& item, const P2pPart& part) {
    if (!has_pieces(part)) return true;
    bool ok = true;
    for (std::uint32_t tile = threadIdx.x / kTileThreads; ok && tile < tiles_of(part.bytes);
         tile += blockDim.x / kTileThreads) {
      Unit unit;
      ok = has_come(item, tile, &unit);
      const std::uint64_t offset = offset_of(tile);
      if (!ok || is_header(tile) || offset >= part.bytes) continue;
      store_unit(part.data + offset, unit, min_size(part.bytes - offset, kUnitBytes));
    }
    if (!block_all(ok)) return false;
    ++count_;
    // What was in the box has been loaded, since its epoch was looked at.
    if (threadIdx.x == 0) {
      store_relaxed(&signal(peer_, group_.rank).freed, static_cast<std::uint32_t>(count_));
    }
    return true;
  }

  // Waits until the box may be filled again. Nothing is acquired: the peer has loaded what was in
  // it before it said so.
  __device__ bool has_credit() {
    const auto target = static_cast<std::uint32_t>(count_ + 1 - kP2pSlots);
    if (has_reached(freed_, target)) return true;
    return waiter_.wait(peer_, [&] {
      freed_ = load_relaxed(&signal(group_.rank, peer_).freed);
      return has_reached(freed_, target);
    });
  }

  // Waits for a slot; false too, and reported, where a short message has come in its place.
  __device__ bool is_filled(const TransferItem& item) {
    const std::uint32_t* filled = &signal(group_.rank, peer_).filled;
    bool other = false;
    std::uint32_t polls = 0;
    const bool came = waiter_.wait(peer_, [&] {
      if (counter_reached(filled, static_cast<std::uint32_t>(count_ + 1))) return true;
      other = ++polls % kOtherFormPeriod == 0 && header_in_box(item).bytes != item.bytes;
      return other;
    });
    return other ? matches(header_in_box(item), item) : came;
  }

  __device__ PieceHeader header_in_box(const TransferItem& item) const {
    if (group_.layout.p2p_box_bytes == 0) return {item.bytes, item.tag};
    return header_in(box_at(group_.rank, peer_), flag(), item.bytes);
  }

  // Waits for this thread's unit of a tile; false too, and reported, where it is the header and
  // that of another message.
  __device__ bool has_come(const TransferItem& item, std::uint32_t tile, Unit* unit) {
    std::byte* place = box_at(group_.rank, peer_) + tile * Tile::kSpace;
    if (!is_header(tile)) {
      return waiter_.wait(peer_, [&] { return Tile::receive(place, flag(), unit); });
    }
    const std::uint32_t* filled = &signal(group_.rank, peer_).filled;
    std::uint32_t polls = 0;
    const bool came = waiter_.wait(peer_, [&] {
      if (Tile::receive(place, flag(), unit)) return true;
      return ++polls % kOtherFormPeriod == 0 &&
             counter_reached(filled, static_cast<std::uint32_t>(count_ + 1));
    });
    if (!came) return false;
    // A later slot may be filled as well: the box counts.
    if (Tile::receive(place, flag(), unit)) return matches(header_of(*unit), item);
    return matches(*reinterpret_cast<const PieceHeader*>(slot_at(group_.rank, peer_)), item);
  }

  // Writes all tiles of the box from `first` on, in the few epochs in which that is due.
  __device__ void refresh(const TransferItem& item, std::uint32_t first) {
    if (count_ % kRefreshPeriod >= kP2pSlots) return;
    const auto tiles = static_cast<std::uint32_t>(group_.layout.p2p_box_bytes / Tile::kSpace);
    refresh_tiles(box_at(peer_, group_.rank), first, tiles, {item.bytes, item.tag}, flag());
  }

  // The header is the first unit, and `offset_of` that of another one in the data of a piece.
  __device__ static bool is_header(std::uint32_t tile) { return tile == 0 && tile_thread() == 0; }
  __device__ static std::uint64_t offset_of(std::uint32_t tile) {
    return std::uint64_t{tile} * Tile::kBytes + Tile::offset() - sizeof(PieceHeader);
  }
  __device__ static std::uint32_t tiles_of(std::uint64_t bytes) {
    return static_cast<std::uint32_t>((sizeof(PieceHeader) + bytes + Tile::kBytes - 1) /
                                      Tile::kBytes);
  }
  __device__ static Unit unit_of(const TransferItem& item, const P2pPart& part,
                                 std::uint32_t tile) {
    if (is_header(tile)) return __builtin_bit_cast(Unit, PieceHeader{item.bytes, item.tag});
    const std::uint64_t offset = offset_of(tile);
    if (offset >= part.bytes) return Unit{};
    return load_unit(part.data + offset, min_size(part.bytes - offset, kUnitBytes));
  }
  __device__ static PieceHeader header_of(Unit unit) {
    return __builtin_bit_cast(PieceHeader, unit);
  }
  __device__ std::uint64_t flag() const { return Tile::flag_of(count_ + 1); }

  // By one thread, or by all with the same header: the same result in every thread.
  __device__ bool matches(const PieceHeader& header, const TransferItem& item) {
    if (header.tag != item.tag) {
      if (threadIdx.x == 0) {
        waiter_.fail(DeviceFault::kTagMismatch, peer_, static_cast<std::uint64_t>(header.tag),
                     static_cast<std::uint64_t>(item.tag));
      }
      return false;
    }
    if (header.bytes != item.bytes) {
      if (threadIdx.x == 0) {
        waiter_.fail(DeviceFault::kCountMismatch, peer_, header.bytes, item.bytes);
      }
      return false;
    }
    return true;
  }

  __device__ static bool has_pieces(const P2pPart& part) { return part.bytes > 0 || part.first; }
  __device__ std::uint64_t pieces_of(const P2pPart& part) const {
    const std::uint64_t full = (part.bytes + slot_data_ - 1) / slot_data_;
    return full == 0 && part.first ? 1 : full;
  }
  __device__ std::size_t bytes_of(const P2pPart& part, std::uint64_t piece) const {
    const std::uint64_t begin = piece * slot_data_;
    return part.bytes > begin ? min_size(slot_data_, part.bytes - begin) : 0;
  }

  // The signal of `other` to this channel, in `owner`'s segment.
  __device__ P2pSignal& signal(int owner, int other) const {
    auto* signals =
        reinterpret_cast<P2pSignal*>(segment_of(group_, owner) + group_.layout.p2p_signals);
    return signals[other * kP2pChannels + channel_];
  }
  __device__ std::uint64_t slot_number(int sender) const {
    const std::uint64_t channel =
        static_cast<std::uint64_t>(sender) * kP2pChannels + static_cast<std::uint64_t>(channel_);
    return channel * kP2pSlots + count_ % kP2pSlots;
  }
  __device__ std::byte* slot_at(int owner, int sender) const {
    return segment_of(group_, owner) + group_.layout.p2p_slots +
           slot_number(sender) * group_.layout.p2p_slot_bytes;
  }
  __device__ std::byte* box_at(int owner, int sender) const {
    return segment_of(group_, owner) + group_.layout.p2p_boxes +
           slot_number(sender) * group_.layout.p2p_box_bytes;
  }

  const GroupParams& group_;
  Waiter& waiter_;
  const int peer_;
  const int channel_;
  const std::uint64_t slot_data_;  // bytes of a piece
  std::uint64_t& counter_;         // in device memory
  std::uint64_t count_;            // slots filled, or emptied, so far
  std::uint32_t freed_ = 0;        // of the peer's that this thread knows of
};

// By one thread of a block whose p2p channel is done: the last block of the tag channel ends the
// messages.
__device__ void end_messages(const GroupParams& group, const TransferParams& call,
                             const TransferGroup& messages) {
  LocalState& local = local_state(group);
  const int direction = messages.is_send ? 0 : 1;
  if (call.channels > 1) {
    std::uint32_t* ticket = &local.tag_tickets[messages.peer][messages.tag_channel][direction];
    device_fence();
    if (device_fetch_add(ticket, 1u) + 1 != static_cast<unsigned>(call.channels)) return;
    store_data(ticket, 0);
  }
  std::uint64_t& ended = local.messages[messages.peer][messages.tag_channel][direction];
  ended += messages.count;
  store_relaxed(&page_of(group).messages_completed[messages.peer][messages.tag_channel][direction],
                ended);
}

template <MessageForms kForms>
__device__ bool serve_p2p_channel(const GroupParams& group, const TransferParams& call,
                                  const WaitParams& wait) {
  const auto channels = static_cast<unsigned>(call.channels);
  const TransferGroup& messages = call.groups[blockIdx.x / channels];
  const int channel_number = static_cast<int>(blockIdx.x % channels);
  const int direction = messages.is_send ? 0 : 1;
  const std::uint64_t before =
      local_state(group).messages[messages.peer][messages.tag_channel][direction];
  if (!call.collective && channel_number == 0 && threadIdx.x == 0) {
    store_relaxed(&page_of(group).messages_entered[messages.peer][messages.tag_channel][direction],
                  before + messages.count);
  }
  Waiter waiter(group, wait, call.collective ? collective_number(group) : before + 1,
                !call.collective);
  P2pChannel<kForms> channel(group, messages, channel_number, waiter);
  for (int i = 0; i < messages.count; ++i) {
    const TransferItem& item = call.items[messages.first + i];
    const P2pPart part = p2p_part(group.layout, item, channel_number);
    if (!(messages.is_send ? channel.send(item, part) : channel.receive(item, part))) return false;
    if (!call.collective) waiter.next();
  }
  channel.end();
  if (!call.collective && threadIdx.x == 0) end_messages(group, call, messages);
  return true;
}

// NOTE [Poison], for a block that serves a p2p channel.
__device__ void poison_received(const TransferParams& call) {
  const TransferGroup& messages = call.groups[blockIdx.x / static_cast<unsigned>(call.channels)];
  if (!call.poisons || messages.is_send) return;
  for (int i = messages.first; i < messages.first + messages.count; ++i) {
    fill_poison(call.items[i].data, call.items[i].bytes, poison_of(call.dtypes[i]));
  }
}

__device__ unsigned channel_blocks(const TransferParams& call) {
  return static_cast<unsigned>(call.group_count * call.channels);
}

// The blocks after those of the p2p channels copy the message of this rank to itself.
__device__ void copy_own(const TransferParams& call) {
  const unsigned first = channel_blocks(call);
  const unsigned blocks = gridDim.x - first;
  const std::uint64_t even = align_up((call.own.bytes + blocks - 1) / blocks, kCacheLine);
  const std::uint64_t begin = min_size(even * (blockIdx.x - first), call.own.bytes);
  block_copy(static_cast<std::byte*>(call.own.destination) + begin,
             static_cast<const std::byte*>(call.own.source) + begin,
             min_size(even, call.own.bytes - begin));
}

template <MessageForms kForms>
__global__ void SYMM_LAUNCH_BOUNDS(kTransferThreads, 2)
    transfer_kernel(const SYMM_GRID_CONSTANT GroupParams group,
                    const SYMM_GRID_CONSTANT TransferParams call,
                    const SYMM_GRID_CONSTANT WaitParams wait) {
  const bool serves = blockIdx.x < channel_blocks(call);
  if (!serves) copy_own(call);
  const bool found_alive = threadIdx.x != 0 || load_relaxed(&local_state(group).dead) == 0;
  const bool alive = block_all(found_alive);
  if (alive && call.collective && blockIdx.x == 0 && threadIdx.x == 0) {
    store_relaxed(&page_of(group).entered, collective_number(group));
  }
  if (serves && !(alive && serve_p2p_channel<kForms>(group, call, wait))) {
    poison_received(call);
    return;
  }
  if (!alive || !call.collective) return;
  __syncthreads();
  if (threadIdx.x == 0 && is_last_block(&local_state(group).channel_ticket)) {
    end_collective(group, call.ends_call);
  }
}

}  // namespace

const void* transfer_kernel_address(MessageForms forms) {
  using enum MessageForms;
  switch (forms) {
    case kBoxes:
      return reinterpret_cast<const void*>(&transfer_kernel<kBoxes>);
    case kSlots:
      return reinterpret_cast<const void*>(&transfer_kernel<kSlots>);
    case kBoth:
      break;
  }
  return reinterpret_cast<const void*>(&transfer_kernel<kBoth>);
}

}  // namespace symm
