// Which launches the straight kernels of collectives and messages take, and with what parameters.
#include "kernels/gpu/launch/straight_launch.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/gpu/launch/transfer_schedule.hpp"

namespace symm {
namespace {

// Addresses of this process stand for those of the device: nothing is read or written there.
class FewTilesLaunchTest : public testing::Test {
 protected:
  FewTilesLaunchTest() {
    config_.rank = 1;
    config_.world_size = 4;
    config_.layout = DeviceLayout::of(4, std::uint64_t{64} << 20);
    group_.rank = 1;
    group_.world_size = 4;
    group_.layout = config_.layout;
    for (std::uintptr_t rank = 0; rank < 4; ++rank) {
      group_.segments[rank] = address((rank + 1) << 40);
    }
    group_.page = reinterpret_cast<DevicePage*>(address(std::uintptr_t{1} << 50));
    launch_.send.resize(4);
    launch_.take.resize(4);
  }
  static std::byte* address(std::uintptr_t value) { return reinterpret_cast<std::byte*>(value); }
  bool takes(int world = 4, int ranks_of_gpu = 1) const {
    return has_few_tiles_a_warp(launch_, call_, WireKind::kLine, 1, world, ranks_of_gpu);
  }
  FewTilesParams<3> params() const {
    return few_tiles_params<3>(launch_, call_, {config_, group_, WireKind::kLine, options_});
  }

  GroupKernelsConfig config_;
  GroupParams group_{};
  LaunchOptions options_;
  CollectiveParams call_{};
  WireLaunch launch_;
};

TEST_F(FewTilesLaunchTest, WhereEachWarpHasFewTiles) {
  launch_.blocks = 64;
  launch_.tiles_per_block = 32;
  EXPECT_TRUE(takes());
  EXPECT_TRUE(takes(4, 2));
  EXPECT_FALSE(takes(4, 3)) << "192 blocks that fill a multiprocessor each";
  EXPECT_FALSE(takes(8)) << "whose kernel has fewer warps";
  launch_.tiles_per_block = 33;
  EXPECT_TRUE(takes(2)) << "in rounds";
  EXPECT_TRUE(takes(4)) << "in rounds";
  launch_.tiles_per_block = kMostWireTiles + 1;
  EXPECT_FALSE(takes(8)) << "whose kernel has one";
  launch_.tiles_per_block = kMostWireTiles;
  EXPECT_FALSE(takes(8, 8)) << "512 blocks of which one fits on a multiprocessor";
  launch_.tiles_per_block = kWireTiles;
  EXPECT_TRUE(takes(8, 8)) << "two such blocks fit";
}

TEST_F(FewTilesLaunchTest, NotForFactors) {
  EXPECT_TRUE(takes());
  call_.premultiplies = true;
  EXPECT_FALSE(takes());
}

TEST_F(FewTilesLaunchTest, TheLastOfSeveralLaunchesEndsTheCall) {
  launch_.ends_call = false;
  EXPECT_TRUE(takes());
  EXPECT_FALSE(params().ends_call);
  launch_.ends_call = true;
  EXPECT_TRUE(params().ends_call);
}

// The own piece is copied by the blocks that there are.
TEST_F(FewTilesLaunchTest, TheOwnPieceMayBeTooLong) {
  const std::uint64_t tile = wire_tile(WireKind::kLine).bytes;
  launch_.blocks = 2;
  launch_.tiles_per_block = 3;
  launch_.copies_own = true;
  launch_.send[1].bytes = 6 * tile;
  EXPECT_TRUE(takes());
  launch_.send[1].bytes = 6 * tile + 1;
  EXPECT_FALSE(takes());
  launch_.copies_own = false;
  EXPECT_TRUE(takes());
}

TEST_F(FewTilesLaunchTest, PeersAreTheOthersInOrder) {
  EXPECT_EQ(peers_in(0b1101, 1), 0b111u);
  EXPECT_EQ(peers_in(0b1000, 1), 0b100u);
  EXPECT_EQ(peers_in(0b0001, 1), 0b001u);
  EXPECT_EQ(peers_in(0b1110, 0), 0b111u);
  EXPECT_EQ(peers_in(0b0111, 3), 0b111u);
}

TEST_F(FewTilesLaunchTest, AddressesAreThoseOfBlockZero) {
  launch_.sends[0] = launch_.hears[0] = 0b1101;
  launch_.stores = 0b1111;
  launch_.take[3] = {address(4096), 480};
  call_.root = 3;
  const FewTilesParams<3> made = params();
  const DeviceLayout& layout = config_.layout;
  EXPECT_EQ(made.peers[2].to, group_.segments[3] + layout.wire_boxes + layout.wire_box_bytes);
  EXPECT_EQ(made.peers[2].from, group_.segments[1] + layout.wire_boxes + 3 * layout.wire_box_bytes);
  EXPECT_EQ(reinterpret_cast<std::byte*>(made.peers[0].done),
            group_.segments[0] + layout.wire_done + layout.wire_blocks * sizeof(std::uint64_t));
  EXPECT_EQ(made.peers[2].take.data, address(4096));
  EXPECT_EQ(made.box_step, 4 * layout.wire_box_bytes);
  EXPECT_EQ(made.sends[0], 0b111u);
  EXPECT_EQ(made.stores, 0b111u);
  EXPECT_TRUE(made.stores_own);
  EXPECT_EQ(made.root, 2);
}

// What goes to all is sent to each; this rank's own piece is loaded only where it is needed here.
TEST_F(FewTilesLaunchTest, WhatGoesToAllIsSentToEach) {
  launch_.send[1] = {address(1600), 160};
  launch_.sends_same = true;
  EXPECT_EQ(params().own_send.bytes, 0u);
  for (const FewTilesPeer& peer : params().peers) EXPECT_EQ(peer.send.data, address(1600));
  launch_.combines = true;
  EXPECT_EQ(params().own_send.bytes, 160u);
}

TEST_F(FewTilesLaunchTest, WholeUnitsBeginAndEndAtOne) {
  EXPECT_TRUE(has_whole_units(params()));
  launch_.take[2] = {address(1604), 0};
  EXPECT_TRUE(has_whole_units(params())) << "nothing is there";
  launch_.take[2].bytes = 16;
  EXPECT_FALSE(has_whole_units(params()));
  launch_.take[2] = {address(1600), 24};
  EXPECT_FALSE(has_whole_units(params()));
  launch_.take[2].bytes = 32;
  EXPECT_TRUE(has_whole_units(params()));
}

class LoneMessageLaunchTest : public FewTilesLaunchTest {
 protected:
  // Plans `ops`, which fit in one launch.
  TransferParams plan(const std::vector<TransferOp>& ops, WireKind wire = WireKind::kLine) {
    TransferSchedule schedule(1, 4, config_.layout, true);
    for (int peer = 0; peer < 4; ++peer) schedule.set_wire(peer, wire);
    TransferParams planned{};
    schedule.plan(ops, [&](const TransferParams& launch) { planned = launch; });
    return planned;
  }
};

TEST_F(LoneMessageLaunchTest, WhereMessagesAreAlone) {
  const TransferOp to_2{address(1600), 4096, 0, 2, true};
  const TransferOp from_0{address(3200), 4096, 0, 0, false};
  EXPECT_TRUE(are_lone_messages(plan({to_2, from_0}), 1));
  EXPECT_FALSE(are_lone_messages(plan({to_2, to_2}), 1)) << "one follows the other";
  EXPECT_FALSE(are_lone_messages(plan({to_2}, WireKind::kLL), 1));
  TransferOp large_to_2 = to_2;
  TransferOp large_from_0 = from_0;
  large_to_2.bytes = large_from_0.bytes = std::size_t{8} << 20;
  EXPECT_TRUE(are_lone_messages(plan({large_to_2, large_from_0}), 2));
  EXPECT_FALSE(are_lone_messages(plan({large_to_2, large_from_0}), 3))
      << "192 blocks that fill a multiprocessor each";
  large_to_2.bytes = std::size_t{1} << 30;
  EXPECT_FALSE(are_lone_messages(plan({large_to_2}), 1)) << "which goes as chunks";
  const TransferOp to_self{address(1600), 64, 0, 1, true};
  const TransferOp from_self{address(6400), 64, 0, 1, false};
  EXPECT_FALSE(are_lone_messages(plan({to_2, to_self, from_self}), 1));
}

TEST_F(LoneMessageLaunchTest, WholeMessagesBeginAndEndAtAUnit) {
  TransferOp op{address(1600), 4096, 0, 2, true};
  EXPECT_TRUE(has_whole_messages(plan({op})));
  op.bytes = 4100;
  EXPECT_FALSE(has_whole_messages(plan({op})));
  op = {address(1604), 4096, 0, 2, true};
  EXPECT_FALSE(has_whole_messages(plan({op})));
  op.bytes = 0;
  EXPECT_TRUE(has_whole_messages(plan({op})));
}

// A send fills the peer's boxes, and a recv empties this rank's.
TEST_F(LoneMessageLaunchTest, AddressesAreThoseOfTheFirstChannel) {
  const LoneMessageParams made = lone_message_params(
      plan({{address(1600), 16384, 5, 3, true}, {address(32000), 64, 5, 0, false}}), group_, 1000,
      256);
  const DeviceLayout& layout = config_.layout;
  const bool first_sends = made.messages[0].is_send;
  const LoneMessage& send = made.messages[first_sends ? 0 : 1];
  const LoneMessage& recv = made.messages[first_sends ? 1 : 0];
  EXPECT_EQ(send.boxes, group_.segments[3] + layout.p2p_box(1, 1, 0, 0));
  EXPECT_EQ(recv.boxes, group_.segments[1] + layout.p2p_box(0, 1, 0, 0));
  EXPECT_EQ(send.part_bytes * layout.p2p_channels_of(16384, 1, WireKind::kLine), 16384u);
  EXPECT_EQ(recv.part_bytes, 64u);
  const auto freed = [&](int owner, int other) {
    return group_.segments[owner] + layout.p2p_freed +
           (static_cast<std::size_t>(other) * kP2pChannels + kMostP2pChannelsPerTag) * 4;
  };
  EXPECT_EQ(reinterpret_cast<std::byte*>(send.freed), freed(1, 3));
  EXPECT_EQ(reinterpret_cast<std::byte*>(recv.freed), freed(0, 1));
  EXPECT_EQ(send.tag, 5);
}

// In rounds of equal length, of as many tiles as the fullest box has.
TEST_F(LoneMessageLaunchTest, WarpsAreAsManyAsABoxNeeds) {
  LoneMessageParams params{};
  const auto warps = [&](std::uint32_t tiles, std::uint32_t of_box) {
    const auto bytes = tiles * wire_tile(WireKind::kLine).bytes;
    params.messages[0].part_bytes = bytes - static_cast<std::uint32_t>(sizeof(BoxHeader));
    params.messages[0].box_tiles = of_box;
    return warps_of_lone(std::span(params.messages).first(1));
  };
  EXPECT_EQ(warps(21, 96), 7u);
  EXPECT_EQ(warps(22, 96), 8u);
  EXPECT_EQ(warps(96, 96), 32u);
  EXPECT_EQ(warps(97, 96), 32u);
  EXPECT_EQ(warps(1000, 8), 3u);
  EXPECT_EQ(warps(97, 200), 17u) << "in two rounds";
  params.messages[1] = params.messages[0];
  params.messages[1].box_tiles = 3;
  EXPECT_EQ(warps_of_lone(std::span(params.messages).first(2)), 17u);
}

TEST_F(LoneMessageLaunchTest, PartsHaveFewBoxes) {
  LoneMessageParams params{};
  params.messages[0].box_tiles = params.messages[1].box_tiles = 10;
  const std::uint32_t bytes = kMostLoneBoxes * 10 * wire_tile(WireKind::kLine).bytes;
  params.messages[0].part_bytes = bytes - static_cast<std::uint32_t>(sizeof(BoxHeader));
  EXPECT_TRUE(have_few_boxes(std::span(params.messages).first(2)));
  params.messages[1].part_bytes = params.messages[0].part_bytes + 1;
  EXPECT_FALSE(have_few_boxes(std::span(params.messages).first(2)));
  EXPECT_TRUE(have_few_boxes(std::span(params.messages).first(1)));
}

}  // namespace
}  // namespace symm
