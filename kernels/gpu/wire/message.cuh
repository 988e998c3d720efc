// Where the messages of one peer, direction and tag channel are in memory.
//
// NOTE [Position of a message]
// A message's position is how many boxes of the first p2p channel and how many chunks there were
// before it, added, modulo 2^32 (in another p2p channel: how many of its own boxes): of one peer,
// direction and tag channel both ends have the same, and no two messages under way do. It travels
// with a message in either form. A receiver that waits in vain for the one
// form looks now and then whether a message of the other has come with the same position, which
// then is not the one that it expects. That some message has come says nothing: blocks and warps
// send at their own pace, so a later message of the other form may come first.
#pragma once

#include "kernels/gpu/device/wait.cuh"
#include "kernels/gpu/wire/tile.cuh"

namespace symm {

static_assert(sizeof(MessageHeader) == kUnitBytes && sizeof(BoxHeader) == kUnitBytes);

// A receiver looks for the other form once in so many failed polls.
inline constexpr std::uint32_t kOtherFormPeriod = 256;

class MessageMemory {
 public:
  __device__ MessageMemory(const GroupParams& group, const TransferGroup& messages)
      : group_(group),
        peer_(messages.peer),
        tag_channel_(messages.tag_channel),
        wire_(messages.wire),
        direction_(messages.is_send ? 0 : 1) {}

  __device__ const DeviceLayout& layout() const { return group_.layout; }
  __device__ const int& peer() const { return peer_; }
  __device__ int tag_channel() const { return tag_channel_; }
  __device__ WireKind wire() const { return wire_; }
  __device__ bool goes_in_boxes(const TransferItem& item) const {
    return layout().goes_in_boxes(item.bytes, tag_channel_, wire_);
  }

  // Of chunk `number` from the peer, or to it.
  __device__ MessageSignal& own_signal(std::uint32_t number) const {
    return signal(group_.rank, peer_, number);
  }
  __device__ MessageSignal& peer_signal(std::uint32_t number) const {
    return signal(peer_, group_.rank, number);
  }
  __device__ std::byte* own_slot(std::uint32_t number) const {
    return slot(group_.rank, peer_, number);
  }
  __device__ std::byte* peer_slot(std::uint32_t number) const {
    return slot(peer_, group_.rank, number);
  }
  // Of this direction, ever.
  __device__ std::uint32_t& chunks() const {
    return local_state(group_).message_chunks[peer_][tag_channel_][direction_];
  }

  // Of p2p channel `channel` of the tag channel: the boxes that the peer has freed, here and there,
  // box number `count`, and how many there were.
  __device__ std::uint32_t& own_freed(int channel) const {
    return freed(group_.rank, peer_, channel);
  }
  __device__ std::uint32_t& peer_freed(int channel) const {
    return freed(peer_, group_.rank, channel);
  }
  __device__ std::byte* own_box(int channel, std::uint64_t count) const {
    return box(group_.rank, peer_, channel, count);
  }
  __device__ std::byte* peer_box(int channel, std::uint64_t count) const {
    return box(peer_, group_.rank, channel, count);
  }
  __device__ std::uint64_t& boxes(int channel) const {
    P2pCounter& counter = local_state(group_).p2p_channels[peer_][p2p_channel(channel)];
    return direction_ == 0 ? counter.sent : counter.received;
  }

 private:
  __device__ int p2p_channel(int channel) const {
    return tag_channel_ * kMostP2pChannelsPerTag + channel;
  }
  // In the segment of `owner`, of what `other` sends to it, or says of what was sent to `other`.
  __device__ MessageSignal& signal(int owner, int other, std::uint32_t number) const {
    return *reinterpret_cast<MessageSignal*>(
        segment_of(group_, owner) + group_.layout.message_signal(other, tag_channel_, number));
  }
  __device__ std::byte* slot(int owner, int sender, std::uint32_t number) const {
    return segment_of(group_, owner) +
           group_.layout.message_slot(sender > owner ? sender - 1 : sender, tag_channel_, number);
  }
  __device__ std::uint32_t& freed(int owner, int other, int channel) const {
    auto* counters =
        reinterpret_cast<std::uint32_t*>(segment_of(group_, owner) + group_.layout.p2p_freed);
    return counters[other * kP2pChannels + p2p_channel(channel)];
  }
  __device__ std::byte* box(int owner, int sender, int channel, std::uint64_t count) const {
    return segment_of(group_, owner) + group_.layout.p2p_box(sender > owner ? sender - 1 : sender,
                                                             tag_channel_, channel,
                                                             static_cast<std::uint32_t>(count));
  }

  const GroupParams& group_;
  const int peer_;
  const int tag_channel_;
  const WireKind wire_;
  const int direction_;
};

__device__ inline MessageHeader header_of(const MessageSignal& signal) {
  std::uint64_t bytes = 0;
  std::uint64_t tag = 0;
  load_relaxed_pair(reinterpret_cast<const std::uint64_t*>(&signal.header), &bytes, &tag);
  return {bytes, static_cast<std::int64_t>(tag)};
}

// What `filled` of a slot is while chunk `number` of the message at `position` is in it.
__device__ inline std::uint64_t filled_with(std::uint32_t number, std::uint32_t position) {
  return std::uint64_t{position} << 32 | (number + 1);
}
// Acquires the chunk where it has come.
__device__ inline bool has_chunk(const MessageSignal& signal, std::uint64_t filled) {
  return acquire_if(&signal.filled, [=](std::uint64_t value) { return value == filled; });
}

// The header of the message at `position`, which is in box `count` of the first p2p channel;
// `expected` where none has come. Looked at now and then, by one thread: the first unit of a line
// is there after its last word.
[[maybe_unused]] static __device__ SYMM_OUTLINED MessageHeader header_in(std::byte* box,
                                                                         WireKind wire,
                                                                         std::uint64_t count,
                                                                         std::uint32_t position,
                                                                         MessageHeader expected) {
  Unit unit;
  if (wire == WireKind::kLine) {
    const auto* const words = reinterpret_cast<const std::uint64_t*>(box);
    if (load_acquire(words + kLineFlagWord) != count + 1) return expected;
    std::uint64_t low = 0;
    std::uint64_t high = 0;
    load_relaxed_pair(words, &low, &high);
    unit = unit_from(low, high);
  } else if (!LLTile::receive(box, LLTile::flag_of(count + 1), &unit)) {
    return expected;
  }
  const auto header = __builtin_bit_cast(BoxHeader, unit);
  return header.position == position ? MessageHeader{header.bytes, header.tag} : expected;
}

// Whether a message is the one that `item` expects; if not, reported by the threads that
// `reports`. The same result in every thread with the same header.
__device__ inline bool matches(const MessageHeader& header, const TransferItem& item, int peer,
                               Waiter& waiter, bool reports) {
  if (header.tag == item.tag && header.bytes == item.bytes) return true;
  if (!reports) return false;
  if (header.tag != item.tag) {
    return waiter.fail(DeviceFault::kTagMismatch, peer, static_cast<std::uint64_t>(header.tag),
                       static_cast<std::uint64_t>(item.tag));
  }
  return waiter.fail(DeviceFault::kCountMismatch, peer, header.bytes, item.bytes);
}

}  // namespace symm
