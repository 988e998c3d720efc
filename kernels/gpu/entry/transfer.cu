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
#include "kernels/gpu/device/block_memory.cuh"
#include "kernels/gpu/device/call_end.cuh"
#include "kernels/gpu/device/poison.cuh"
#include "kernels/gpu/interface/kernel_table.hpp"

namespace symm {

namespace {

constexpr int kTransferThreads = 512;

// Before the data of a slot.
struct alignas(16) PieceHeader {
  std::uint64_t bytes;  // of the whole message
  std::int64_t tag;
};

struct P2pPart {
  std::byte* data;
  std::uint64_t bytes;
  bool first;  // carries the header, hence takes a slot even where it is empty
};

// The part of a message that p2p channel `channel` of its tag channel carries.
__device__ P2pPart p2p_part(const TransferItem& item, int channel) {
  const std::uint64_t even =
      align_up((item.bytes + kP2pChannelsPerTag - 1) / kP2pChannelsPerTag, kCacheLine);
  const std::uint64_t begin = min_size(even * static_cast<std::uint64_t>(channel), item.bytes);
  return {static_cast<std::byte*>(item.data) + begin, min_size(even, item.bytes - begin),
          channel == 0};
}

// One p2p channel in one direction, served by a block.
class P2pChannel {
 public:
  __device__ P2pChannel(const GroupParams& group, const TransferGroup& messages, int channel,
                        Waiter& waiter)
      : group_(group),
        waiter_(waiter),
        peer_(messages.peer),
        channel_(messages.tag_channel * kP2pChannelsPerTag + channel),
        piece_bytes_(group.layout.p2p_slot_bytes - sizeof(PieceHeader)),
        counter_(messages.is_send ? local_state(group).p2p_channels[peer_][channel_].sent
                                  : local_state(group).p2p_channels[peer_][channel_].received),
        count_(counter_) {}

  __device__ bool send(const TransferItem& item, const P2pPart& part) {
    const std::uint64_t pieces = pieces_of(part);
    for (std::uint64_t i = 0; i < pieces; ++i, ++count_) {
      const std::uint32_t* freed = &signal(group_.rank, peer_).freed;
      if (!wait_for(freed, count_ + 1 - kP2pSlots)) return false;
      std::byte* slot = slot_at(peer_, group_.rank, count_);
      if (threadIdx.x == 0) *reinterpret_cast<PieceHeader*>(slot) = {item.bytes, item.tag};
      block_copy(slot + sizeof(PieceHeader), part.data + i * piece_bytes_, bytes_of(part, i));
      release_before_barrier();
      __syncthreads();
      if (threadIdx.x == 0) {
        release_after_barrier();
        store_relaxed(&signal(peer_, group_.rank).filled, count_ + 1);
      }
    }
    return true;
  }

  __device__ bool receive(const TransferItem& item, const P2pPart& part) {
    const std::uint64_t pieces = pieces_of(part);
    for (std::uint64_t i = 0; i < pieces; ++i, ++count_) {
      const std::uint32_t* filled = &signal(group_.rank, peer_).filled;
      if (!wait_for(filled, count_ + 1)) return false;
      const std::byte* slot = slot_at(group_.rank, peer_, count_);
      if (part.first && i == 0 && !matches(*reinterpret_cast<const PieceHeader*>(slot), item)) {
        return false;
      }
      block_copy(part.data + i * piece_bytes_, slot + sizeof(PieceHeader), bytes_of(part, i));
      __syncthreads();
      if (threadIdx.x == 0) {
        release_after_barrier();
        store_relaxed(&signal(peer_, group_.rank).freed, count_ + 1);
      }
    }
    return true;
  }

  // After the last message.
  __device__ void end() {
    __syncthreads();
    if (threadIdx.x == 0) counter_ = count_;
  }

 private:
  // By the whole block; the same result in every thread.
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

  __device__ std::uint64_t pieces_of(const P2pPart& part) const {
    const std::uint64_t full = (part.bytes + piece_bytes_ - 1) / piece_bytes_;
    return full == 0 && part.first ? 1 : full;
  }
  __device__ std::size_t bytes_of(const P2pPart& part, std::uint64_t piece) const {
    const std::uint64_t begin = piece * piece_bytes_;
    return part.bytes > begin ? min_size(piece_bytes_, part.bytes - begin) : 0;
  }

  __device__ bool wait_for(const std::uint32_t* counter, std::uint32_t target) {
    const bool ok =
        threadIdx.x != 0 || waiter_.wait(peer_, [=] { return counter_reached(counter, target); });
    return block_all(ok);
  }

  // The signal of `other` to this channel, in `owner`'s segment.
  __device__ P2pSignal& signal(int owner, int other) const {
    auto* signals =
        reinterpret_cast<P2pSignal*>(segment_of(group_, owner) + group_.layout.p2p_signals);
    return signals[other * kP2pChannels + channel_];
  }
  __device__ std::byte* slot_at(int owner, int sender, std::uint32_t count) const {
    const std::uint64_t index =
        (static_cast<std::uint64_t>(sender) * kP2pChannels + static_cast<std::uint64_t>(channel_)) *
            kP2pSlots +
        count % kP2pSlots;
    return segment_of(group_, owner) + group_.layout.p2p_slots +
           index * group_.layout.p2p_slot_bytes;
  }

  const GroupParams& group_;
  Waiter& waiter_;
  const int peer_;
  const int channel_;
  const std::uint64_t piece_bytes_;
  std::uint32_t& counter_;  // in device memory
  std::uint32_t count_;     // slots filled, or emptied, so far
};

// By one thread of a block whose p2p channel is done: the last block of the tag channel ends the
// messages.
__device__ void end_messages(const GroupParams& group, const TransferGroup& messages) {
  LocalState& local = local_state(group);
  const int direction = messages.is_send ? 0 : 1;
  std::uint32_t* ticket = &local.tag_tickets[messages.peer][messages.tag_channel][direction];
  device_fence();
  if (device_fetch_add(ticket, 1u) + 1 != kP2pChannelsPerTag) return;
  store_data(ticket, 0);
  std::uint64_t& ended = local.messages[messages.peer][messages.tag_channel][direction];
  ended += messages.count;
  store_relaxed(&page_of(group).messages_completed[messages.peer][messages.tag_channel][direction],
                ended);
}

__device__ bool serve_p2p_channel(const GroupParams& group, const TransferParams& call,
                                  const WaitParams& wait) {
  const TransferGroup& messages = call.groups[blockIdx.x / kP2pChannelsPerTag];
  const int channel_number = static_cast<int>(blockIdx.x % kP2pChannelsPerTag);
  const int direction = messages.is_send ? 0 : 1;
  const std::uint64_t before =
      local_state(group).messages[messages.peer][messages.tag_channel][direction];
  if (!call.collective && channel_number == 0 && threadIdx.x == 0) {
    store_relaxed(&page_of(group).messages_entered[messages.peer][messages.tag_channel][direction],
                  before + messages.count);
  }
  Waiter waiter(group, wait, call.collective ? collective_number(group) : before + 1,
                !call.collective);
  P2pChannel channel(group, messages, channel_number, waiter);
  for (int i = 0; i < messages.count; ++i) {
    const TransferItem& item = call.items[messages.first + i];
    const P2pPart part = p2p_part(item, channel_number);
    if (!(messages.is_send ? channel.send(item, part) : channel.receive(item, part))) return false;
    if (!call.collective) waiter.next();
  }
  channel.end();
  if (!call.collective && threadIdx.x == 0) end_messages(group, messages);
  return true;
}

// NOTE [Poison], for a block that serves a p2p channel.
__device__ void poison_received(const TransferParams& call) {
  const TransferGroup& messages = call.groups[blockIdx.x / kP2pChannelsPerTag];
  if (!call.poisons || messages.is_send) return;
  for (int i = messages.first; i < messages.first + messages.count; ++i) {
    fill_poison(call.items[i].data, call.items[i].bytes, poison_of(call.dtypes[i]));
  }
}

// The blocks after those of the p2p channels copy the message of this rank to itself.
__device__ void copy_own(const TransferParams& call) {
  const unsigned first = static_cast<unsigned>(call.group_count * kP2pChannelsPerTag);
  const unsigned blocks = gridDim.x - first;
  const std::uint64_t even = align_up((call.own.bytes + blocks - 1) / blocks, kCacheLine);
  const std::uint64_t begin = min_size(even * (blockIdx.x - first), call.own.bytes);
  block_copy(static_cast<std::byte*>(call.own.destination) + begin,
             static_cast<const std::byte*>(call.own.source) + begin,
             min_size(even, call.own.bytes - begin));
}

__global__ void SYMM_LAUNCH_BOUNDS(kTransferThreads, 2)
    transfer_kernel(const SYMM_GRID_CONSTANT GroupParams group,
                    const SYMM_GRID_CONSTANT TransferParams call,
                    const SYMM_GRID_CONSTANT WaitParams wait) {
  const bool serves = blockIdx.x < static_cast<unsigned>(call.group_count * kP2pChannelsPerTag);
  if (!serves) copy_own(call);
  const bool found_alive = threadIdx.x != 0 || load_relaxed(&local_state(group).dead) == 0;
  const bool alive = block_all(found_alive);
  if (alive && call.collective && blockIdx.x == 0 && threadIdx.x == 0) {
    store_relaxed(&page_of(group).entered, collective_number(group));
  }
  if (serves && !(alive && serve_p2p_channel(group, call, wait))) {
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

const void* transfer_kernel_address() { return reinterpret_cast<const void*>(&transfer_kernel); }

}  // namespace symm
