// How batches of messages become launches: those of a rank to itself beside the others.
#include "kernels/gpu/launch/transfer_schedule.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <random>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/gpu/interface/wire_params.hpp"

namespace symm {
namespace {

constexpr int kRank = 1;
constexpr int kWorld = 3;
constexpr std::uint64_t kWorkspace = 256u << 20;
constexpr std::uint64_t kUndivided = DeviceLayout::most_undivided(WireKind::kLL);

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
  TransferSchedule schedule_{kRank, kWorld, DeviceLayout::of(kWorld, kWorkspace), true};
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
  const std::pair<std::uint64_t, int> cases[] = {
      {0, 1},         {kTile - 128, 1}, {kTile, 2}, {kUndivided, 16}, {kUndivided + 1, 9},
      {1u << 20, 16}, {8u << 20, 16}};
  for (const auto& [bytes, warps] : cases) {
    ops_ = {{memory_.data(), 0, 0, 0, false}, {memory_.data(), bytes, 0, 2, true}};
    EXPECT_EQ(plan()[0].threads, warps * kTileThreads) << bytes;
  }
}

TEST_F(TransferScheduleTest, ALaunchHasTheChannelsOfItsLargestMessage) {
  ops_.push_back({memory_.data(), kUndivided, 0, 2, true});
  EXPECT_EQ(plan()[0].channels, 1);
  ops_.push_back({memory_.data(), kUndivided + 1, 0, 0, false});
  EXPECT_EQ(plan()[0].channels, 2);
  const int all = static_cast<int>(DeviceLayout::of(kWorld, kWorkspace).p2p_channels);
  ops_.push_back({memory_.data(), kGoodMessagePart * kMostP2pChannelsPerTag + 1, 0, 0, false});
  EXPECT_EQ(plan()[0].channels, all);
  EXPECT_EQ(plan()[0].forms, MessageForms::kLLBoxes);
  EXPECT_EQ(plan()[0].blocks, all);
  ops_.push_back({memory_.data(), 8u << 20, 0, 0, false});
  EXPECT_EQ(plan()[0].forms, MessageForms::kAny);
  EXPECT_EQ(plan()[0].channels, all);
  // Without boxes every message is divided.
  const DeviceLayout least = DeviceLayout::of(64, kLeastDeviceWorkspace);
  EXPECT_EQ(least.p2p_box_part, 0u);
  EXPECT_FALSE(least.goes_in_boxes(0, 0, WireKind::kLL));
  EXPECT_FALSE(least.goes_in_boxes(0, 0, WireKind::kLine));
}

// Lines between ranks that have them, by a kernel of their own unless a part has more tiles than a
// block has warps, or others are in the launch.
// Of three tags to and from each of three peers, in launches of their own: while sends wait for
// boxes the recvs must find room. Registers are what a multiprocessor runs out of.
TEST(TransferScheduleOfFour, MessagesInLaunchesOfTheirOwnAreAllResident) {
  constexpr int kOfFour = 4;
  TransferSchedule schedule(0, kOfFour, DeviceLayout::of(kOfFour, std::uint64_t{64} << 20), true);
  for (int peer = 0; peer < kOfFour; ++peer) schedule.set_wire(peer, WireKind::kLine);
  constexpr std::uint64_t kMultiprocessors = 108;  // of the smallest GPU with NVLink of these years
  constexpr std::uint64_t kResident = kMultiprocessors * (64 << 10);
  for (const std::uint64_t bytes : {std::uint64_t{280'008}, std::uint64_t{1'120'000}}) {
    std::uint64_t registers = 0;
    for (int peer = 1; peer < kOfFour; ++peer) {
      for (const std::int64_t tag : {1, 2, 3}) {
        for (const bool is_send : {true, false}) {
          std::byte data{};
          const std::vector<TransferOp> op = {{&data, bytes, tag, peer, is_send}};
          schedule.plan(op, [&](const TransferParams& launch) {
            EXPECT_EQ(launch.forms, MessageForms::kManyLineBoxes);
            // NOTE [Blocks of a multiprocessor] in wire_params.hpp
            const std::uint64_t threads = align_up(static_cast<unsigned>(launch.threads), 128);
            registers += 64 * threads * static_cast<unsigned>(launch.blocks);
          });
        }
      }
    }
    EXPECT_LE(registers, kResident) << bytes;
  }
}

// A batch to and from every peer takes as many blocks as the ranks of a GPU have room for together.
TEST(TransferScheduleOfFour, LaunchesOfRanksThatShareAGpu) {
  constexpr int kOfFour = 4;
  constexpr std::uint64_t kBytes = 4u << 20;
  for (const int ranks : {1, 2, 4}) {
    TransferSchedule schedule(0, kOfFour, DeviceLayout::of(kOfFour, std::uint64_t{64} << 20), true);
    schedule.set_ranks_of_gpu(ranks);
    std::byte data{};
    std::vector<TransferOp> ops;
    for (int peer = 1; peer < kOfFour; ++peer) {
      schedule.set_wire(peer, WireKind::kLine);
      for (const bool is_send : {true, false}) ops.push_back({&data, kBytes, 0, peer, is_send});
    }
    int launches = 0;
    schedule.plan(ops, [&](const TransferParams& launch) {
      EXPECT_LE(launch.blocks * launch.group_count * ranks, 256);
      EXPECT_EQ(launch.group_count % 2, 0) << "a send without the recv of its order";
      ++launches;
    });
    EXPECT_EQ(launches, ranks == 1 ? 1 : ranks == 2 ? 2 : 3);
  }
}

TEST_F(TransferScheduleTest, FormsOfALaunchByThePairsTiles) {
  schedule_.set_wire(2, WireKind::kLine);
  const auto form_with = [&](std::uint64_t bytes, int peer) {
    ops_.push_back({memory_.data(), bytes, 0, peer, true});
    return plan()[0].forms;
  };
  EXPECT_EQ(form_with(256, 2), MessageForms::kLineBoxes);
  EXPECT_EQ(form_with(DeviceLayout::most_undivided(WireKind::kLine), 2), MessageForms::kLineBoxes);
  EXPECT_EQ(plan()[0].threads, kTransferThreads);
  EXPECT_EQ(plan()[0].groups[0].wire, WireKind::kLine);
  EXPECT_EQ(form_with(4u << 20, 2), MessageForms::kManyLineBoxes);
  // Boxes of other tags have fewer tiles.
  const DeviceLayout layout = DeviceLayout::of(kWorld, kWorkspace);
  const std::uint64_t small = layout.p2p_box_data(1, WireKind::kLine);
  ASSERT_LT(small, DeviceLayout::most_undivided(WireKind::kLine));
  for (const std::uint64_t bytes : {small, small * layout.p2p_channels + 1}) {
    ops_ = {{memory_.data(), bytes, 1, 2, true}};
    const bool fits = bytes == small;
    EXPECT_EQ(plan()[0].forms, fits ? MessageForms::kLineBoxes : MessageForms::kManyLineBoxes);
  }
  EXPECT_EQ(form_with(256, 0), MessageForms::kAny);
  EXPECT_EQ(plan()[0].group_count, 2);
  ops_.clear();
  EXPECT_EQ(form_with(256, 2), MessageForms::kLineBoxes);
  EXPECT_EQ(plan()[0].threads, kTileThreads);
  EXPECT_EQ(form_with(std::uint64_t{2} << 30, 2), MessageForms::kAny);
}

// Blocks for the chunks of the busiest group, as far as all groups of the launch have room.
TEST_F(TransferScheduleTest, BlocksOfChunks) {
  const DeviceLayout layout = DeviceLayout::of(kWorld, kWorkspace);
  const std::uint64_t least = layout.p2p_box_data(0, WireKind::kLL) * layout.p2p_channels + 1;
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

// A group of few blocks has few for messages, in boxes and as chunks.
TEST_F(TransferScheduleTest, MessagesHaveHalfTheBlocksOfACollective) {
  for (const auto& [most, expected] : {std::pair(64, 32), std::pair(24, 8), std::pair(3, 1)}) {
    const DeviceLayout layout = DeviceLayout::of(kWorld, kWorkspace, most);
    EXPECT_EQ(layout.p2p_channels, expected);
    TransferSchedule schedule(kRank, kWorld, layout, false, most);
    schedule.set_wire(2, WireKind::kLine);
    for (const int peer : {0, 2}) {
      for (const std::uint64_t bytes : {std::uint64_t{4} << 20, std::uint64_t{1} << 30}) {
        const TransferOp op{memory_.data(), bytes, 0, peer, true};
        schedule.plan({&op, 1}, [&](const TransferParams& params) {
          EXPECT_LE(params.blocks, most / 2) << bytes << " to " << peer;
          EXPECT_GE(params.blocks, most < 24 ? 1 : 8);
        });
      }
    }
  }
}

// All blocks of a launch must be resident: groups whose messages take all p2p channels are divided
// among launches, and none is left out.
TEST_F(TransferScheduleTest, ManyGroupsWithAllChannelsAreSeveralLaunches) {
  constexpr int kMany = 31;
  const DeviceLayout layout = DeviceLayout::of(kMany, 1u << 30);
  TransferSchedule schedule(kRank, kMany, layout, true);
  const std::uint64_t bytes = kGoodMessagePart * kMostP2pChannelsPerTag;
  for (int peer = 0; peer < kMany; ++peer) {
    if (peer == kRank) continue;
    for (const bool is_send : {false, true}) {
      ops_.push_back({memory_.data(), bytes, 0, peer, is_send});
    }
  }
  int messages = 0;
  int launches = 0;
  schedule.plan(ops_, [&](const TransferParams& params) {
    EXPECT_EQ(params.channels, layout.p2p_channels);
    EXPECT_LE(params.group_count * params.blocks, 192);
    messages += messages_of(params);
    ++launches;
  });
  EXPECT_EQ(messages, 2 * (kMany - 1));
  const int of_launch = 192 / static_cast<int>(layout.p2p_channels);
  EXPECT_EQ(launches, (2 * (kMany - 1) + of_launch - 1) / of_launch);
}

// A message of a batch, by its ends, and one of a launch by how many of its kind came before it.
struct Message {
  int from;
  int to;
  int tag;
  std::uint64_t bytes;
};
using Place = std::tuple<int, int, int, int>;  // from, to, tag channel, number

// The launches of each rank, of `messages` that all ranks have in one batch.
std::vector<std::vector<std::set<Place>>> launches_of(int world, std::uint64_t workspace,
                                                      const std::vector<Message>& messages) {
  std::byte byte{};
  std::vector<std::vector<std::set<Place>>> all;
  for (int rank = 0; rank < world; ++rank) {
    std::vector<TransferOp> ops;
    for (const Message& m : messages) {
      if (m.from == rank) ops.push_back({&byte, m.bytes, m.tag, m.to, true});
      if (m.to == rank) ops.push_back({&byte, m.bytes, m.tag, m.from, false});
    }
    std::map<Place, int> numbers;
    std::vector<std::set<Place>>& launches = all.emplace_back();
    TransferSchedule schedule(rank, world, DeviceLayout::of(world, workspace), false);
    schedule.plan(ops, [&](const TransferParams& launch) {
      std::set<Place>& places = launches.emplace_back();
      for (int g = 0; g < launch.group_count; ++g) {
        const TransferGroup& group = launch.groups[g];
        const bool sends = group.is_send != 0;
        for (int i = 0; i < group.count; ++i) {
          Place place{sends ? rank : group.peer, sends ? group.peer : rank, group.tag_channel, 0};
          std::get<3>(place) = numbers[place]++;
          places.insert(place);
        }
      }
    });
  }
  return all;
}

// NOTE [Order of messages]: a message passes while both its ends are in a launch that runs, and a
// launch ends with its last one. False where the ranks wait for each other.
bool all_end(const std::vector<std::vector<std::set<Place>>>& launches) {
  std::vector<std::size_t> current(launches.size());
  std::set<Place> done;
  for (bool moves = true; moves;) {
    moves = false;
    const auto runs_at = [&](int rank, const Place& place) {
      const auto r = static_cast<std::size_t>(rank);
      return current[r] < launches[r].size() && launches[r][current[r]].contains(place);
    };
    for (std::size_t rank = 0; rank < launches.size(); ++rank) {
      if (current[rank] == launches[rank].size()) continue;
      const std::set<Place>& launch = launches[rank][current[rank]];
      for (const Place& place : launch) {
        if (runs_at(std::get<0>(place), place) && runs_at(std::get<1>(place), place)) {
          moves = done.insert(place).second || moves;
        }
      }
      if (std::ranges::all_of(launch, [&](const Place& p) { return done.contains(p); })) {
        ++current[rank];
        moves = true;
      }
    }
  }
  for (std::size_t rank = 0; rank < launches.size(); ++rank) {
    if (current[rank] != launches[rank].size()) return false;
  }
  return true;
}

// Rings that end a launch after an odd number of messages, and random batches.
TEST_F(TransferScheduleTest, RanksNeverWaitForEachOther) {
  for (const int odd : {0, 1, 2, 3}) {
    for (const std::uint64_t bytes : {0u, 8192u, 1u << 20}) {
      std::vector<Message> messages;
      for (int i = 0; i < odd; ++i) messages.insert(messages.end(), {{0, 1, 0, 0}, {2, 3, 0, 0}});
      for (int i = 0; i < 200; ++i) {
        for (int rank = 0; rank < 4; ++rank) {
          messages.push_back({rank, (rank + 1) % 4, i % kTagChannels, bytes});
        }
      }
      EXPECT_TRUE(all_end(launches_of(4, kWorkspace, messages))) << odd << " before, of " << bytes;
    }
  }
  std::mt19937 random(7);
  const auto draw = [&](int end) {
    return static_cast<int>(random() % static_cast<unsigned>(end));
  };
  for (int round = 0; round < 60; ++round) {
    const int world = 2 + draw(5);
    const std::uint64_t most = std::uint64_t{1} << draw(24);
    std::vector<Message> messages(static_cast<std::size_t>(draw(500)));
    for (Message& m : messages) {
      m.from = draw(world);
      m.to = (m.from + 1 + draw(world - 1)) % world;
      m.tag = draw(kTagChannels);
      m.bytes = draw(3) == 0 ? 0 : random() % most;
    }
    for (const std::uint64_t workspace : {std::uint64_t{64} << 20, kWorkspace}) {
      EXPECT_TRUE(all_end(launches_of(world, workspace, messages))) << "round " << round;
    }
  }
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
