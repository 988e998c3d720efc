#include "kernels/protocol/device_layout.hpp"

#include <algorithm>

namespace symm {

namespace {

// Hands out places one after the other, each on a page of its own: nothing that one rank writes
// shares a line with what another writes.
class Places {
 public:
  std::uint64_t take(std::uint64_t bytes) {
    const std::uint64_t place = next_;
    next_ += align_up(bytes, 4096);
    return place;
  }
  std::uint64_t total() const { return next_; }

 private:
  std::uint64_t next_ = 0;
};

constexpr std::uint64_t align_down(std::uint64_t value, std::uint64_t alignment) {
  return value / alignment * alignment;
}

}  // namespace

DeviceLayout DeviceLayout::of(int world_size, std::uint64_t workspace_bytes) {
  const auto world = static_cast<std::uint64_t>(world_size);
  DeviceLayout layout{};
  Places places;
  layout.channel_signals = places.take(kMaxChannels * world * sizeof(ChannelSignal));
  layout.packet_done = places.take(world * sizeof(std::uint32_t));
  layout.lane_signals = places.take(world * kLanes * sizeof(LaneSignal));
  layout.local = places.take(sizeof(LocalState));
  layout.table = places.take(kMaxSegments * world * sizeof(std::byte*));

  // A quarter for packets, a quarter for messages, half for the slots of pipelines.
  const std::uint64_t quarter = workspace_bytes / 4;
  layout.box_packets = align_down(quarter / (2 * world) / kPacketBytes, 8);
  layout.inbox = places.take(2 * world * layout.box_packets * kPacketBytes);
  layout.lane_bytes = align_down(quarter / (world * kLanes * kLaneSlots), kCacheLine);
  layout.lanes = places.take(world * kLanes * kLaneSlots * layout.lane_bytes);
  layout.slot_bytes = align_down(2 * quarter / (kMaxChannels * kSlots), kCacheLine);
  layout.slots = places.take(kMaxChannels * kSlots * layout.slot_bytes);
  layout.total_bytes = places.total();
  return layout;
}

}  // namespace symm
