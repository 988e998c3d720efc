// Which all_reduces with an RMS norm are one launch, and how their rows are divided.
#include "kernels/gpu/launch/norm_launch.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace symm {
namespace {

constexpr std::uint64_t kWorkspace = 64u << 20;

CollectiveArgs call_of(std::size_t rows, std::size_t columns, Dtype dtype = Dtype::kBFloat16) {
  CollectiveArgs args;
  args.kind = CollectiveKind::kAllReduce;
  args.dtype = dtype;
  args.count = rows * columns;
  args.norm.columns = columns;
  return args;
}

struct Launch {
  bool fits;
  NormParams norm;
  WireLaunch wire;
};

Launch launch_of(const CollectiveArgs& args, int world, WireKind kind, int most_blocks = 64) {
  const DeviceLayout layout = DeviceLayout::of(world, kWorkspace);
  Launch launch{false, norm_params(args), {}};
  const NormFacts facts{world, kind, std::min(most_blocks, static_cast<int>(layout.wire_blocks)),
                        layout.wire_box_tiles(kind)};
  launch.fits = fits_norm_launch(launch.norm, facts, launch.wire);
  return launch;
}

// By the bytes of a row alone: the sum of its squares is made by parts.
TEST(NormLaunch, PartsCoverARow) {
  for (std::size_t columns = 1; columns < 400'000; columns = columns * 9 / 8 + 1) {
    for (const Dtype dtype : {Dtype::kBFloat16, Dtype::kFloat64}) {
      const NormParams norm = norm_params(call_of(1, columns, dtype));
      const std::uint64_t before = std::uint64_t{norm.row_parts - 1} * norm.part_bytes;
      EXPECT_EQ(norm.part_bytes % 16, 0u);
      EXPECT_LE(norm.part_bytes, kNormPartBytes);
      EXPECT_LT(before, norm.row_bytes);
      EXPECT_GE(before + norm.part_bytes, norm.row_bytes);
      EXPECT_EQ(norm.row_parts, (norm.row_bytes + kNormPartBytes - 1) / kNormPartBytes);
    }
  }
  EXPECT_EQ(norm_params(call_of(1, 28672)).part_bytes, 14336u);
  EXPECT_EQ(norm_params(call_of(1, 28672)).row_parts, 4u);
}

TEST(NormLaunch, RowsOfADecodeStepHaveBlocksOfTheirOwn) {
  for (const WireKind kind : {WireKind::kLL, WireKind::kLine}) {
    for (const std::size_t rows : {1, 8, 64}) {
      const Launch launch = launch_of(call_of(rows, 4096), 2, kind);
      ASSERT_TRUE(launch.fits) << rows;
      EXPECT_EQ(launch.norm.rows, rows);
      EXPECT_EQ(launch.norm.row_bytes, 8192u);
      EXPECT_EQ(launch.norm.rows_per_block, 1u);
      EXPECT_EQ(launch.wire.blocks, rows);
      EXPECT_TRUE(launch.wire.ends_call);
    }
  }
}

TEST(NormLaunch, BlocksCoverAllRowsWithinTheirBoxesAndSharedMemory) {
  for (const int world : {1, 2, 3, 4, 8}) {
    const DeviceLayout layout = DeviceLayout::of(world, kWorkspace);
    for (const WireKind kind : {WireKind::kLL, WireKind::kLine}) {
      for (std::size_t rows = 1; rows < 400; rows += 7) {
        for (const std::size_t columns : {8, 120, 1024, 5120, 16384, 20000}) {
          const Launch launch = launch_of(call_of(rows, columns), world, kind);
          if (!launch.fits || launch.norm.rows_per_block == 0) continue;
          const std::uint64_t bytes =
              std::uint64_t{launch.norm.rows_per_block} * launch.norm.row_bytes;
          EXPECT_LE(bytes, kNormBlockBytes);
          EXPECT_LE(launch.wire.blocks, layout.wire_blocks);
          EXPECT_LE(launch.wire.tiles_per_block, layout.wire_box_tiles(kind));
          EXPECT_GE(std::uint64_t{launch.wire.tiles_per_block} * wire_tile(kind).bytes, bytes);
          EXPECT_GE(std::uint64_t{launch.wire.blocks} * launch.norm.rows_per_block, rows);
          EXPECT_LT((std::uint64_t{launch.wire.blocks} - 1) * launch.norm.rows_per_block, rows);
        }
      }
    }
  }
}

// Rows that do not fit into the blocks of the plan are summed first.
TEST(NormLaunch, APlanSaysHowManyBlocksThereAre) {
  for (const WireKind kind : {WireKind::kLL, WireKind::kLine}) {
    const Launch one = launch_of(call_of(24, 256), 4, kind, 1);
    ASSERT_TRUE(one.fits);
    EXPECT_EQ(one.wire.blocks, 1u);
    EXPECT_EQ(one.norm.rows_per_block, 24u);
    const Launch eight = launch_of(call_of(64, 256), 4, kind, 8);
    ASSERT_TRUE(eight.fits);
    EXPECT_EQ(eight.wire.blocks, 8u);
    EXPECT_EQ(eight.norm.rows_per_block, 8u);
    EXPECT_TRUE(launch_of(call_of(24, 4096), 2, kind, 8).fits);
    EXPECT_FALSE(launch_of(call_of(64, 4096), 2, kind, 8).fits);  // 64 KiB a block
    EXPECT_FALSE(launch_of(call_of(8, 4096), 2, kind, 1).fits);
  }
}

// Each block has a part, where there are enough of them.
TEST(NormLaunch, BlocksShareFewLongRows) {
  for (const WireKind kind : {WireKind::kLL, WireKind::kLine}) {
    const Launch eight = launch_of(call_of(8, 28672), 2, kind);
    ASSERT_TRUE(eight.fits);
    EXPECT_EQ(eight.norm.rows_per_block, 0u);
    EXPECT_EQ(eight.wire.blocks, 32u);
    EXPECT_GE(std::uint64_t{eight.wire.tiles_per_block} * wire_tile(kind).bytes, 14336u);
    const Launch sixteen = launch_of(call_of(16, 28672), 2, kind);
    ASSERT_TRUE(sixteen.fits);
    EXPECT_EQ(sixteen.wire.blocks, 64u);
    EXPECT_FALSE(launch_of(call_of(17, 28672), 2, kind).fits);
    EXPECT_FALSE(launch_of(call_of(8, 28672), 2, kind, 31).fits);
    // Rows that a block can have alone.
    EXPECT_EQ(launch_of(call_of(1, 8192), 2, kind).norm.rows_per_block, 1u);
    EXPECT_EQ(launch_of(call_of(32, 11008), 2, kind).norm.rows_per_block, 0u);
    const Launch many = launch_of(call_of(33, 11008), 2, kind);
    ASSERT_TRUE(many.fits);
    EXPECT_EQ(many.norm.rows_per_block, 1u);
    EXPECT_EQ(many.wire.blocks, 33u);
  }
}

TEST(NormLaunch, OthersAreSummedFirst) {
  EXPECT_FALSE(launch_of(call_of(0, 64), 2, WireKind::kLL).fits);        // nothing
  EXPECT_FALSE(launch_of(call_of(3, 33), 2, WireKind::kLL).fits);        // rows of 66 bytes
  EXPECT_FALSE(launch_of(call_of(32, 32768), 2, WireKind::kLL).fits);    // rows of 64 KiB
  EXPECT_TRUE(launch_of(call_of(256, 4096), 2, WireKind::kLine).fits);   // 2 MiB to one peer
  EXPECT_FALSE(launch_of(call_of(257, 4096), 2, WireKind::kLine).fits);  // more
  EXPECT_FALSE(launch_of(call_of(256, 4096), 4, WireKind::kLine).fits);  // to three
}

}  // namespace
}  // namespace symm
