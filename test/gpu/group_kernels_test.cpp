// Every collective by every algorithm of the GPU, against the host's reduction kernels and plain
// copies: all bytes must be equal.
#include "kernels/gpu/interface/group_kernels.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <tuple>
#include <utility>

#include "kernels/core/reduce_op.hpp"
#include "kernels/cpu/reduce_kernels.hpp"
#include "kernels/plan/plan.hpp"
#include "test/gpu/collective_checker.hpp"

namespace symm::test {
namespace {

Plan plan(Algorithm algorithm, int channels) {
  Plan plan;
  plan.algorithm = algorithm;
  plan.channels = channels;
  return plan;
}

// So few blocks that all fit on one GPU.
std::vector<Plan> plans_of(CollectiveKind kind, int world) {
  std::vector<Plan> plans = {plan(Algorithm::kLL, 16), plan(Algorithm::kBulk, 8)};
  if (kind == CollectiveKind::kAllReduce) plans.push_back(plan(Algorithm::kLLTwoShot, 32));
  for (Plan& plan : plans) plan.channels = std::min(plan.channels, 128 / world);
  return plans;
}

constexpr CollectiveKind kKinds[] = {CollectiveKind::kAllReduce,     CollectiveKind::kReduce,
                                     CollectiveKind::kReduceScatter, CollectiveKind::kBroadcast,
                                     CollectiveKind::kAllGather,     CollectiveKind::kGather,
                                     CollectiveKind::kScatter};

// By world size and wire.
class GroupKernelsTest : public testing::TestWithParam<std::tuple<int, WireKind>> {
 protected:
  void SetUp() override {
    if (!gpu_visible()) GTEST_SKIP() << "no GPU is visible";
  }
  int world() const { return std::get<0>(GetParam()); }
  WireKind wire() const { return std::get<1>(GetParam()); }
  std::vector<std::size_t> even(std::size_t count) const {
    return std::vector<std::size_t>(static_cast<std::size_t>(world()), count);
  }
};

TEST_P(GroupKernelsTest, EveryAlgorithmAtManySizes) {
  DeviceRig rig(world(), {.wire = wire()});
  Checker checker(rig);
  int turn = 0;
  for (const CollectiveKind kind : kKinds) {
    for (const Plan& plan : plans_of(kind, world())) {
      for (const std::size_t count : {0u, 1u, 3u, 1000u, 40'000u, 1'500'001u}) {
        checker.run({.kind = kind,
                     .plan = plan,
                     .dtype = Dtype::kInt32,
                     .counts = even(count),
                     .root = turn % world(),
                     .in_place = turn % 2 == 1 && !reads_parts(kind),
                     .offset = turn % 3 == 0 ? kOdd / 4 : 0});
        if (HasFatalFailure()) return;
        ++turn;
      }
    }
  }
}

// NOTE [Direct chunks] in lane.cuh: all ranks, one alone, and all but one have their outputs in
// symmetric memory; pieces end within a unit of 16 bytes, or begin within one.
TEST_P(GroupKernelsTest, OutputsInSymmetricMemory) {
  DeviceRig rig(world(), {.wire = wire()});
  Checker checker(rig);
  const std::uint64_t all = (std::uint64_t{1} << world()) - 1;
  int turn = 0;
  for (const CollectiveKind kind : kKinds) {
    if (!has_algorithm(kind, Algorithm::kBulk, PlanTarget::kGpu)) continue;
    for (const std::uint64_t registered : {all, std::uint64_t{2}, all - 1}) {
      for (const std::size_t count : {0u, 5u, 40'000u, 200'000u, 300'001u}) {
        checker.run({.kind = kind,
                     .plan = plan(Algorithm::kBulk, turn % 2 == 0 ? 1 : 8),
                     .dtype = Dtype::kInt32,
                     .counts = even(count),
                     .root = turn % world(),
                     .in_place = turn % 3 == 1 && !reads_parts(kind),
                     .offset = turn % 5 == 0   ? std::size_t{4}
                               : turn % 5 == 1 ? kOdd
                                               : 0,
                     .registered = registered});
        if (HasFatalFailure()) return;
        ++turn;
      }
    }
  }
}

// Where every receiver has announced its output before the root begins, no chunk is in a slot.
TEST_P(GroupKernelsTest, OutputsInSymmetricMemoryNeedNoSlots) {
  DeviceRig rig(world(), {.wire = wire()});
  Checker checker(rig);
  const DeviceLayout& layout = rig.layout();
  const std::size_t bytes = layout.total_bytes - layout.bulk_slots;
  const std::uint64_t all = (std::uint64_t{1} << world()) - 1;
  const auto changed = [&](std::uint64_t registered) {
    for (int rank = 0; rank < world(); ++rank) {
      check(gpuMemset(rig.segment(rank) + layout.bulk_slots, 0x3c, bytes), "Memset");
    }
    checker.run({.kind = CollectiveKind::kScatter,
                 .plan = plan(Algorithm::kBulk, 1),
                 .counts = even(500'001),
                 .root = 0,
                 .registered = registered,
                 .root_last = true});
    int ranks = 0;
    for (int rank = 0; rank < world(); ++rank) {
      Bytes slots(bytes);
      check(gpuMemcpy(slots.data(), rig.segment(rank) + layout.bulk_slots, bytes,
                      gpuMemcpyDeviceToHost),
            "Memcpy");
      ranks += std::ranges::any_of(slots, [](std::byte b) { return b != std::byte{0x3c}; }) ? 1 : 0;
    }
    return ranks;
  };
  EXPECT_EQ(changed(all), 0);
  EXPECT_EQ(changed(0), world() - 1);
  EXPECT_EQ(changed(all & ~std::uint64_t{2}), world() > 1 ? 1 : 0) << "rank 1 alone";
}

// From 32 MiB on it combines nothing; before and behind such calls others use the same slots.
TEST_P(GroupKernelsTest, LargeReducesWhoseRootHasNoSlice) {
  if (world() > 4) GTEST_SKIP() << "as with four ranks, and for long";
  DeviceRig rig(world(), {.wire = wire()});
  Checker checker(rig);
  constexpr std::size_t kFirst = (32u << 20) / 4;
  const std::uint64_t all = (std::uint64_t{1} << world()) - 1;
  int turn = 0;
  for (const std::size_t count : {kFirst - 1, kFirst, kFirst + 12'345, std::size_t{70'000}}) {
    for (const std::uint64_t registered : {std::uint64_t{0}, all}) {
      const bool scales = turn % 3 == 2;
      checker.run({.kind = CollectiveKind::kReduce,
                   .plan = plan(Algorithm::kBulk, turn % 2 == 0 ? 16 : 3),
                   .dtype = scales ? Dtype::kFloat32 : Dtype::kInt32,
                   .op = scales ? ReduceOp::kPreMulSum : ReduceOp::kSum,
                   .counts = even(count),
                   .root = turn % world(),
                   .in_place = turn % 2 == 1,
                   .offset = turn % 4 == 3 ? std::size_t{4} : 0,
                   .registered = registered});
      if (HasFatalFailure()) return;
      ++turn;
    }
  }
}

TEST_P(GroupKernelsTest, UnevenShares) {
  DeviceRig rig(world(), {.wire = wire()});
  Checker checker(rig);
  for (const CollectiveKind kind : {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter}) {
    for (const Plan& plan : plans_of(kind, world())) {
      std::vector<std::size_t> counts = even(0);
      for (std::size_t r = 0; r < counts.size(); ++r) counts[r] = r == 1 ? 0 : 33'333 * r + 7;
      checker.run({.kind = kind, .plan = plan, .dtype = Dtype::kInt16, .counts = counts});
    }
  }
}

TEST_P(GroupKernelsTest, EveryReductionRule) {
  DeviceRig rig(world(), {.wire = wire()});
  Checker checker(rig);
  for (int d = 0; d < kDtypeCount; ++d) {
    for (int o = 0; o < kReduceOpCount; ++o) {
      const auto dtype = static_cast<Dtype>(d);
      const auto op = static_cast<ReduceOp>(o);
      if (!op_supports(op, dtype)) continue;
      for (const Plan& plan : plans_of(CollectiveKind::kAllReduce, world())) {
        checker.run({.kind = CollectiveKind::kAllReduce,
                     .plan = plan,
                     .dtype = dtype,
                     .op = op,
                     .counts = even(5003)});
        if (HasFatalFailure()) return;
      }
      for (const CollectiveKind kind : {CollectiveKind::kReduce, CollectiveKind::kReduceScatter}) {
        for (const Plan& plan : plans_of(kind, world())) {
          checker.run({.kind = kind, .plan = plan, .dtype = dtype, .op = op, .counts = even(771)});
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// NOTE [Sets of tiles] in tile_sets.cuh: blocks with fewer tiles than large ones have, with as
// many, with a set more; pieces that end within a tile, within a unit, that are not aligned, and of
// which one ends before the others.
TEST_P(GroupKernelsTest, LargeBlocksTakeSetsOfTiles) {
  DeviceRig rig(world(), {.wire = wire()});
  Checker checker(rig);
  constexpr std::pair<Dtype, ReduceOp> kRules[] = {{Dtype::kBFloat16, ReduceOp::kPreMulSum},
                                                   {Dtype::kComplex128, ReduceOp::kSum},
                                                   {Dtype::kFloat8E4M3Fn, ReduceOp::kAvg},
                                                   {Dtype::kInt32, ReduceOp::kMax},
                                                   {Dtype::kFloat32, ReduceOp::kSum}};
  int turn = 0;
  for (const CollectiveKind kind : kKinds) {
    const bool hops_twice = kind == CollectiveKind::kAllReduce;
    for (const Algorithm algorithm : {Algorithm::kLL, Algorithm::kLLTwoShot}) {
      if (algorithm == Algorithm::kLLTwoShot && !hops_twice) continue;
      for (const std::size_t tiles : {16u, 17u, 24u, 25u, 47u, 48u, 49u, 120u}) {
        for (const int blocks : {1, 3}) {
          const auto [dtype, op] = kRules[turn % 5];
          const std::size_t slices = algorithm == Algorithm::kLL ? 1 : even(0).size();
          const std::size_t bytes =
              slices * tiles * static_cast<std::size_t>(blocks) * wire_tile(wire()).bytes -
              std::size_t{16} * (turn % 3);
          std::vector<std::size_t> counts = even(bytes / dtype_bytes(dtype));
          if (has_parts(kind) && turn % 4 == 3) counts.back() /= 2;
          checker.run({.kind = kind,
                       .plan = plan(algorithm, blocks),
                       .dtype = dtype,
                       .op = op,
                       .counts = counts,
                       .root = turn % world(),
                       .in_place = turn % 2 == 1 && !reads_parts(kind),
                       .offset = turn % 7 == 6 && dtype_bytes(dtype) <= 8 ? std::size_t{8} : 0});
          if (HasFatalFailure()) return;
          ++turn;
        }
      }
    }
  }
}

// NOTE [Few tiles] in few_tiles.cuh: blocks with one tile, with as many as a small and a large
// block has warps, with one more, and with so many that they take rounds; whole units, and others
// on no rank, on one and on all but one, which then launch another kernel than their peers.
TEST_P(GroupKernelsTest, RanksLaunchKernelsOfTheirOwnForOneCall) {
  DeviceRig rig(world(), {.wire = wire()});
  Checker checker(rig);
  constexpr std::pair<Dtype, ReduceOp> kRules[] = {{Dtype::kBFloat16, ReduceOp::kSum},
                                                   {Dtype::kInt32, ReduceOp::kSum},
                                                   {Dtype::kFloat32, ReduceOp::kAvg},
                                                   {Dtype::kFloat8E5M2, ReduceOp::kSum},
                                                   {Dtype::kFloat16, ReduceOp::kPreMulSum}};
  const std::uint64_t all = (std::uint64_t{1} << world()) - 1;
  int turn = 0;
  for (const CollectiveKind kind : kKinds) {
    for (const Algorithm algorithm : {Algorithm::kLL, Algorithm::kLLTwoShot}) {
      if (algorithm == Algorithm::kLLTwoShot && kind != CollectiveKind::kAllReduce) continue;
      for (const std::size_t tiles : {1u, 10u, 11u, 32u, 33u, 70u, 200u}) {
        for (const std::uint64_t shifted : {std::uint64_t{0}, std::uint64_t{2}, all - 1}) {
          const auto [dtype, op] = kRules[turn % 5];
          const int blocks = turn % 2 == 0 ? 1 : 3;
          const std::size_t slices = algorithm == Algorithm::kLL ? 1 : even(0).size();
          const std::size_t bytes =
              slices * tiles * static_cast<std::size_t>(blocks) * wire_tile(wire()).bytes -
              std::size_t{4} * (turn % 3);
          checker.run({.kind = kind,
                       .plan = plan(algorithm, blocks),
                       .dtype = dtype,
                       .op = op,
                       .counts = even(bytes / dtype_bytes(dtype)),
                       .root = turn % world(),
                       .in_place = turn % 4 == 1 && !reads_parts(kind),
                       .shifted = shifted});
          if (HasFatalFailure()) return;
          ++turn;
        }
      }
    }
  }
}

TEST_P(GroupKernelsTest, MessagesLargerThanABoxTakeSeveralLaunches) {
  DeviceRig rig(world(), {.workspace_bytes = kLeastDeviceWorkspace, .wire = wire()});
  Checker checker(rig);
  // What one launch of 16 blocks takes.
  const std::size_t buffer =
      std::size_t{16} * rig.layout().wire_box_tiles(wire()) * wire_tile(wire()).bytes;
  for (const CollectiveKind kind : kKinds) {
    for (const std::size_t bytes : {buffer - 4, buffer, buffer + 4, 3 * buffer + 20}) {
      checker.run({.kind = kind, .plan = plan(Algorithm::kLL, 16), .counts = even(bytes / 4)});
      if (HasFatalFailure()) return;
    }
  }
  for (const std::size_t bytes : {buffer * 2, 9 * buffer + 12}) {
    checker.run({.kind = CollectiveKind::kAllReduce,
                 .plan = plan(Algorithm::kLLTwoShot, 32),
                 .counts = even(bytes / 4)});
  }
}

// Of three launches, the last of which has fewer tiles; ranks that launch kernels of their own.
TEST_P(GroupKernelsTest, CallsOfSeveralLaunches) {
  DeviceRig rig(world(), {.wire = wire()});
  Checker checker(rig);
  const int blocks = std::min(kMaxWireBlocks, 128 / world());
  const std::size_t launch = static_cast<std::size_t>(blocks) *
                             rig.layout().wire_box_tiles(wire()) * wire_tile(wire()).bytes;
  int turn = 0;
  for (const CollectiveKind kind : kKinds) {
    for (const std::size_t bytes : {launch * 5 / 2, launch * 5 / 2 + 4, launch * 2 + 4}) {
      checker.run({.kind = kind,
                   .plan = plan(Algorithm::kLL, blocks),
                   .dtype = Dtype::kFloat32,
                   .counts = even(bytes / 4),
                   .root = turn % world(),
                   .shifted = turn % 2 == 0 ? 0u : 2u});
      if (HasFatalFailure()) return;
      ++turn;
    }
  }
}

// Each counter passes through 2^31 and 2^32 by itself (epochs of an LL wire with a refresh of all
// boxes) while calls go on.
TEST_P(GroupKernelsTest, CountersPassTheWidthsOfWords) {
  constexpr std::uint64_t kSigned = (std::uint64_t{1} << 31) - 6;
  constexpr std::uint64_t kUnsigned = (std::uint64_t{1} << 32) - 6;
  constexpr FirstCounts kStarts[] = {
      {.wire = kSigned}, {.wire = kUnsigned}, {.bulk = (1u << 31) - 6}, {.bulk = 0u - 6}};
  for (const FirstCounts& first : kStarts) {
    DeviceRig rig(world(),
                  {.workspace_bytes = kLeastDeviceWorkspace, .first = first, .wire = wire()});
    Checker checker(rig);
    for (int round = 0; round < 4; ++round) {
      for (const CollectiveKind kind : kKinds) {
        for (const Plan& plan : plans_of(kind, world())) {
          checker.run({.kind = kind,
                       .plan = plan,
                       .counts = even(static_cast<std::size_t>(700 + round)),
                       .root = round % world()});
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// Ranks run ahead of each other: many calls are queued before anybody waits.
TEST_P(GroupKernelsTest, ManyCallsInFlight) {
  DeviceRig rig(world(), {.workspace_bytes = kLeastDeviceWorkspace, .wire = wire()});
  constexpr std::size_t kCount = 3001;
  constexpr int kCalls = 200;
  std::vector<std::unique_ptr<DeviceBytes>> data;
  for (int rank = 0; rank < world(); ++rank) {
    data.push_back(std::make_unique<DeviceBytes>(kCount * 4));
    const std::vector<std::int32_t> start(kCount, rank + 1);
    check(gpuMemcpy(data.back()->at(0), start.data(), kCount * 4, gpuMemcpyHostToDevice), "Memcpy");
  }
  finish_default_stream();
  for (int rank = 0; rank < world(); ++rank) {
    for (int i = 0; i < kCalls; ++i) {
      CollectiveArgs args;
      args.kind = i % 3 == 2 ? CollectiveKind::kBroadcast : CollectiveKind::kAllReduce;
      args.dtype = Dtype::kInt32;
      args.op = i % 3 == 0 ? ReduceOp::kSum : ReduceOp::kMax;
      args.root = i % world();
      args.count = kCount;
      args.input = args.output = data[static_cast<std::size_t>(rank)]->at(0);
      const Algorithm algorithm = i % 2 == 0 ? Algorithm::kLL : Algorithm::kBulk;
      rig.kernels(rank).launch(args, plan(algorithm, 8), rig.options(rank));
    }
  }
  rig.finish();
  rig.expect_healthy();
  std::uint32_t value = 0;
  for (int rank = 0; rank < world(); ++rank) value += static_cast<std::uint32_t>(rank + 1);
  for (int i = 1; i < kCalls; ++i) {
    if (i % 3 == 0) value *= static_cast<std::uint32_t>(world());
  }
  for (int rank = 0; rank < world(); ++rank) {
    std::vector<std::uint32_t> got(kCount);
    check(gpuMemcpy(got.data(), data[static_cast<std::size_t>(rank)]->at(0), kCount * 4,
                    gpuMemcpyDeviceToHost),
          "Memcpy");
    ASSERT_EQ(got, std::vector<std::uint32_t>(kCount, value)) << "rank " << rank;
    EXPECT_EQ(load_acquire(&rig.page(rank).completed), static_cast<std::uint64_t>(kCalls));
  }
}

// So many ranks that a warp of a lane serves several of them.
TEST(ManyRanks, WarpsOfALaneShareTheirPeers) {
  if (!gpu_visible()) GTEST_SKIP() << "no GPU is visible";
  constexpr int kWorld = 21;
  DeviceRig rig(kWorld, {.workspace_bytes = 8u << 20});
  Checker checker(rig);
  for (const CollectiveKind kind : kKinds) {
    for (const std::size_t count : {1u, 5003u, 200'001u}) {
      checker.run({.kind = kind,
                   .plan = plan(Algorithm::kBulk, 4),
                   .dtype = Dtype::kBFloat16,
                   .counts = std::vector<std::size_t>(kWorld, count),
                   .root = 17});
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, GroupKernelsTest,
                         testing::Combine(testing::Values(1, 2, 3, 4, 8),
                                          testing::Values(WireKind::kLL, WireKind::kLine)),
                         [](const auto& i) {
                           const bool is_line = std::get<1>(i.param) == WireKind::kLine;
                           return std::to_string(std::get<0>(i.param)) + (is_line ? "Line" : "LL");
                         });

}  // namespace
}  // namespace symm::test
