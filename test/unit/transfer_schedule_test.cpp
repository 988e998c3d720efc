// How batches of messages become launches: those of a rank to itself beside the others.
#include "kernels/gpu/launch/transfer_schedule.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <utility>
#include <vector>

#include "kernels/gpu/interface/wire_params.hpp"

namespace symm {
namespace {

constexpr int kRank = 1;
constexpr int kWorld = 3;

class TransferScheduleTest : public testing::Test {
 protected:
  void to_self(std::size_t from, std::size_t to, std::uint64_t bytes) {
    ops_.push_back({&memory_[from], bytes, 0, kRank, true});
    ops_.push_back({&memory_[to], bytes, 0, kRank, false});
  }
  void to_peer(int messages) {
    for (int i = 0; i < messages; ++i) ops_.push_back({memory_.data(), 8, 0, 2, true});
  }
  const std::vector<TransferParams>& plan() {
    launches_.clear();
    schedule_.plan(ops_, [this](const TransferParams& params) { launches_.push_back(params); });
    return launches_;
  }
  static int messages_of(const TransferParams& launch) {
    int count = 0;
    for (int g = 0; g < launch.group_count; ++g) count += launch.groups[g].count;
    return count;
  }
  // (bytes, whether they go from memory_[from] to memory_[to]).
  void expect_copy(const TransferParams& launch, std::size_t from, std::size_t to,
                   std::uint64_t bytes) {
    EXPECT_EQ(launch.own.source, &memory_[from]);
    EXPECT_EQ(launch.own.destination, &memory_[to]);
    EXPECT_EQ(launch.own.bytes, bytes);
  }

  std::array<std::byte, 64> memory_{};
  std::vector<TransferOp> ops_;
  std::vector<TransferParams> launches_;
  TransferSchedule schedule_{kRank, kWorld, DeviceLayout::of(kWorld, 64u << 20), true};
};

TEST_F(TransferScheduleTest, EachLaunchCarriesOneMessageToOneself) {
  to_self(0, 1, 10);
  to_peer(3);
  to_self(2, 3, 20);
  to_self(4, 5, 30);
  const auto& launches = plan();
  ASSERT_EQ(launches.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    expect_copy(launches[i], 2 * i, 2 * i + 1, 10 * (i + 1));
    EXPECT_EQ(messages_of(launches[i]), i == 0 ? 3 : 0);
    EXPECT_EQ(launches[i].threads, kTransferThreads);
  }
}

TEST_F(TransferScheduleTest, LaterLaunchesOfOthersCarryNothingOfTheFirst) {
  to_peer(kMaxTransferItems + 1);
  to_self(0, 1, 10);
  const auto& launches = plan();
  ASSERT_EQ(launches.size(), 2u);
  expect_copy(launches[0], 0, 1, 10);
  EXPECT_EQ(messages_of(launches[0]), kMaxTransferItems);
  EXPECT_EQ(launches[1].own.bytes, 0u);
  EXPECT_EQ(messages_of(launches[1]), 1);
  EXPECT_EQ(launches[1].threads, kTileThreads);
}

// A thread for each unit that the largest part has with its header, and all where there are chunks.
TEST_F(TransferScheduleTest, ALaunchHasTheThreadsOfItsLargestPart) {
  constexpr std::uint64_t kTile = wire_tile(WireKind::kLL).bytes;
  const std::pair<std::uint64_t, int> cases[] = {{0, 1},
                                                 {kTile - 128, 1},
                                                 {kTile, 2},
                                                 {kMostUndividedMessage, 16},
                                                 {kMostUndividedMessage + 1, 9},
                                                 {400u << 10, 16},
                                                 {1u << 20, 16}};
  for (const auto& [bytes, warps] : cases) {
    ops_ = {{memory_.data(), 0, 0, 0, false}, {memory_.data(), bytes, 0, 2, true}};
    EXPECT_EQ(plan()[0].threads, warps * kTileThreads) << bytes;
  }
}

TEST_F(TransferScheduleTest, ALaunchHasTheChannelsOfItsLargestMessage) {
  ops_.push_back({memory_.data(), kMostUndividedMessage, 0, 2, true});
  EXPECT_EQ(plan()[0].channels, 1);
  ops_.push_back({memory_.data(), kMostUndividedMessage + 1, 0, 0, false});
  EXPECT_EQ(plan()[0].channels, 2);
  ops_.push_back({memory_.data(), 16 * kGoodMessagePart + 1, 0, 0, false});
  EXPECT_EQ(plan()[0].channels, kMostP2pChannelsPerTag);
  EXPECT_EQ(plan()[0].forms, MessageForms::kBoxes);
  EXPECT_EQ(plan()[0].blocks, kMostP2pChannelsPerTag);
  ops_.push_back({memory_.data(), 1u << 20, 0, 0, false});
  EXPECT_EQ(plan()[0].forms, MessageForms::kBoth);
  EXPECT_EQ(plan()[0].channels, kMostP2pChannelsPerTag);
  // Without boxes every message is divided.
  const DeviceLayout least = DeviceLayout::of(64, kLeastDeviceWorkspace);
  EXPECT_EQ(least.p2p_box_part, 0u);
  EXPECT_FALSE(least.is_short_message(0, tag_channel_of(0)));
}

// Blocks for the chunks of the busiest group, as far as all groups of the launch have room.
TEST_F(TransferScheduleTest, BlocksOfChunks) {
  const DeviceLayout layout = DeviceLayout::of(kWorld, 64u << 20);
  const std::uint64_t least = layout.p2p_box_data(tag_channel_of(0)) * layout.p2p_channels + 1;
  const auto chunks = [&](std::uint64_t bytes) { return layout.message_cut(bytes, 0).chunks; };
  ops_.push_back({memory_.data(), least, 0, 2, true});
  EXPECT_EQ(plan()[0].forms, MessageForms::kChunks);
  EXPECT_EQ(plan()[0].channels, 0);
  EXPECT_EQ(plan()[0].blocks, (chunks(least) + kTransferWarps - 1) / kTransferWarps);
  ops_.push_back({memory_.data(), 1u << 30, 0, 2, true});
  const int most = plan()[0].blocks;
  EXPECT_GT(most, 4);
  for (int tag = 0; tag < kTagChannels; ++tag) {
    for (const int peer : {0, 2}) {
      for (const bool is_send : {false, true}) {
        ops_.push_back({memory_.data(), 1u << 30, tag, peer, is_send});
      }
    }
  }
  const TransferParams& full = plan()[0];
  EXPECT_EQ(full.group_count, 16);
  EXPECT_LE(full.group_count * full.blocks, 192);
  EXPECT_GE(full.group_count * full.blocks, 192 - 16);
}

// All blocks of a launch must be resident: groups whose messages take all p2p channels are divided
// among launches, and none is left out.
TEST_F(TransferScheduleTest, ManyGroupsWithAllChannelsAreSeveralLaunches) {
  constexpr int kMany = 31;
  const DeviceLayout layout = DeviceLayout::of(kMany, 1u << 30);
  TransferSchedule schedule(kRank, kMany, layout, true);
  const std::uint64_t bytes = 16 * kGoodMessagePart;
  for (int peer = 0; peer < kMany; ++peer) {
    if (peer == kRank) continue;
    for (const bool is_send : {false, true}) {
      ops_.push_back({memory_.data(), bytes, 0, peer, is_send});
    }
  }
  int messages = 0;
  int launches = 0;
  schedule.plan(ops_, [&](const TransferParams& params) {
    EXPECT_EQ(params.channels, 16);
    EXPECT_LE(params.group_count * params.blocks, 192);
    messages += messages_of(params);
    ++launches;
  });
  EXPECT_EQ(messages, 2 * (kMany - 1));
  EXPECT_EQ(launches, 5);
}

TEST_F(TransferScheduleTest, DtypesStayWithTheirMessages) {
  for (const int tag : {0, 1, 0}) {
    ops_.push_back({.data = &memory_[ops_.size()],
                    .bytes = 8,
                    .tag = tag,
                    .peer = 2,
                    .dtype = tag == 0 ? Dtype::kFloat16 : Dtype::kInt64});
  }
  const std::vector<TransferParams>& launches = plan();
  ASSERT_EQ(launches.size(), 1u);
  EXPECT_TRUE(launches[0].poisons);
  ASSERT_EQ(messages_of(launches[0]), 3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(launches[0].dtypes[i],
              launches[0].items[i].tag == 0 ? Dtype::kFloat16 : Dtype::kInt64);
  }
}

TEST_F(TransferScheduleTest, WhatMovesNothingNeedsNoLaunch) {
  to_self(0, 1, 0);
  to_self(2, 2, 10);
  EXPECT_TRUE(plan().empty());
  to_self(3, 4, 5);
  ASSERT_EQ(plan().size(), 1u);
  expect_copy(launches_[0], 3, 4, 5);
  EXPECT_EQ(launches_[0].group_count, 0);
}

}  // namespace
}  // namespace symm
