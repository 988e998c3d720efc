#include "kernels/gpu/launch/first_counts.hpp"

#include <algorithm>
#include <vector>

namespace symm {

void set_first_counts(const DeviceLayout& layout, int world_size, const FirstCounts& first,
                      std::byte* segment, CopyStreams& copies) {
  const auto write = [&](std::uint64_t offset, const auto& values) {
    copies.copy_to_device(segment + offset, values.data(), values.size() * sizeof(values[0]));
  };
  const auto world = static_cast<std::size_t>(world_size);
  MeetingSignal signal{};
  signal.entered = signal.done = first.meetings;
  write(layout.meeting_signals, std::vector<MeetingSignal>(kMaxChannels * world, signal));
  write(layout.wire_done, std::vector<std::uint64_t>(layout.wire_blocks * world, first.wire));
  write(layout.p2p_freed, std::vector<std::uint32_t>(world * kP2pChannels, first.p2p));
  std::vector<MessageSignal> messages(world * kTagChannels * layout.message_slots_of_tag);
  for (std::uint32_t i = 0; i < messages.size(); ++i) {
    // The last chunk in this slot.
    const std::uint32_t last = first.p2p - 1 - layout.slot_of(first.p2p - 1 - i);
    messages[i].filled = messages[i].freed = last + 1;
  }
  write(layout.message_signals, messages);
  BulkSignal bulk{};
  bulk.filled = bulk.freed = first.bulk;
  const std::size_t pairs = layout.bulk_lanes * world;
  write(layout.bulk_signals, std::vector<BulkSignal>(pairs, bulk));
  write(layout.bulk_counts, std::vector<BulkCount>(pairs, {first.bulk, first.bulk}));
  std::vector<LocalState> local(1);
  std::fill_n(local[0].wire_epoch, kMaxWireBlocks, first.wire);
  std::fill_n(local[0].meetings, kMaxChannels, first.meetings);
  for (auto& of_peer : local[0].p2p_channels) {
    std::fill_n(of_peer, kP2pChannels, P2pCounter{first.p2p, first.p2p});
  }
  for (auto& of_peer : local[0].message_chunks) {
    for (auto& of_tag : of_peer) std::fill_n(of_tag, 2, first.p2p);
  }
  write(layout.local, local);
}

}  // namespace symm
