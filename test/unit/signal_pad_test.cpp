// Signal pads on the host: where slots stand, and that signals carry data, are never lost and leave
// the pad zero.
#include "kernels/protocol/signal_pad.hpp"

#include <gtest/gtest.h>

#include <sched.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "kernels/core/error.hpp"
#include "test/support/expect_error.hpp"
#include "test/support/rank_threads.hpp"

namespace symm::test {
namespace {

TEST(SignalPad, SlotsOfAChannelStandSideBySideByRank) {
  EXPECT_EQ(signal_slot(0, 3, 0), 0U);
  EXPECT_EQ(signal_slot(0, 3, 2), 2U);
  EXPECT_EQ(signal_slot(1, 3, 0), 3U);
  EXPECT_EQ(signal_slot(5, 8, 7), 47U);
  // Beyond what an int holds.
  EXPECT_EQ(signal_slot(1 << 28, 64, 1), (std::size_t{1} << 34) + 1);
}

TEST(SignalPad, ChannelsHaveASlotForEveryRankInsideThePad) {
  EXPECT_EQ(signal_channels(9216, 8), 288U);
  EXPECT_EQ(signal_channels(9216, 3), 768U);
  EXPECT_EQ(signal_channels(9216, 5), 460U);  // 4 slots are left over
  EXPECT_EQ(signal_channels(4 * 5 - 1, 5), 0U);
  for (const int world : {1, 3, 5, 64}) {
    const int channels = static_cast<int>(signal_channels(9216, world));
    EXPECT_TRUE(has_signal_channel(9216, world, 0));
    EXPECT_TRUE(has_signal_channel(9216, world, channels - 1));
    EXPECT_LE((signal_slot(channels - 1, world, world - 1) + 1) * sizeof(SignalSlot), 9216U);
    EXPECT_FALSE(has_signal_channel(9216, world, channels));
    EXPECT_FALSE(has_signal_channel(9216, world, -1));
  }
}

TEST(SignalPad, ErrorsSayWhatCameAndWhatIsThere) {
  EXPECT_NO_THROW(check_signal_channel("barrier", 9216, 5, 459));
  expect_error(error_of([] { check_signal_channel("barrier", 9216, 5, 460); }),
               ErrorCode::kInvalidArgument, {"barrier: channel", "below 460", "9216", "got 460"});
  expect_error(error_of([] { check_signal_channel("put_signal", 9216, 5, -2); }),
               ErrorCode::kInvalidArgument, {"put_signal: channel", "got -2"});
  EXPECT_NO_THROW(check_signal_rank("wait_signal", 5, 4));
  expect_error(error_of([] { check_signal_rank("wait_signal", 5, 5); }),
               ErrorCode::kInvalidArgument, {"wait_signal: rank", "below 5", "got 5"});
  expect_error(error_of([] { check_signal_rank("wait_signal", 5, -1); }),
               ErrorCode::kInvalidArgument, {"got -1"});
}

TEST(SignalPad, ASlotTakesOneSignalAtATime) {
  std::array<SignalSlot, 3> pad{7, 0, 9};
  SignalSlot* const slot = &pad[1];
  EXPECT_FALSE(try_take(slot));
  EXPECT_TRUE(try_put(slot));
  EXPECT_EQ(*slot, 1U);
  EXPECT_FALSE(try_put(slot));
  EXPECT_TRUE(try_take(slot));
  EXPECT_EQ(*slot, 0U);
  EXPECT_FALSE(try_take(slot));
  EXPECT_EQ(pad[0], 7U);
  EXPECT_EQ(pad[2], 9U);
}

TEST(SignalPad, ASlotThatHoldsAnythingElseIsNeitherFullNorEmpty) {
  SignalSlot slot = 2;
  EXPECT_FALSE(try_put(&slot));
  EXPECT_FALSE(try_take(&slot));
  EXPECT_EQ(slot, 2U);
}

TEST(CompareExchange, EightByteValuesAreComparedWhole) {
  constexpr std::uint64_t kOther = std::uint64_t{1} << 32;
  std::uint64_t value = kOther;
  EXPECT_FALSE(compare_exchange_acquire(&value, std::uint64_t{0}, std::uint64_t{5}));
  EXPECT_FALSE(compare_exchange_release(&value, std::uint64_t{0}, std::uint64_t{5}));
  EXPECT_EQ(value, kOther);
  EXPECT_TRUE(compare_exchange_acquire(&value, kOther, kOther + 1));
  EXPECT_TRUE(compare_exchange_release(&value, kOther + 1, 2 * kOther));
  EXPECT_EQ(value, 2 * kOther);
}

// Pads of ranks that are threads.
class Pads {
 public:
  Pads(int world, int channels)
      : world_(world),
        pads_(static_cast<std::size_t>(world),
              std::vector<SignalSlot>(static_cast<std::size_t>(world * channels))) {}

  void put(int rank, int to, int channel) {
    while (!try_put(slot(to, channel, rank))) ::sched_yield();
  }
  void take(int rank, int from, int channel) {
    while (!try_take(slot(rank, channel, from))) ::sched_yield();
  }
  void barrier(int rank, int channel) {
    for (int peer = 0; peer < world_; ++peer) {
      if (peer != rank) put(rank, peer, channel);
    }
    for (int peer = 0; peer < world_; ++peer) {
      if (peer != rank) take(rank, peer, channel);
    }
  }
  void expect_zero() const {
    for (const auto& pad : pads_) {
      EXPECT_EQ(std::count(pad.begin(), pad.end(), 0U), static_cast<std::ptrdiff_t>(pad.size()));
    }
  }

 private:
  SignalSlot* slot(int owner, int channel, int from) {
    return &pads_[static_cast<std::size_t>(owner)][signal_slot(channel, world_, from)];
  }

  int world_;
  std::vector<std::vector<SignalSlot>> pads_;
};

// Plain words, written before a put and read after the take.
TEST(SignalPad, SignalsCarryDataRoundTheRingOnEveryChannel) {
  constexpr int kWorld = 3;
  constexpr int kChannels = 2;
  constexpr std::uint64_t kRounds = 2000;
  Pads pads(kWorld, kChannels);
  std::uint64_t words[kChannels][kWorld] = {};
  std::uint64_t wrong[kChannels][kWorld] = {};
  run_ranks(kWorld * kChannels, [&](int thread) {
    const int rank = thread % kWorld;
    const int channel = thread / kWorld;
    const int next = (rank + 1) % kWorld;
    const int previous = (rank + kWorld - 1) % kWorld;
    const auto word_of = [channel](int of, std::uint64_t round) {
      return round * 100 + static_cast<std::uint64_t>(channel * 10 + of + 1);
    };
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      words[channel][rank] = word_of(rank, round);
      pads.put(rank, next, channel);
      pads.take(rank, previous, channel);
      if (words[channel][previous] != word_of(previous, round)) ++wrong[channel][rank];
      pads.put(rank, previous, channel);  // the word has been read
      pads.take(rank, next, channel);
    }
  });
  for (const auto& of_channel : wrong) {
    for (const std::uint64_t count : of_channel) EXPECT_EQ(count, 0U);
  }
  pads.expect_zero();
}

TEST(SignalPad, NobodyPassesABarrierBeforeAllHaveCome) {
  constexpr int kRounds = 500;
  for (const int world : {1, 2, 5}) {
    Pads pads(world, 4);
    std::vector<int> arrived(static_cast<std::size_t>(world));
    std::vector<int> wrong(static_cast<std::size_t>(world));
    run_ranks(world, [&](int rank) {
      const auto self = static_cast<std::size_t>(rank);
      for (int round = 1; round <= kRounds; ++round) {
        arrived[self] = round;
        pads.barrier(rank, 3);
        for (const int other : arrived) wrong[self] += other != round;
        pads.barrier(rank, 1);  // nobody goes on while another still looks
      }
    });
    EXPECT_EQ(wrong, std::vector<int>(static_cast<std::size_t>(world), 0)) << "world " << world;
    pads.expect_zero();
  }
}

}  // namespace
}  // namespace symm::test
