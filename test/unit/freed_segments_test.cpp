// Which segments are let go, by what ranks post: also behind rendezvous that some ranks gave up.
#include "symm_mem/group/freed_segments.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <vector>

namespace symm {
namespace {

using Ids = FreedSegments::Ids;

// What each rank lets go of in one rendezvous; `ranks` post and take.
std::vector<Ids> meet(std::vector<FreedSegments>& ranks) {
  std::vector<Ids> posted;
  for (const FreedSegments& rank : ranks) posted.push_back(rank.posted());
  const std::vector<std::span<const std::uint64_t>> lists(posted.begin(), posted.end());
  std::vector<Ids> gone;
  for (FreedSegments& rank : ranks) gone.push_back(rank.take(lists));
  return gone;
}

void expect_all(const std::vector<Ids>& gone, const Ids& expected) {
  for (const Ids& one : gone) EXPECT_EQ(one, expected);
}

TEST(FreedSegments, GoOnceAllRanksHaveFreedThem) {
  std::vector<FreedSegments> ranks(3);
  for (FreedSegments& rank : ranks) {
    rank.join(1);
    rank.join(2);
  }
  ranks[0].free(1);
  ranks[0].free(2);
  ranks[1].free(2);
  expect_all(meet(ranks), {});
  ranks[2].free(2);
  expect_all(meet(ranks), {2});
  expect_all(meet(ranks), {});
  ranks[1].free(1);
  ranks[2].free(1);
  expect_all(meet(ranks), {1});
}

// Rank 0 alone has got it.
TEST(FreedSegments, GoWhereTheOthersNeverHadThem) {
  std::vector<FreedSegments> ranks(3);
  ranks[0].join(7);
  expect_all(meet(ranks), {});
  ranks[0].free(7);
  expect_all(meet(ranks), {});  // now the others know of it
  expect_all(meet(ranks), {7});
  for (const FreedSegments& rank : ranks) EXPECT_TRUE(rank.posted().empty());
}

TEST(FreedSegments, StayWhereARankUsesThem) {
  std::vector<FreedSegments> ranks(3);
  ranks[0].join(7);
  ranks[1].join(7);
  ranks[0].free(7);
  for (int i = 0; i < 3; ++i) expect_all(meet(ranks), {});
  ranks[1].free(7);
  expect_all(meet(ranks), {7});
}

// Rank 1 gave up the rendezvous in which rank 0 let it go.
TEST(FreedSegments, GoWhereARankMissedThatAllHadFreedThem) {
  std::vector<FreedSegments> ranks(2);
  for (FreedSegments& rank : ranks) {
    rank.join(3);
    rank.free(3);
  }
  const Ids posted = ranks[0].posted();
  const std::vector<std::span<const std::uint64_t>> lists{posted, posted};
  EXPECT_EQ(ranks[0].take(lists), Ids{3});
  expect_all(meet(ranks), {});
  expect_all(meet(ranks), {3});
  expect_all(meet(ranks), {});
}

TEST(FreedSegments, WhatARankForgetsItDoesNotHave) {
  std::vector<FreedSegments> ranks(2);
  for (FreedSegments& rank : ranks) rank.join(3);
  ranks[0].forget(3);
  ranks[0].free(3);  // unknown there
  EXPECT_TRUE(ranks[0].posted().empty());
  ranks[1].free(3);
  expect_all(meet(ranks), {});
  expect_all(meet(ranks), {3});
}

TEST(FreedSegments, AreTheLowestWhereThereAreTooMany) {
  std::vector<FreedSegments> ranks(2);
  constexpr std::uint64_t kIds = 3 * FreedSegments::kMostPosted;
  for (std::uint64_t id = 1; id <= kIds; ++id) {
    for (FreedSegments& rank : ranks) {
      rank.join(id);
      rank.free(id);
    }
  }
  std::uint64_t gone = 0;
  for (int i = 0; i < 3; ++i) {
    const std::vector<Ids> now = meet(ranks);
    EXPECT_EQ(now[0], now[1]);
    EXPECT_EQ(now[0].front(), gone + 1);
    gone += now[0].size();
  }
  EXPECT_EQ(gone, kIds);
}

}  // namespace
}  // namespace symm
