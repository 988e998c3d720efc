// Segments that one rank alone has, behind a rendezvous that the others gave up: later calls read
// the right memory or are an error. Ranks are threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/engine/communicator.hpp"
#include "backend/engine/device/device_group.hpp"
#include "backend/engine/host/mailbox_engine.hpp"
#include "test/support/device_ranks.hpp"
#include "test/support/expect_error.hpp"
#include "test/support/joined_segment.hpp"
#include "test/support/memory_store.hpp"
#include "test/support/rank_threads.hpp"

namespace symm {
namespace {

using test::DeviceRank;
using test::errors_of_ranks;
using test::expect_error;
using test::gather_into;
using test::join_segment;
using test::register_segment;
using test::RendezvousOfRank0;

constexpr std::size_t kCount = 100'000;
constexpr std::size_t kBytes = kCount * sizeof(float);

CommunicatorConfig config_of(int rank, int world) {
  CommunicatorConfig config;
  config.group_name = "test";
  config.rank = rank;
  config.world_size = world;
  config.timeout = std::chrono::milliseconds(20'000);
  config.algorithm = Algorithm::kOneShot;
  return config;
}

std::shared_ptr<LocalSegment> memory_of(float value) {
  auto local = LocalSegment::allocate(host_runtime(), kBytes);
  std::fill_n(reinterpret_cast<float*>(local->base()), kCount, value);
  return local;
}

std::size_t wrong(const std::vector<float>& data, float expected) {
  return static_cast<std::size_t>(
      std::ranges::count_if(data, [&](float one) { return one != expected; }));
}

void sum(Communicator& communicator, const void* input, std::vector<float>& output) {
  CollectiveArgs args;
  args.kind = CollectiveKind::kAllReduce;
  args.dtype = Dtype::kFloat32;
  args.count = output.size();
  args.input = input;
  args.output = output.data();
  communicator.run(args);
}

// No two are equal, and no two sets have the same sum.
float value_of(int rank) { return static_cast<float>(1 << rank); }
float sum_of(int world) { return static_cast<float>((1 << world) - 1); }
constexpr float kOther = 1000.0f;  // what no call is to read

class UnevenSegments : public testing::TestWithParam<int> {
 protected:
  const int world_ = GetParam();
  test::MemoryStore store_;
  RendezvousOfRank0 uneven_{world_};
};
INSTANTIATE_TEST_SUITE_P(Ranks, UnevenSegments, testing::Values(2, 3));

// Every set of ranks passes the symmetric tensor, by turns.
TEST_P(UnevenSegments, LaterSegmentsAreReadRightly) {
  test::run_ranks(world_, [&](int rank) {
    Communicator communicator(store_, config_of(rank, world_));
    const auto alone = uneven_.join(communicator, memory_of(kOther));
    EXPECT_EQ(alone != nullptr, rank == 0);
    const auto later = join_segment(communicator, memory_of(value_of(rank)));
    const std::vector<float> plain(kCount, value_of(rank));
    for (unsigned in_place = 0; in_place < (1u << world_); ++in_place) {
      const bool here = (in_place >> (world_ - 1 - rank) & 1) != 0;
      std::vector<float> result(kCount);
      sum(communicator, here ? static_cast<void*>(later->base(rank)) : plain.data(), result);
      EXPECT_EQ(wrong(result, sum_of(world_)), 0u) << in_place;
    }
  });
}

TEST_P(UnevenSegments, SharesOfLaterSegmentsAreReadRightly) {
  test::run_ranks(world_, [&](int rank) {
    CommunicatorConfig config = config_of(rank, world_);
    config.algorithm = Algorithm::kAuto;
    Communicator communicator(store_, config);
    const auto alone = uneven_.join(communicator, memory_of(kOther));
    const auto later = join_segment(communicator, memory_of(value_of(rank)));
    const auto ranks = static_cast<std::size_t>(world_);
    const std::size_t share = kCount / ranks;
    std::vector<float> received(share * ranks);
    std::vector<Part> inputs;
    std::vector<Part> outputs;
    for (std::size_t r = 0; r < ranks; ++r) {
      inputs.push_back({later->base(rank) + r * share * sizeof(float), share});
      outputs.push_back({received.data() + r * share, share});
    }
    CollectiveArgs args;
    args.kind = CollectiveKind::kAllToAll;
    args.dtype = Dtype::kFloat32;
    args.input_parts = inputs;
    args.output_parts = outputs;
    communicator.run(args);
    for (std::size_t i = 0; i < received.size(); ++i) {
      ASSERT_EQ(received[i], value_of(static_cast<int>(i / share))) << i;
    }
  });
}

TEST_P(UnevenSegments, MessagesFromLaterSegmentsAreReadRightly) {
  test::run_ranks(world_, [&](int rank) {
    Communicator communicator(store_, config_of(rank, world_));
    const auto alone = uneven_.join(communicator, memory_of(kOther));
    const auto later = join_segment(communicator, memory_of(value_of(rank)));
    MailboxEngine& engine = communicator.point_to_point();
    const int next = (rank + 1) % world_;
    const int previous = (rank + world_ - 1) % world_;
    std::vector<float> received(kCount);
    const TransferOp out{later->base(rank), kBytes, 0, next, true, Dtype::kFloat32};
    const TransferOp in{received.data(), kBytes, 0, previous, false, Dtype::kFloat32};
    const auto send = engine.start({out, {}}, {});
    const auto recv = engine.start({in, {}}, {});
    engine.wait(*send, {});
    engine.wait(*recv, {});
    EXPECT_EQ(wrong(received, value_of(previous)), 0u);
    communicator.run(CollectiveArgs{});
  });
}

// The same memory joins again, as it does where a program tries again.
TEST_P(UnevenSegments, MemoryThatJoinsAgainIsReadRightly) {
  test::run_ranks(world_, [&](int rank) {
    Communicator communicator(store_, config_of(rank, world_));
    const auto local = memory_of(value_of(rank));
    const auto alone = uneven_.join(communicator, local);
    const auto again = join_segment(communicator, local);
    std::vector<float> result(kCount);
    sum(communicator, local->base(), result);
    EXPECT_EQ(wrong(result, sum_of(world_)), 0u);
  });
}

TEST_P(UnevenSegments, WhatTheOthersDoNotHaveIsAnError) {
  const auto errors = errors_of_ranks(world_, [&](int rank) {
    Communicator communicator(store_, config_of(rank, world_));
    const auto before = join_segment(communicator, memory_of(kOther));
    const auto alone = uneven_.join(communicator, memory_of(value_of(0)));
    const auto later = join_segment(communicator, memory_of(kOther));
    const std::vector<float> plain(kCount, value_of(rank));
    std::vector<float> result(kCount);
    sum(communicator, rank == 0 ? static_cast<void*>(alone->base(0)) : plain.data(), result);
  });
  for (const auto& error : errors) {
    expect_error(error, ErrorCode::kMismatch, {"rank 0 passed memory of segment", "does not know"});
  }
}

// A receiver that has no such segment gets the message by the ring.
TEST_P(UnevenSegments, AMessageOfWhatTheReceiverDoesNotHaveComes) {
  test::run_ranks(world_, [&](int rank) {
    Communicator communicator(store_, config_of(rank, world_));
    const auto alone = uneven_.join(communicator, memory_of(value_of(0)));
    const auto later = join_segment(communicator, memory_of(kOther));
    MailboxEngine& engine = communicator.point_to_point();
    std::vector<float> received(kCount);
    if (rank == 0) {
      const TransferOp out{alone->base(0), kBytes, 0, 1, true, Dtype::kFloat32};
      engine.wait(*engine.start({out, {}}, {}), {});
    } else if (rank == 1) {
      const TransferOp in{received.data(), kBytes, 0, 0, false, Dtype::kFloat32};
      engine.wait(*engine.start({in, {}}, {}), {});
      EXPECT_EQ(wrong(received, value_of(0)), 0u);
    }
    communicator.run(CollectiveArgs{});
  });
}

class UnevenDeviceSegments : public test::DeviceRanksTest {
 protected:
  static constexpr std::size_t kShare = std::size_t{64} << 20;  // copy_engine_bytes

  // The row that a location names.
  static std::uint64_t row_in(BufferLocation location) { return (location >> kLocationShift) - 1; }
  // What the rank's GPU finds in it; null where the row was never set.
  static std::byte* found_in(DeviceRank& rank, std::uint64_t row, int peer) {
    const auto& rows = rank.kernels().segments();
    const auto found = rows.find(static_cast<int>(row));
    return found == rows.end() ? nullptr : found->second[static_cast<std::size_t>(peer)];
  }
};

// Copy engines compare locations; lanes look a peer's row up in their own rank's table.
TEST_F(UnevenDeviceSegments, LaterSegmentsHaveTheSameRowOnAllRanks) {
  RendezvousOfRank0 uneven(3);
  std::array<BufferLocation, 3> copies{};
  std::array<BufferLocation, 3> lanes{};
  run_group(3, [&](DeviceRank& rank) {
    const auto index = static_cast<std::size_t>(rank.number());
    rank.launch(CollectiveArgs{});
    const auto alone =
        uneven.join(rank.communicator, LocalSegment::allocate(rank.gpu, 3 * kShare), true);
    const auto later = register_segment(rank, 3 * kShare, true);
    gather_into(rank, later->base(rank.number()), kShare);
    gather_into(rank, later->base(rank.number()), 9u << 20);
    const auto& launches = rank.kernels().launches();
    ASSERT_EQ(launches.size(), 3u);
    ASSERT_TRUE(launches[1].copies);
    copies[index] = launches[1].location;
    lanes[index] = launches[2].symmetric_output.location;
    ASSERT_NE(lanes[index], 0u);
    rank.meet();
    for (std::size_t peer = 0; peer < 3; ++peer) {
      EXPECT_EQ(copies[peer], copies[0]);
      EXPECT_EQ(found_in(rank, row_in(lanes[peer]), static_cast<int>(peer)),
                later->base(static_cast<int>(peer)));
    }
    rank.meet();
  });
}

// Rank 0 announces a tensor that its peer has not: nothing is there in the peer's table, where the
// row belonged to another segment before.
TEST_F(UnevenDeviceSegments, TheOthersFindNothingInTheRow) {
  RendezvousOfRank0 uneven(2);
  BufferLocation announced = 0;
  run_group(2, [&](DeviceRank& rank) {
    rank.launch(CollectiveArgs{});
    const auto kept = register_segment(rank, 100, false);
    auto gone = register_segment(rank, 2 * kShare, false);
    rank.communicator.remove_segment(gone);
    rank.meet();
    const auto alone = uneven.join(rank.communicator, LocalSegment::allocate(rank.gpu, 2 * kShare));
    if (rank.number() == 0) {
      gather_into(rank, alone->base(0), 9u << 20);
      announced = rank.kernels().launches().back().symmetric_output.location;
      EXPECT_EQ(found_in(rank, row_in(announced), 1), alone->base(1));
    }
    rank.meet();
    ASSERT_NE(announced, 0u);
    if (rank.number() == 1) {
      EXPECT_EQ(found_in(rank, row_in(announced), 0), nullptr);
    }
    rank.meet();
  });
}

// Rows of segments that all have let go are used again, also behind one that rank 0 alone has.
TEST_F(UnevenDeviceSegments, RowsDoNotRunOut) {
  RendezvousOfRank0 uneven(2);
  run_group(2, [&](DeviceRank& rank) {
    rank.launch(CollectiveArgs{});
    const auto alone = uneven.join(rank.communicator, LocalSegment::allocate(rank.gpu, 100));
    for (int i = 0; i < 2 * kMaxSegments; ++i) {
      const auto segment = register_segment(rank, 100, false);
      ASSERT_EQ(segment->row(), 1);
      rank.communicator.remove_segment(segment);
    }
    if (rank.number() == 0) rank.communicator.remove_segment(alone);
    EXPECT_EQ(register_segment(rank, 100, false)->row(), 0);
    rank.meet();
  });
}

// Beyond the rows of the table a segment is none for kernels, on all ranks alike.
TEST_F(UnevenDeviceSegments, WithoutARowASegmentIsNotSymmetric) {
  run_group(2, [&](DeviceRank& rank) {
    rank.launch(CollectiveArgs{});
    std::vector<std::shared_ptr<Segment>> segments;
    for (int i = 0; i < kMaxSegments; ++i) segments.push_back(register_segment(rank, 100, false));
    EXPECT_EQ(segments.back()->row(), kMaxSegments - 1);
    const auto beyond = register_segment(rank, 2 * kShare, true);
    EXPECT_EQ(beyond->row(), std::nullopt);
    EXPECT_FALSE(rank.engine().knows(beyond->base(rank.number()), 1));
    gather_into(rank, beyond->base(rank.number()), kShare);
    EXPECT_FALSE(rank.kernels().launches().back().copies);
    rank.communicator.remove_segment(segments[7]);
    rank.meet();
    const auto within = register_segment(rank, 2 * kShare, true);
    EXPECT_EQ(within->row(), 7);
    gather_into(rank, within->base(rank.number()), kShare);
    EXPECT_TRUE(rank.kernels().launches().back().copies);
  });
}

}  // namespace
}  // namespace symm
