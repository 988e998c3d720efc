#include "kernels/protocol/device_layout.hpp"

#include <algorithm>

namespace symm {

DeviceLayout DeviceLayout::of(int world_size, std::uint64_t workspace_bytes, int most_blocks) {
  const auto world = static_cast<std::uint64_t>(world_size);
  DeviceLayout layout{};
  // Allocates consecutive parts, each from a page of its own: no line has two writers.
  const auto take = [&layout](std::uint64_t bytes) {
    const std::uint64_t offset = layout.total_bytes;
    layout.total_bytes += align_up(bytes, 4096);
    return offset;
  };
  layout.meeting_signals = take(kMaxChannels * world * sizeof(MeetingSignal));
  // A quarter of the workspace for wire boxes: fewer blocks where the boxes would be too small.
  const std::uint64_t quarter = workspace_bytes / 4;
  const auto boxes = static_cast<std::uint64_t>(wire_senders(world_size));
  const auto box_bytes = [&] {
    return align_down(quarter / (2 * layout.wire_blocks * boxes), 1024);
  };
  layout.wire_blocks = kMaxWireBlocks;
  while (layout.wire_blocks > 1 && box_bytes() < kLeastWireBox) layout.wire_blocks /= 2;
  layout.wire_box_bytes = box_bytes();
  layout.wire_done = take(layout.wire_blocks * world * sizeof(std::uint64_t));
  layout.p2p_freed = take(world * kP2pChannels * sizeof(std::uint32_t));
  layout.local = take(sizeof(LocalState));
  layout.table = take(kMaxSegments * world * sizeof(std::byte*));

  layout.wire_boxes = take(2 * layout.wire_blocks * boxes * layout.wire_box_bytes);
  // An eighth for the slots of messages and nine sixteenths for those of lanes. P2p boxes have at
  // most the last sixteenth, and an eighth beside the workspace.
  const std::uint64_t senders = world > 1 ? world - 1 : 1;
  const std::uint64_t for_messages =
      std::max(workspace_bytes / 8, senders * kSlotPartsOfSender * kLeastMessageSlots * kChunkUnit);
  const std::uint64_t sixteenth = workspace_bytes / 16;
  const std::uint64_t for_lanes = workspace_bytes - quarter - for_messages - sixteenth;
  const auto box_parts = [&] {
    return senders * kBoxPartsOfSender * layout.p2p_channels * std::uint64_t{kP2pBoxes};
  };
  const auto box_part = [&] {
    return align_down(min_size(3 * sixteenth / box_parts(), kMostP2pBoxPart), kP2pBoxUnit);
  };
  layout.p2p_channels = kMostP2pChannelsPerTag;
  while (layout.p2p_channels > static_cast<std::uint32_t>(blocks_of_messages(most_blocks))) {
    layout.p2p_channels /= 2;
  }
  while (layout.p2p_channels > kLeastP2pChannelsPerTag && box_part() == 0) layout.p2p_channels /= 2;
  layout.p2p_box_part = static_cast<std::uint32_t>(box_part());
  layout.p2p_boxes = take(box_parts() * layout.p2p_box_part);
  for (const WireKind kind : {WireKind::kLL, WireKind::kLine}) {
    const WireTile tile = wire_tile(kind);
    for (const int tag_channel : {0, 1}) {
      if (layout.p2p_box_part == 0) continue;
      const std::uint64_t bytes =
          std::uint64_t{layout.p2p_box_tiles(tag_channel, kind)} * tile.bytes;
      layout.p2p_data_of_box[static_cast<int>(kind)][tag_channel] =
          static_cast<std::uint32_t>(align_down(bytes - sizeof(BoxHeader), kCacheLine));
    }
  }
  const auto part_bytes = [&] {
    const std::uint64_t parts = senders * kSlotPartsOfSender * layout.message_slots_of_tag;
    return static_cast<std::uint32_t>(align_down(for_messages / parts, kChunkUnit));
  };
  layout.message_slots_of_tag = kMostMessageSlots;
  while (layout.message_slots_of_tag > kLeastMessageSlots && part_bytes() < kChunkUnit) {
    layout.message_slots_of_tag /= 2;
  }
  layout.message_slot_part = part_bytes();
  layout.message_signals =
      take(world * kTagChannels * layout.message_slots_of_tag * sizeof(MessageSignal));
  layout.message_slots =
      take(senders * kSlotPartsOfSender * layout.message_slots_of_tag * layout.message_slot_part);

  const std::uint64_t of_lane = senders * kBulkSlots;
  const auto lanes_with = [&](std::uint64_t slot) { return for_lanes / (of_lane * slot); };
  std::uint64_t slot = kGoodBulkSlot;
  if (lanes_with(slot) < kFewLanes) slot /= 2;
  while (slot > kLeastBulkSlot && lanes_with(slot) < kLeastLanes) {
    slot = std::max(slot / 2, kLeastBulkSlot);
  }
  layout.bulk_lanes = min_size(lanes_with(slot), kMostLanes);
  layout.bulk_slot_bytes = align_down(
      min_size(for_lanes / (of_lane * layout.bulk_lanes), kMostBulkSlot), kLeastBulkSlot);
  layout.bulk_second_hop = layout.bulk_lanes / kBulkHops;
  layout.bulk_signals = take(layout.bulk_lanes * world * sizeof(BulkSignal));
  layout.bulk_counts = take(layout.bulk_lanes * world * sizeof(BulkCount));
  layout.bulk_slots = take(layout.bulk_lanes * senders * kBulkSlots * layout.bulk_slot_bytes);
  return layout;
}

}  // namespace symm
