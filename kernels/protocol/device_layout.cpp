#include "kernels/protocol/device_layout.hpp"

#include <algorithm>

namespace symm {

namespace {

// Allocates consecutive parts, each from a page of its own: no line has two writers.
class OffsetAllocator {
 public:
  std::uint64_t take(std::uint64_t bytes) {
    const std::uint64_t offset = next_;
    next_ += align_up(bytes, 4096);
    return offset;
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
  OffsetAllocator offsets;
  layout.channel_signals = offsets.take(kMaxChannels * world * sizeof(ChannelSignal));
  layout.ll_done = offsets.take(world * sizeof(std::uint32_t));
  layout.p2p_signals = offsets.take(world * kP2pChannels * sizeof(P2pSignal));
  layout.local = offsets.take(sizeof(LocalState));
  layout.table = offsets.take(kMaxSegments * world * sizeof(std::byte*));

  // A quarter for LL buffers, a quarter for p2p slots, half for the slots of pipelines.
  const std::uint64_t quarter = workspace_bytes / 4;
  layout.ll_buffer_packets = align_down(quarter / (2 * world) / kLLPacketBytes, 8);
  layout.ll_buffers = offsets.take(2 * world * layout.ll_buffer_packets * kLLPacketBytes);
  layout.p2p_slot_bytes = align_down(quarter / (world * kP2pChannels * kP2pSlots), kCacheLine);
  layout.p2p_slots = offsets.take(world * kP2pChannels * kP2pSlots * layout.p2p_slot_bytes);
  layout.slot_bytes = align_down(2 * quarter / (kMaxChannels * kSlots), kCacheLine);
  layout.slots = offsets.take(kMaxChannels * kSlots * layout.slot_bytes);
  layout.total_bytes = offsets.total();
  return layout;
}

}  // namespace symm
