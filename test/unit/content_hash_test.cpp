// The hash of the audit: its values are part of a file format, and it sees each change.
#include "backend/engine/record/content_hash.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <vector>

namespace symm {
namespace {

std::uint64_t hash_of(const std::vector<std::byte>& bytes) {
  ContentHash hash;
  hash.add(bytes);
  return hash.value();
}

std::vector<std::byte> pattern(std::size_t bytes) {
  std::vector<std::byte> data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(i * 37 + 11);
  return data;
}

TEST(ContentHash, EveryBitCounts) {
  for (const std::size_t bytes : {1, 7, 8, 9, 31, 32, 33, 63, 64, 100}) {
    std::vector<std::byte> data = pattern(bytes);
    std::set<std::uint64_t> seen = {hash_of(data)};
    for (std::size_t bit = 0; bit < bytes * 8; ++bit) {
      const std::byte flip = std::byte{1} << (bit % 8);
      data[bit / 8] ^= flip;
      EXPECT_TRUE(seen.insert(hash_of(data)).second) << bytes << " bytes, bit " << bit;
      data[bit / 8] ^= flip;
    }
  }
}

TEST(ContentHash, NoTwoFlippedBitsCancel) {
  std::vector<std::byte> data = pattern(72);
  const auto flip = [&](std::size_t bit) { data[bit / 8] ^= std::byte{1} << (bit % 8); };
  const std::uint64_t before = hash_of(data);
  for (std::size_t first = 0; first < data.size() * 8; ++first) {
    flip(first);
    for (std::size_t second = 0; second < first; ++second) {
      flip(second);
      ASSERT_NE(hash_of(data), before) << "bits " << first << " and " << second;
      flip(second);
    }
    flip(first);
  }
}

TEST(ContentHash, LengthAndOrderCount) {
  std::set<std::uint64_t> seen;
  for (std::size_t bytes = 0; bytes < 200; ++bytes) {
    EXPECT_TRUE(seen.insert(hash_of(std::vector<std::byte>(bytes))).second) << bytes;
  }
  std::vector<std::byte> data = pattern(64);
  const std::uint64_t before = hash_of(data);
  std::swap_ranges(data.begin(), data.begin() + 8, data.begin() + 8);
  EXPECT_NE(hash_of(data), before);
}

TEST(ContentHash, PiecesCount) {
  const std::vector<std::byte> data = pattern(48);
  const std::span<const std::byte> all = data;
  std::set<std::uint64_t> seen;
  for (std::size_t cut = 0; cut <= data.size(); ++cut) {
    ContentHash hash;
    hash.add(all.first(cut));
    hash.add(all.subspan(cut));
    EXPECT_TRUE(seen.insert(hash.value()).second) << cut;
  }
  EXPECT_EQ(ContentHash().value(), 0u);
}

TEST(ContentHash, ValuesStay) {
  EXPECT_EQ(hash_of({}), 4142312834356500384u);
  EXPECT_EQ(hash_of(pattern(1)), 7737546325189278018u);
  EXPECT_EQ(hash_of(pattern(100)), 1863720178739593105u);
}

}  // namespace
}  // namespace symm
