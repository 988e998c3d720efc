// Signal pads of a group in segments of their own: who gets which, and when one is taken again.
#include "symm_mem/group/signal_pad_pool.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "kernels/core/platform.hpp"
#include "test/support/local_groups.hpp"
#include "test/support/passing_runtime.hpp"

namespace symm {
namespace {

using test::of;
using Pad = SignalPadPool::Pad;

constexpr std::size_t kPadBytes = 9216;
constexpr std::size_t kMost = 300;  // words

// The ranks of a group, each with its pool.
class Pools {
 public:
  explicit Pools(int ranks) : groups_(test::connect_groups(ranks)), pools_(groups_.size()) {}

  int ranks() const { return static_cast<int>(groups_.size()); }
  SignalPadPool& pool(int rank) { return pools_[static_cast<std::size_t>(rank)]; }

  // What a rendezvous does: by rank, the pad that each has got.
  std::vector<Pad> take(std::size_t bytes = kPadBytes) {
    return take_on(std::vector<DeviceRuntime*>(groups_.size(), &host_runtime()), bytes);
  }
  std::vector<Pad> take_on(const std::vector<DeviceRuntime*>& runtimes,
                           std::size_t bytes = kPadBytes) {
    std::vector<Pad> pads(groups_.size());
    test::run_ranks(ranks(), [&](int rank) {
      const auto r = static_cast<std::size_t>(rank);
      pads[r] = take_one(of(groups_, rank), pools_[r], *runtimes[r], bytes);
    });
    return pads;
  }

 private:
  static Pad take_one(LocalGroup& group, SignalPadPool& pool, DeviceRuntime& runtime,
                      std::size_t bytes) {
    const Deadline deadline(test::kTimeout);
    const auto order = group.hold();
    const auto all = group.exchange_words(LocalGroup::Purpose::kMessage,
                                          pool.unused(runtime, bytes, kMost), 0, deadline);
    const std::vector<std::span<const std::uint64_t>> words(all.messages.begin(),
                                                            all.messages.end());
    if (std::optional<Pad> pad = pool.take(words)) return std::move(*pad);
    auto local = LocalSegment::allocate(runtime, SignalPadPool::segment_bytes(runtime, bytes));
    return pool.add(all.number, group.share(std::move(local), deadline), bytes);
  }

  test::Groups groups_;
  std::deque<SignalPadPool> pools_;  // by rank
};

std::byte* address(const Pad& pad, int rank) { return pad.segment->base(rank) + pad.offset; }

std::vector<std::byte*> own_addresses(const std::vector<Pad>& pads) {
  std::vector<std::byte*> addresses;
  for (const Pad& pad : pads) addresses.push_back(address(pad, pad.segment->rank()));
  return addresses;
}

bool is_zero(const Pad& pad, std::size_t bytes = kPadBytes) {
  const std::byte* const start = address(pad, pad.segment->rank());
  return std::all_of(start, start + bytes, [](std::byte one) { return one == std::byte{0}; });
}

TEST(SignalPadPool, PadsOfManyAllocationsAreInOneSegment) {
  Pools pools(3);
  const std::size_t fit = SignalPadPool::segment_bytes(host_runtime(), kPadBytes) / kPadBytes;
  ASSERT_GT(fit, 20u);
  std::vector<std::vector<Pad>> taken;
  std::set<std::size_t> offsets;
  for (std::size_t number = 0; number < fit; ++number) {
    taken.push_back(pools.take());
    const std::vector<Pad>& pads = taken.back();
    offsets.insert(pads[0].offset);
    for (std::size_t rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(pads[rank].segment.get(), taken[0][rank].segment.get());
      EXPECT_EQ(pads[rank].offset, pads[0].offset);
      EXPECT_FALSE(pads[rank].used_before);
      EXPECT_TRUE(is_zero(pads[rank]));
      std::fill_n(address(pads[rank], static_cast<int>(rank)), kPadBytes,
                  static_cast<std::byte>(1 + rank));
    }
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(address(pads[0], rank)[kPadBytes - 1], static_cast<std::byte>(1 + rank));
    }
  }
  EXPECT_EQ(offsets.size(), fit);
  for (const std::size_t offset : offsets) EXPECT_EQ(offset % kCacheLine, 0u);
  const auto more = pools.take();
  EXPECT_NE(more[0].segment.get(), taken[0][0].segment.get());
  EXPECT_TRUE(is_zero(more[0]));
}

TEST(SignalPadPool, APadIsTakenAgainOnceNoRankUsesIt) {
  Pools pools(3);
  auto first = pools.take();
  const auto second = pools.take();
  const std::vector<std::byte*> before = own_addresses(first);
  for (const std::size_t rank : {2u, 0u}) {
    first[rank].segment.reset();
    const auto other = pools.take();
    EXPECT_NE(own_addresses(other), before) << "a rank uses it still";
    EXPECT_NE(own_addresses(other), own_addresses(second));
  }
  first[1].segment.reset();
  const auto again = pools.take();
  EXPECT_EQ(own_addresses(again), before);
  for (const Pad& pad : again) EXPECT_TRUE(pad.used_before);
  EXPECT_NE(own_addresses(pools.take()), own_addresses(again));
}

TEST(SignalPadPool, APadThatNobodyKeepsIsTheNext) {
  Pools pools(2);
  const auto kept = pools.take();
  const std::vector<std::byte*> dropped = own_addresses(pools.take());
  const auto next = pools.take();
  EXPECT_EQ(own_addresses(next), dropped);
  EXPECT_TRUE(next[0].used_before);
}

TEST(SignalPadPool, SizesHaveSegmentsOfTheirOwn) {
  Pools pools(2);
  const auto small = pools.take();
  const std::size_t large = std::size_t{3} << 20;
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{4}, 3 * kPadBytes, large}) {
    const auto pads = pools.take(bytes);
    EXPECT_NE(pads[0].segment.get(), small[0].segment.get()) << bytes;
    EXPECT_LE(pads[0].offset + bytes, pads[0].segment->bytes());
    EXPECT_TRUE(is_zero(pads[1], bytes));
  }
  auto pads = pools.take(large);
  const std::vector<std::byte*> addresses = own_addresses(pads);
  pads.clear();
  EXPECT_EQ(own_addresses(pools.take(large)), addresses);
  EXPECT_NE(own_addresses(pools.take(kPadBytes - 100)), own_addresses(small));
}

// As after a rendezvous that only some ranks have brought to its end.
TEST(SignalPadPool, ASegmentThatAPeerLacksIsNotUsed) {
  Pools pools(2);
  auto first = pools.take();
  const auto lone = Pools(1).take();
  const std::shared_ptr<Segment> segment = lone[0].segment;
  pools.pool(0).add(std::uint64_t{1} << 40, segment, kPadBytes);
  const std::size_t fit = first[0].segment->bytes() / kPadBytes;
  std::vector<std::vector<Pad>> taken;
  for (std::size_t number = 0; number < 2 * fit; ++number) {
    taken.push_back(pools.take());
    EXPECT_NE(taken.back()[0].segment.get(), segment.get());
    EXPECT_EQ(taken.back()[0].offset, taken.back()[1].offset);
  }
  const std::vector<std::byte*> addresses = own_addresses(first);
  first.clear();
  EXPECT_EQ(own_addresses(pools.take()), addresses);
}

// One rank takes turns between its devices, the other has one.
TEST(SignalPadPool, PadsAreOnTheDeviceOfTheAllocation) {
  test::PassingRuntime another;
  {
    Pools pools(2);
    const auto here = pools.take();
    const auto there = pools.take_on({&host_runtime(), &another});
    EXPECT_EQ(&there[1].segment->local()->runtime(), &another);
    EXPECT_NE(there[0].segment.get(), here[0].segment.get());
    const auto here_again = pools.take();
    EXPECT_EQ(here_again[1].segment.get(), here[1].segment.get());
    EXPECT_EQ(pools.take_on({&host_runtime(), &another})[1].segment.get(), there[1].segment.get());
  }
}

TEST(SignalPadPool, WhatIsSentIsBounded) {
  Pools pools(1);
  constexpr std::size_t kSmall = 128;  // many of them in a segment
  const auto held = pools.take(kSmall);
  const SignalPadPool& pool = pools.pool(0);
  EXPECT_GT(pool.unused(host_runtime(), kSmall, kMost).size(), 6u);
  for (const std::size_t most : {0u, 1u, 2u, 5u}) {
    EXPECT_EQ(pool.unused(host_runtime(), kSmall, most).size(), most / 2 * 2);
  }
  EXPECT_TRUE(pool.unused(host_runtime(), 4 * kSmall, kMost).empty());
}

TEST(SignalPadPool, WhatPeersSendIsNotTrusted) {
  Pools pools(1);
  const auto held = pools.take();
  SignalPadPool& pool = pools.pool(0);
  const auto taken = [&](std::vector<std::uint64_t> words) {
    return pool.take(std::vector<std::span<const std::uint64_t>>{words}).has_value();
  };
  const std::vector<std::uint64_t> honest = pool.unused(host_runtime(), kPadBytes, kMost);
  EXPECT_FALSE(taken({}));
  EXPECT_FALSE(taken({honest[0]}));
  EXPECT_FALSE(taken({honest[0], std::uint64_t{1} << 63})) << "no segment has that many";
  EXPECT_FALSE(taken({honest[0] + 1, 1})) << "no segment has that many";
  EXPECT_FALSE(taken({~std::uint64_t{0}, 1})) << "there is no such segment";
  EXPECT_TRUE(taken(honest));
}

TEST(SignalPadPool, APadOutlivesThePool) {
  std::optional<Pools> pools(std::in_place, 2);
  auto pads = pools->take();
  const std::weak_ptr<LocalSegment> memory = pads[0].segment->local();
  pools.reset();
  address(pads[0], 1)[8] = std::byte{7};
  EXPECT_EQ(address(pads[1], 1)[8], std::byte{7});
  pads.clear();
  EXPECT_TRUE(memory.expired());
}

}  // namespace
}  // namespace symm
