#include "kernels/protocol/device_layout.hpp"

namespace symm {

DeviceLayout DeviceLayout::of(int world_size, std::uint64_t workspace_bytes) {
  const auto world = static_cast<std::uint64_t>(world_size);
  DeviceLayout layout{};
  // Allocates consecutive parts, each from a page of its own: no line has two writers.
  const auto take = [&layout](std::uint64_t bytes) {
    const std::uint64_t offset = layout.total_bytes;
    layout.total_bytes += align_up(bytes, 4096);
    return offset;
  };
  layout.channel_signals = take(kMaxChannels * world * sizeof(ChannelSignal));
  layout.ll_done = take(world * sizeof(std::uint32_t));
  layout.p2p_signals = take(world * kP2pChannels * sizeof(P2pSignal));
  layout.local = take(sizeof(LocalState));
  layout.table = take(kMaxSegments * world * sizeof(std::byte*));

  // A quarter for LL buffers, a quarter for p2p slots, half for the slots of pipelines.
  const std::uint64_t quarter = workspace_bytes / 4;
  layout.ll_buffer_packets = align_down(quarter / (2 * world) / kLLPacketBytes, 8);
  layout.ll_buffers = take(2 * world * layout.ll_buffer_packets * kLLPacketBytes);
  layout.p2p_slot_bytes = align_down(quarter / (world * kP2pChannels * kP2pSlots), kCacheLine);
  layout.p2p_slots = take(world * kP2pChannels * kP2pSlots * layout.p2p_slot_bytes);
  layout.slot_bytes = align_down(2 * quarter / (kMaxChannels * kSlots), kCacheLine);
  layout.slots = take(kMaxChannels * kSlots * layout.slot_bytes);
  return layout;
}

}  // namespace symm
