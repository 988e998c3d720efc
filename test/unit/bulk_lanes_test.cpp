// Lanes of every collective have their counters and slots in the memory of the group.
#include <gtest/gtest.h>

#include <string>

#include "kernels/gpu/launch/large_shares.hpp"
#include "kernels/gpu/launch/launch_params.hpp"

namespace symm {
namespace {

constexpr std::uint64_t kMiB = 1u << 20;

// Warps of a block on a GPU whose warps have 32 threads, and 64.
constexpr int kWarps[] = {kMostBulkWarps, kMostBulkWarps / 2};

TEST(BulkLanes, EveryCallHasItsLanesInMemory) {
  for (int world = 1; world <= kMaxDeviceRanks; ++world) {
    for (const std::uint64_t workspace : {kLeastDeviceWorkspace, 32 * kMiB, 64 * kMiB}) {
      const DeviceLayout layout = DeviceLayout::of(world, workspace);
      SCOPED_TRACE(std::to_string(world) + " ranks, " + std::to_string(workspace));
      EXPECT_GE(layout.bulk_blocks, 1u);
      EXPECT_GE(layout.bulk_slot_bytes, kLeastBulkSlot);
      EXPECT_EQ(layout.bulk_slot_bytes % kLeastBulkSlot, 0u);
      for (int kind = 0; kind < kCollectiveKindCount; ++kind) {
        const bool two_lists = has_two_lists(static_cast<CollectiveKind>(kind), world);
        for (const int warps : kWarps) {
          const int roles = lane_roles(world, two_lists);
          const LaneShape shape = lane_shape(roles, world - 1, warps);
          ASSERT_GE(shape.lanes_of_block, 1) << kind;
          EXPECT_LE(shape.lanes_of_block * shape.warps, warps);
          // The middles' places in the block's memory (BulkShared).
          EXPECT_LE(shape.lanes_of_block * world, kMaxDeviceRanks);
          const std::uint64_t lanes =
              layout.bulk_blocks * static_cast<std::uint64_t>(shape.lanes_of_block);
          EXPECT_LE(lanes, layout.bulk_lanes) << kind;
          if (!two_lists) continue;  // nor a second hop
          EXPECT_LE(lanes, layout.bulk_second_hop) << kind;
          EXPECT_LE(layout.bulk_second_hop + lanes, layout.bulk_lanes) << kind;
        }
      }
    }
  }
}

TEST(BulkLanes, AWarpServesSeveralPeersWhereALaneHasMoreThanWarps) {
  const auto shape = [](int world, int warps) {
    const LaneShape s = lane_shape(lane_roles(world, true), world - 1, warps);
    return std::vector{s.peers_of_warp, s.warps, s.lanes_of_block};
  };
  EXPECT_EQ(shape(2, 32), (std::vector{1, 3, 10}));
  EXPECT_EQ(shape(8, 32), (std::vector{1, 15, 2}));
  EXPECT_EQ(shape(16, 32), (std::vector{1, 31, 1}));
  EXPECT_EQ(shape(17, 32), (std::vector{2, 17, 1}));
  EXPECT_EQ(shape(64, 32), (std::vector{5, 27, 1}));
  EXPECT_EQ(shape(64, 16), (std::vector{9, 15, 1}));
}

// The size of a share decides, in each direction by itself.
TEST(LargeShares, GoByLanesEachPairByItself) {
  LargeShares shares(1, 3);
  std::vector<std::byte> data(kMostShareByMessages + 1);
  const auto message = [&](int peer, bool is_send, std::uint64_t bytes) {
    return TransferOp{.data = data.data() + (is_send ? 0 : 1),
                      .bytes = bytes,
                      .peer = peer,
                      .is_send = is_send,
                      .dtype = Dtype::kInt16};
  };
  std::vector<TransferOp> ops;
  for (const int peer : {0, 1, 2}) {
    const std::uint64_t bytes = kMostShareByMessages + (peer == 2 ? 1 : 0);
    ops.push_back(message(peer, true, bytes));
    ops.push_back(message(peer, false, kMostShareByMessages));
  }
  ASSERT_TRUE(shares.divide(ops));
  EXPECT_EQ(shares.launch().sends[0], 0b100u);
  EXPECT_EQ(shares.launch().hears[0], 0u);
  EXPECT_EQ(shares.launch().send[2].bytes, kMostShareByMessages + 1);
  EXPECT_FALSE(shares.launch().copies_own);
  EXPECT_EQ(shares.dtype(), Dtype::kInt16);
  EXPECT_EQ(shares.others().size(), 5u);

  for (TransferOp& op : ops) op.bytes = kMostShareByMessages + 1;
  ASSERT_TRUE(shares.divide(ops));
  EXPECT_EQ(shares.launch().sends[0], 0b101u);
  EXPECT_EQ(shares.launch().hears[0], 0b101u);
  EXPECT_TRUE(shares.launch().copies_own);
  EXPECT_TRUE(shares.others().empty());

  for (TransferOp& op : ops) op.bytes = 7;
  EXPECT_FALSE(shares.divide(ops));
}

// The group's memory is what its workspace says, and what is beside it.
TEST(BulkLanes, SlotsStayWithinTheWorkspace) {
  for (const int world : {2, 3, 4, 8, 16, 64}) {
    const DeviceLayout layout = DeviceLayout::of(world, 64 * kMiB);
    const std::uint64_t slots = layout.total_bytes - layout.bulk_slots;
    EXPECT_LE(slots, 34 * kMiB + 4096) << world;
    EXPECT_GE(layout.bulk_slot_bytes, 4096u) << world;
  }
}

}  // namespace
}  // namespace symm
