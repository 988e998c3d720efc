// Lanes of every collective have their counters and slots in the memory of the group.
#include <gtest/gtest.h>

#include <string>

#include "kernels/gpu/launch/launch_params.hpp"

namespace symm {
namespace {

constexpr std::uint64_t kMiB = 1u << 20;

TEST(BulkLanes, EveryCallHasItsLanesInMemory) {
  for (int world = 1; world <= kMaxDeviceRanks; ++world) {
    for (const std::uint64_t workspace : {kLeastDeviceWorkspace, 32 * kMiB, 64 * kMiB}) {
      const DeviceLayout layout = DeviceLayout::of(world, workspace);
      SCOPED_TRACE(std::to_string(world) + " ranks, " + std::to_string(workspace));
      EXPECT_GE(layout.bulk_slot_bytes, kLeastBulkSlot);
      EXPECT_EQ(layout.bulk_slot_bytes % kLeastBulkSlot, 0u);
      EXPECT_LE(layout.bulk_lanes, static_cast<std::uint64_t>(kMostLanes));
      EXPECT_EQ(layout.bulk_second_hop, layout.bulk_lanes / 2);
      for (int kind = 0; kind < kCollectiveKindCount; ++kind) {
        for (const int blocks : {1, 16, 24, 25, kMaxBulkBlocks}) {
          const LaneShape shape = lane_shape(static_cast<CollectiveKind>(kind), world, blocks);
          const LaneGrid grid = lane_grid(shape, layout, world, blocks);
          ASSERT_GE(grid.lanes_of_block, 1) << kind;
          ASSERT_GE(grid.blocks, 1u) << kind;
          EXPECT_LE(grid.blocks, static_cast<unsigned>(blocks));
          EXPECT_LE(shape.warps, kMostLaneWarps);
          EXPECT_LE(grid.lanes_of_block * shape.warps, kMostBulkWarps);
          EXPECT_LE(grid.lanes_of_block * shape.warps * world, kBulkPlaces);
          const std::uint64_t lanes = grid.blocks * static_cast<std::uint64_t>(grid.lanes_of_block);
          EXPECT_LE(lanes, layout.bulk_lanes / static_cast<std::uint64_t>(shape.hops)) << kind;
        }
      }
    }
  }
}

TEST(BulkLanes, SharesOfBlocksAndMemoryForTheUsualGroups) {
  const auto grid = [](CollectiveKind kind, int world, int blocks, bool root_combines = true) {
    const DeviceLayout layout = DeviceLayout::of(world, 64 * kMiB);
    const LaneShape shape = lane_shape(kind, world, blocks, root_combines);
    const LaneGrid lanes = lane_grid(shape, layout, world, blocks);
    return std::vector{shape.warps, shape.parts, static_cast<int>(lanes.blocks),
                       lanes.lanes_of_block};
  };
  using enum CollectiveKind;
  EXPECT_EQ(grid(kAllReduce, 2, 64), (std::vector{3, 1, 64, 10}));
  EXPECT_EQ(grid(kReduce, 2, 64), (std::vector{1, 1, 64, 20}));
  EXPECT_EQ(grid(kAllReduce, 4, 64), (std::vector{3, 1, 64, 6}));
  EXPECT_EQ(grid(kAllReduce, 4, 16), (std::vector{3, 1, 16, 10}));
  EXPECT_EQ(grid(kReduce, 4, 64), (std::vector{3, 1, 64, 6}));
  EXPECT_EQ(grid(kReduce, 4, 64, false), (std::vector{2, 1, 48, 8}));
  EXPECT_EQ(grid(kAllGather, 4, 64), (std::vector{7, 3, 64, 4}));
  EXPECT_EQ(grid(kAllGather, 4, 16), (std::vector{3, 1, 16, 10}));
  EXPECT_EQ(grid(kScatter, 8, 32), (std::vector{4, 3, 32, 8}));
}

// Each peer is served by one warp of a role, and the own piece is copied once.
TEST(BulkLanes, WarpsShareThePeers) {
  for (const int world : {1, 2, 3, 4, 8, 64}) {
    for (const int blocks : {16, kMaxBulkBlocks}) {
      const LaneShape shape = lane_shape(CollectiveKind::kAllGather, world, blocks);
      BulkParams<kMaxDeviceRanks> params{};
      params.first_hop = params.placed = world == 1 ? 0 : 2;
      set_warps(params, shape, true);
      int sending = 0;
      int placing = 0;
      int copying = 0;
      for (const LaneWarp& warp : params.warps) {
        if ((warp.role & kLaneSends) != 0) {
          EXPECT_EQ(warp.part, sending++);
        }
        if ((warp.role & kLanePlaces) != 0) {
          EXPECT_EQ(warp.part, placing++);
        }
        if ((warp.role & kLaneCopiesOwn) != 0) ++copying;
      }
      EXPECT_EQ(sending, world == 1 ? 0 : shape.parts) << world;
      EXPECT_EQ(placing, sending) << world;
      EXPECT_EQ(copying, 1) << world;
      EXPECT_LE(sending + placing, shape.warps) << world;
    }
  }
}

// The group's memory is what its workspace says, and what is beside it.
TEST(BulkLanes, SlotsStayWithinTheWorkspace) {
  for (const int world : {2, 3, 4, 8, 16, 64}) {
    const DeviceLayout layout = DeviceLayout::of(world, 64 * kMiB);
    const std::uint64_t slots = layout.total_bytes - layout.bulk_slots;
    EXPECT_LE(slots, 36 * kMiB + 4096) << world;
    EXPECT_GE(layout.bulk_slot_bytes, 4096u) << world;
  }
}

}  // namespace
}  // namespace symm
