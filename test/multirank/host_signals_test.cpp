// Signals in host memory: barriers, puts and waits of ranks, and those that are given up.
#include "symm_mem/group/host_signals.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/core/error.hpp"
#include "test/support/expect_error.hpp"
#include "test/support/local_groups.hpp"
#include "test/support/rank_threads.hpp"

namespace symm {
namespace {

using namespace std::chrono_literals;
using test::connect_groups;
using test::errors_of_ranks;
using test::expect_error;
using test::Groups;
using test::kTimeout;
using test::run_ranks;
using Clock = std::chrono::steady_clock;

class Signals : public ::testing::Test {
 protected:
  static constexpr std::size_t kPadBytes = 9216;

  void make(int world_size) {
    groups_ = connect_groups(world_size);
    segments_.resize(groups_.size());
    signals_.resize(groups_.size());
    run_ranks(world_size, [&](int rank) {
      const auto index = static_cast<std::size_t>(rank);
      segments_[index] = groups_[index]->share(LocalSegment::allocate(host_runtime(), kPadBytes),
                                               Deadline(kTimeout));
      const SignalPads pads{{segments_[index]->bases(), groups_.size()}, kPadBytes};
      signals_[index] = std::make_unique<HostSignals>(*groups_[index], pads);
    });
  }
  HostSignals& at(int rank) { return *signals_[static_cast<std::size_t>(rank)]; }
  void expect_pads_at_rest() {
    for (const auto& segment : segments_) {
      for (std::size_t i = 0; i < kPadBytes; ++i) {
        ASSERT_EQ(segment->base(segment->rank())[i], std::byte{0}) << "byte " << i;
      }
    }
  }
  static std::chrono::milliseconds long_time() { return kTimeout; }

  Groups groups_;
  std::vector<std::shared_ptr<Segment>> segments_;
  std::vector<std::unique_ptr<HostSignals>> signals_;
};

TEST_F(Signals, ABarrierHoldsEverybodyUntilAllHaveCome) {
  constexpr int kWorld = 4;
  make(kWorld);
  std::atomic<int> arrived{0};
  run_ranks(kWorld, [&](int rank) {
    for (int round = 1; round <= 200; ++round) {
      arrived.fetch_add(1);
      at(rank).barrier(round % 3, long_time);
      ASSERT_GE(arrived.load(), kWorld * round);
      at(rank).barrier(5, long_time);
    }
  });
  expect_pads_at_rest();
}

TEST_F(Signals, ASecondPutWaitsUntilTheFirstIsTaken) {
  make(2);
  constexpr int kSignals = 500;
  // Handed over by the signals alone. Relaxed, since ThreadSanitizer does not see the order that
  // two mappings of one page make.
  std::atomic<int> data{0};
  run_ranks(2, [&](int rank) {
    for (int i = 1; i <= kSignals; ++i) {
      if (rank == 0) {
        data.store(i, std::memory_order_relaxed);
        at(0).put(1, 7, long_time);
        at(0).wait(1, 7, long_time);
      } else {
        at(1).wait(0, 7, long_time);
        ASSERT_EQ(data.load(std::memory_order_relaxed), i);
        at(1).put(0, 7, long_time);
      }
    }
  });
  expect_pads_at_rest();
  at(0).put(1, 0, long_time);
  expect_error(test::error_of([&] { at(0).put(1, 0, [] { return 50ms; }); }), ErrorCode::kTimeout,
               {"put_signal on channel 0", "50 ms", "rank 1"});
}

TEST_F(Signals, ChannelsAndSourcesAreApart) {
  make(3);
  at(1).put(0, 4, long_time);
  expect_error(test::error_of([&] { at(0).wait(2, 4, [] { return 20ms; }); }), ErrorCode::kTimeout,
               {"wait_signal on channel 4", "rank 2 (global rank 12)"});
  expect_error(test::error_of([&] { at(0).wait(1, 3, [] { return 20ms; }); }), ErrorCode::kTimeout,
               {"channel 3", "rank 1"});
  at(0).wait(1, 4, long_time);
  at(0).put(0, 4, long_time);  // a rank may signal itself
  at(0).wait(0, 4, long_time);
  expect_pads_at_rest();
}

TEST_F(Signals, ABarrierNamesWhoDidNotCome) {
  make(4);
  const auto errors = errors_of_ranks(4, [&](int rank) {
    if (rank == 0) at(0).barrier(1, [] { return 100ms; });
    if (rank == 2) at(2).put(0, 1, long_time);
  });
  expect_error(errors[0], ErrorCode::kTimeout, {"barrier on channel 1", "rank 1 (", "rank 3 ("});
  EXPECT_EQ(std::string(errors[0]->what()).find("rank 2 ("), std::string::npos);
}

TEST_F(Signals, WhoeverLeavesEndsTheWait) {
  make(3);
  const auto start = Clock::now();
  const auto errors = errors_of_ranks(3, [&](int rank) {
    if (rank == 2) {
      groups_[2]->leave();
    } else if (rank == 0) {
      at(0).barrier(0, long_time);
    } else {
      at(1).wait(2, 1, long_time);
    }
  });
  EXPECT_LT(Clock::now() - start, 5s);
  expect_error(errors[0], ErrorCode::kPeerLost, {"barrier", "rank 2 (global rank 12)"});
  expect_error(errors[1], ErrorCode::kPeerLost, {"wait_signal", "rank 2 (global rank 12)"});
}

// Ranks 0 and 1 give up a barrier; rank 2 comes late, and would find everybody's signals.
TEST_F(Signals, ALateRankDoesNotPassABarrierThatWasGivenUp) {
  make(3);
  const auto in_vain = errors_of_ranks(3, [&](int rank) {
    if (rank != 2) at(rank).barrier(1, [] { return 100ms; });
  });
  for (const int rank : {0, 1}) ASSERT_TRUE(in_vain[static_cast<std::size_t>(rank)].has_value());
  const auto start = Clock::now();
  expect_error(test::error_of([&] { at(2).barrier(1, long_time); }), ErrorCode::kPeerLost,
               {"barrier on channel 1", "rank 0 (global rank 10) has given up"});
  expect_error(test::error_of([&] { at(2).wait(1, 1, long_time); }), ErrorCode::kPeerLost,
               {"wait_signal on channel 1", "rank 1 (global rank 11) has given up"});
  for (int again = 0; again < 2; ++again) {
    expect_error(test::error_of([&] { at(0).barrier(1, long_time); }), ErrorCode::kPeerLost,
                 {"rank 0 (global rank 10) has given up", "use another channel"});
  }
  EXPECT_LT(Clock::now() - start, 5s);
  run_ranks(3, [&](int rank) { at(rank).barrier(2, long_time); });
}

// The barrier that ends an operation: rank 1 reads for so long that rank 0 gives up.
TEST_F(Signals, ARankThatReadForTooLongHearsOfIt) {
  make(2);
  const auto errors = errors_of_ranks(2, [&](int rank) {
    at(rank).barrier(0, long_time);
    if (rank == 0) at(0).barrier(0, [] { return 50ms; });
  });
  expect_error(errors[0], ErrorCode::kTimeout, {"rank 1"});
  expect_error(test::error_of([&] { at(1).barrier(0, long_time); }), ErrorCode::kPeerLost,
               {"rank 0 (global rank 10) has given up"});
}

TEST_F(Signals, WhatIsOutOfRangeIsRefused) {
  make(2);
  const int channels = static_cast<int>(signal_channels(kPadBytes, 2));
  for (const int channel : {-1, channels}) {
    expect_error(test::error_of([&] { at(0).barrier(channel, long_time); }),
                 ErrorCode::kInvalidArgument, {"channel", std::to_string(channel)});
  }
  for (const int rank : {-1, 2}) {
    expect_error(test::error_of([&] { at(0).put(rank, 0, long_time); }),
                 ErrorCode::kInvalidArgument, {"put_signal", std::to_string(rank)});
    expect_error(test::error_of([&] { at(0).wait(rank, 0, long_time); }),
                 ErrorCode::kInvalidArgument, {"wait_signal", std::to_string(rank)});
  }
  run_ranks(2, [&](int rank) { at(rank).barrier(channels - 1, long_time); });
  expect_pads_at_rest();
}

}  // namespace
}  // namespace symm
