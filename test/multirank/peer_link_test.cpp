// Links: rounds, tries that failed before, ranks that give up; and signals in host memory.
#include "symm_mem/group/peer_link.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/core/error.hpp"
#include "symm_mem/group/host_signals.hpp"
#include "test/support/expect_error.hpp"
#include "test/support/memory_store.hpp"
#include "test/support/rank_threads.hpp"

namespace symm {
namespace {

using namespace std::chrono_literals;
using test::errors_of_ranks;
using test::expect_error;
using test::MemoryStore;
using test::run_ranks;
using Clock = std::chrono::steady_clock;
using Links = std::vector<std::shared_ptr<PeerLink>>;
using Purpose = PeerLink::Purpose;

constexpr std::chrono::milliseconds kTimeout{20000};

// Global ranks are 10, 11, ... so that the two kinds of rank differ.
PeerLinkConfig config_of(int rank, int world_size, std::chrono::milliseconds timeout = kTimeout) {
  return {.group_name = "test",
          .rank = rank,
          .world_size = world_size,
          .global_rank = 10 + rank,
          .timeout = timeout};
}

Links connect_all(int world_size) {
  MemoryStore store;
  Links links(static_cast<std::size_t>(world_size));
  run_ranks(world_size, [&](int rank) {
    links[static_cast<std::size_t>(rank)] = PeerLink::connect(store, config_of(rank, world_size));
  });
  return links;
}

PeerLink& of(const Links& links, int rank) { return *links[static_cast<std::size_t>(rank)]; }

PeerLink::Words words_of(int rank, int round) {
  PeerLink::Words words{};
  for (std::size_t i = 0; i < words.size(); ++i) {
    words[i] =
        (static_cast<std::uint64_t>(round) << 32) + 100 * static_cast<std::uint64_t>(rank) + i;
  }
  return words;
}

TEST(PeerLink, EveryRoundGivesEverybodysWords) {
  constexpr int kWorld = 4;
  constexpr int kRounds = 300;
  const Links links = connect_all(kWorld);
  run_ranks(kWorld, [&](int rank) {
    for (int round = 1; round <= kRounds; ++round) {
      const auto got = of(links, rank).agree(Purpose::kView, words_of(rank, round), kTimeout);
      ASSERT_EQ(got.number, static_cast<std::uint64_t>(round));
      for (int peer = 0; peer < kWorld; ++peer) {
        ASSERT_EQ(got.words[static_cast<std::size_t>(peer)], words_of(peer, round));
      }
    }
  });
}

TEST(PeerLink, KnowsGlobalRanks) {
  const Links links = connect_all(3);
  EXPECT_EQ(of(links, 1).global_ranks(), (std::vector<int>{10, 11, 12}));
  EXPECT_EQ(of(links, 1).rank_name(2), "rank 2 (global rank 12)");
}

TEST(PeerLink, AGroupOfOneNeedsNobody) {
  MemoryStore store;
  const auto link = PeerLink::connect(store, config_of(0, 1));
  EXPECT_EQ(link->agree(Purpose::kView, words_of(0, 1), 1ms).words.size(), 1u);
  EXPECT_EQ(link->tell(std::vector<std::uint8_t>{7}, 1ms)[0], (std::vector<std::uint8_t>{7}));
}

TEST(PeerLink, DifferentPurposesAreAnErrorOfAllAndTheLinkGoesOn) {
  const Links links = connect_all(3);
  const auto errors = errors_of_ranks(3, [&](int rank) {
    of(links, rank).agree(rank == 1 ? Purpose::kView : Purpose::kRendezvous, {}, kTimeout);
  });
  for (const auto& error : errors) {
    expect_error(error, ErrorCode::kMismatch,
                 {"rank 0 (global rank 10) called rendezvous",
                  "rank 1 (global rank 11) called contiguous_view"});
  }
  run_ranks(3, [&](int rank) { of(links, rank).agree(Purpose::kView, {}, kTimeout); });
}

TEST(PeerLink, MessagesReachEverybody) {
  const Links links = connect_all(3);
  run_ranks(3, [&](int rank) {
    const std::string text = "I am " + std::to_string(rank);
    const std::vector<std::uint8_t> mine(text.begin(), text.end());
    const auto all = of(links, rank).tell(mine, kTimeout);
    for (int peer = 0; peer < 3; ++peer) {
      const auto& theirs = all[static_cast<std::size_t>(peer)];
      EXPECT_EQ(std::string(theirs.begin(), theirs.end()), "I am " + std::to_string(peer));
    }
  });
}

TEST(PeerLink, ARankThatDoesNotComeIsNamedAndTheLinkBreaksForAll) {
  const Links links = connect_all(3);
  const auto start = Clock::now();
  const auto errors = errors_of_ranks(3, [&](int rank) {
    if (rank == 2) return;
    of(links, rank).agree(Purpose::kRendezvous, {}, 200ms);
  });
  EXPECT_LT(Clock::now() - start, 5s);
  // The second rank to give up may see that the first has.
  for (const int rank : {0, 1}) {
    const auto& error = errors[static_cast<std::size_t>(rank)];
    ASSERT_TRUE(error.has_value());
    if (error->code() == ErrorCode::kTimeout) {
      expect_error(error, ErrorCode::kTimeout, {"rendezvous", "rank 2 (global rank 12)", "200 ms"});
    } else {
      expect_error(error, ErrorCode::kPeerLost, {"rendezvous", "has ended or given up"});
    }
    expect_error(test::error_of([&] { of(links, rank).check_usable(); }), ErrorCode::kAborted,
                 {"an earlier call failed"});
  }
  // The late one learns of it at once, whatever its time-out.
  const auto late = Clock::now();
  expect_error(test::error_of([&] {
                 of(links, 2).share(LocalSegment::allocate(host_runtime(), 1), kTimeout);
               }),
               ErrorCode::kPeerLost, {"rank"});
  EXPECT_LT(Clock::now() - late, 5s);
}

TEST(PeerLink, ARankThatClosesEndsTheWaitOfTheOthers) {
  const Links links = connect_all(3);
  const auto start = Clock::now();
  const auto errors = errors_of_ranks(3, [&](int rank) {
    if (rank == 1) {
      of(links, 1).close("it is enough");
    } else {
      of(links, rank).agree(Purpose::kRendezvous, {}, kTimeout);
    }
  });
  EXPECT_LT(Clock::now() - start, 5s);
  for (const int rank : {0, 2}) {
    expect_error(errors[static_cast<std::size_t>(rank)], ErrorCode::kPeerLost,
                 {"has ended or given up"});
  }
  expect_error(test::error_of([&] { of(links, 1).check_usable(); }), ErrorCode::kAborted,
               {"it is enough"});
}

// What an earlier try left in the store must not disturb the next one, whoever tries again first.
TEST(PeerLink, CanBeTriedAgainOverTheSameStore) {
  MemoryStore store;
  constexpr int kWorld = 3;
  const auto first = errors_of_ranks(kWorld, [&](int rank) {
    if (rank != 2) PeerLink::connect(store, config_of(rank, kWorld, 150ms));
  });
  for (const int rank : {0, 1}) {
    expect_error(first[static_cast<std::size_t>(rank)], ErrorCode::kTimeout, {"rank 2"});
  }
  for (int again = 0; again < 5; ++again) {
    Links links(kWorld);
    run_ranks(kWorld, [&](int rank) {
      links[static_cast<std::size_t>(rank)] = PeerLink::connect(store, config_of(rank, kWorld));
    });
    run_ranks(kWorld, [&](int rank) {
      const auto got = of(links, rank).agree(Purpose::kView, words_of(rank, again), kTimeout);
      EXPECT_EQ(got.words[2], words_of(2, again));
    });
  }
}

class Signals : public ::testing::Test {
 protected:
  static constexpr std::size_t kPadBytes = 9216;

  void make(int world_size) {
    links_ = connect_all(world_size);
    segments_.resize(links_.size());
    signals_.resize(links_.size());
    run_ranks(world_size, [&](int rank) {
      const auto index = static_cast<std::size_t>(rank);
      segments_[index] =
          links_[index]->share(LocalSegment::allocate(host_runtime(), kPadBytes), kTimeout);
      std::vector<SignalSlot*> pads;
      for (int peer = 0; peer < world_size; ++peer) {
        pads.push_back(reinterpret_cast<SignalSlot*>(segments_[index]->base(peer)));
      }
      signals_[index] = std::make_unique<HostSignals>(*links_[index], std::move(pads), kPadBytes);
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

  Links links_;
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
      links_[2]->close("gone");
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
