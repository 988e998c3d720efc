// How the shares of an all_to_all are divided between the wire and lanes, and among blocks.
#include "kernels/gpu/launch/share_division.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <iterator>
#include <optional>
#include <random>
#include <vector>

namespace symm {
namespace {

constexpr std::uint64_t kTile = wire_tile(WireKind::kLine).bytes;

// The shares of rank 1, by peer: each way.
struct Shares {
  std::vector<std::uint64_t> to;
  std::vector<std::uint64_t> from;
};

class ShareDivisionTest : public testing::Test {
 protected:
  void divide(const Shares& shares, bool in_place = false) {
    facts_.world_size = static_cast<int>(shares.to.size());
    division_.emplace(facts_.world_size);
    std::vector<Part> in;
    std::vector<Part> out;
    for (std::size_t peer = 0; peer < shares.to.size(); ++peer) {
      in.push_back({memory_.data(), shares.to[peer]});
      out.push_back({memory_.data() + (in_place ? 0 : 1), shares.from[peer]});
    }
    CollectiveArgs args;
    args.kind = CollectiveKind::kAllToAll;
    args.dtype = Dtype::kUInt8;
    args.input_parts = in;
    args.output_parts = out;
    division_->divide(args, facts_);
  }
  const WireLaunch& wire() const { return *division_->over_wire(); }
  const WireLaunch& lanes() const { return *division_->by_lanes(); }
  std::uint64_t limit() const { return most_share_by_wire(facts_); }

  std::vector<std::byte> memory_ = std::vector<std::byte>(2);
  ShareFacts facts_{.rank = 1, .wire = WireKind::kLine, .most_blocks = 64, .box_tiles = 120};
  std::optional<ShareDivision> division_;
};

// Each direction by itself.
TEST_F(ShareDivisionTest, TheSizeOfAShareDecides) {
  facts_.world_size = 3;
  const std::uint64_t most = limit();
  divide({{most, 8, most + 1}, {most + 1, 8, most}});
  EXPECT_EQ(wire().sends[0], 0b001u);
  EXPECT_EQ(wire().hears[0], 0b100u);
  EXPECT_EQ(wire().send[0].bytes, most);
  EXPECT_EQ(wire().send[2].bytes, 0u);
  EXPECT_TRUE(wire().copies_own);
  EXPECT_EQ(wire().stores, 0b110u);
  EXPECT_FALSE(wire().ends_call);
  EXPECT_EQ(lanes().sends[0], 0b100u);
  EXPECT_EQ(lanes().hears[0], 0b001u);
  EXPECT_EQ(lanes().send[2].bytes, most + 1);
  EXPECT_EQ(lanes().send[0].bytes, 0u);
  EXPECT_FALSE(lanes().copies_own);
}

// By its own size alone, which is what both its ends know.
TEST_F(ShareDivisionTest, AShareIsDividedByItsSize) {
  for (const std::size_t world : {std::size_t{2}, std::size_t{5}}) {
    std::vector<std::uint64_t> to(world, 9 * kTile);
    std::vector<std::uint64_t> from(world, 600 * kTile);
    to[1] = from[1] = 0;
    divide({to, from});
    EXPECT_EQ(wire().send[0].tiles_of_block, 5u) << world;
    EXPECT_EQ(wire().take[0].tiles_of_block, 10u) << world;
    EXPECT_EQ(wire().share_blocks, 64u);
    EXPECT_EQ(wire().tiles_per_block, 10u);
    EXPECT_EQ(wire().threads, kWireTiles * kTileThreads);
  }
}

// Peers may launch blocks that this rank has no use for: one more block ends their epochs.
TEST_F(ShareDivisionTest, MoreThanTwoRanksEndTheEpochsOfIdleBlocks) {
  divide({{0, 0, 1}, {0, 0, 0}});
  EXPECT_EQ(wire().share_blocks, 1u);
  EXPECT_EQ(wire().blocks, 2u);
  EXPECT_EQ(wire().threads, kTileThreads);
  EXPECT_TRUE(wire().ends_call);
  EXPECT_EQ(division_->by_lanes(), nullptr);
  const std::uint64_t large = limit() + 1;
  divide({{large, 0, large}, {large, 0, large}});
  ASSERT_NE(division_->over_wire(), nullptr);
  EXPECT_EQ(wire().share_blocks, 0u);
  EXPECT_EQ(wire().blocks, 1u);
  // Where boxes must be refreshed, all blocks are launched.
  facts_.wire = WireKind::kLL;
  divide({{0, 0, 1}, {0, 0, 0}});
  EXPECT_EQ(wire().share_blocks, 64u);
  EXPECT_EQ(wire().blocks, 64u);
}

// Two ranks know both shares, so their larger one says how many blocks there are, on both.
TEST_F(ShareDivisionTest, TwoRanksLaunchTheBlocksOfTheirLargerShare) {
  divide({{8, 0}, {9 * kTile, 0}});
  EXPECT_EQ(wire().blocks, 2u);
  divide({{9 * kTile, 0}, {8, 0}});
  EXPECT_EQ(wire().blocks, 2u);
  divide({{8, 40 * kTile}, {8, 40 * kTile}});
  EXPECT_EQ(wire().blocks, 1u);
  EXPECT_EQ(wire().share_blocks, 1u);
  EXPECT_EQ(wire().threads, kWireTiles * kTileThreads);
  EXPECT_TRUE(wire().copies_own);

  const std::uint64_t large = limit() + 1;
  divide({{large, 8}, {large, 8}});
  EXPECT_EQ(division_->over_wire(), nullptr);
  EXPECT_TRUE(lanes().copies_own);
  EXPECT_TRUE(lanes().ends_call);
  divide({{large, 8}, {0, 8}});
  EXPECT_EQ(wire().blocks, 1u);
  EXPECT_EQ(wire().sends[0], 0u);
  EXPECT_EQ(lanes().sends[0], 0b1u);
  EXPECT_EQ(lanes().hears[0], 0u);
}

// More than few blocks would copy quickly.
TEST_F(ShareDivisionTest, ALargeOwnShareGoesByLanes) {
  divide({{8, 1000 * kTile}, {8, 1000 * kTile}});
  EXPECT_FALSE(wire().copies_own);
  EXPECT_EQ(wire().send[1].bytes, 0u);
  EXPECT_TRUE(lanes().copies_own);
  EXPECT_EQ(lanes().sends[0], 0u);
  EXPECT_EQ(lanes().take[1].bytes, 1000 * kTile);
  divide({{8, 1000 * kTile}, {8, 1000 * kTile}}, true);
  EXPECT_EQ(division_->by_lanes(), nullptr);
  EXPECT_EQ(wire().stores, 0b01u);
}

TEST_F(ShareDivisionTest, ARankAloneCopies) {
  facts_.rank = 0;
  divide({{100}, {100}});
  EXPECT_TRUE(wire().copies_own);
  EXPECT_EQ(wire().sends[0], 0u);
  divide({{0}, {0}});
  EXPECT_EQ(wire().blocks, 1u);
  EXPECT_TRUE(wire().ends_call);
}

// What one rank sends another is what that one takes: in the same way, in the same tiles of the
// same blocks, which both launch, and each in its box.
TEST_F(ShareDivisionTest, BothEndsOfAShareDivideItAlike) {
  std::mt19937 random(7);
  const auto draw = [&](std::size_t count) { return std::size_t{random()} % count; };
  for (int round = 0; round < 300; ++round) {
    const std::size_t world = 2 + draw(4);
    facts_.world_size = static_cast<int>(world);
    facts_.wire = draw(2) == 0 ? WireKind::kLL : WireKind::kLine;
    facts_.most_blocks = std::array{1, 5, 64}[draw(3)];
    facts_.box_tiles = std::array{3u, 60u, 255u}[draw(3)];
    const std::uint64_t sizes[] = {0, 1, kTile + 1, 70 * kTile, limit(), limit() + 1, 9u << 20};
    std::vector<std::vector<std::uint64_t>> matrix(world, std::vector<std::uint64_t>(world));
    for (auto& row : matrix) {
      for (std::uint64_t& bytes : row) bytes = sizes[draw(std::size(sizes))];
    }
    std::vector<WireLaunch> wires(world);
    std::vector<WireLaunch> lanes(world);
    for (std::size_t rank = 0; rank < world; ++rank) {
      facts_.rank = static_cast<int>(rank);
      Shares shares{matrix[rank], {}};
      for (const auto& row : matrix) shares.from.push_back(row[rank]);
      divide(shares);
      if (division_->over_wire() != nullptr) wires[rank] = wire();
      if (division_->by_lanes() != nullptr) lanes[rank] = this->lanes();
    }
    for (std::size_t from = 0; from < world; ++from) {
      for (std::size_t to = 0; to < world; ++to) {
        if (from == to) continue;
        const bool over_wire = (wires[from].sends[0] >> to & 1) != 0;
        EXPECT_EQ((wires[to].hears[0] >> from & 1) != 0, over_wire);
        EXPECT_EQ((lanes[from].sends[0] >> to & 1) != 0, !over_wire);
        EXPECT_EQ((lanes[to].hears[0] >> from & 1) != 0, !over_wire);
        EXPECT_EQ(over_wire, matrix[from][to] <= limit());
        if (!over_wire) continue;
        const std::uint64_t of_block = wires[from].send[to].tiles_of_block;
        EXPECT_EQ(wires[to].take[from].tiles_of_block, of_block);
        EXPECT_LE(of_block, facts_.box_tiles);
        const std::uint64_t tiles = divided_up(matrix[from][to], wire_tile(facts_.wire).bytes);
        EXPECT_EQ(of_block == 0, tiles == 0);
        const std::uint64_t blocks = tiles == 0 ? 1 : divided_up(tiles, of_block);
        EXPECT_LE(blocks, wires[from].share_blocks);
        EXPECT_LE(blocks, wires[to].share_blocks);
        EXPECT_LE(wires[from].share_blocks, static_cast<unsigned>(facts_.most_blocks));
      }
    }
    if (world == 2) {
      EXPECT_EQ(wires[0].share_blocks, wires[1].share_blocks);
    }
    ASSERT_FALSE(HasFailure()) << "round " << round << ", " << world << " ranks";
  }
}

// Whatever boxes and blocks there are, a share over the wire fits into one launch.
TEST_F(ShareDivisionTest, SharesFitIntoBoxes) {
  for (const int blocks : {1, 3, 64}) {
    for (const std::uint32_t tiles : {1u, 7u, 120u}) {
      facts_.most_blocks = blocks;
      facts_.box_tiles = tiles;
      for (const std::size_t world : {std::size_t{2}, std::size_t{3}}) {
        facts_.world_size = static_cast<int>(world);
        std::vector<std::uint64_t> sizes(world, limit());
        sizes[1] = 0;
        divide({sizes, sizes});
        EXPECT_LE(wire().tiles_per_block, tiles) << blocks << " " << world;
        EXPECT_LE(wire().share_blocks, static_cast<unsigned>(blocks));
      }
    }
  }
}

}  // namespace
}  // namespace symm
