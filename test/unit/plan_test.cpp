// Tables of algorithms: what they choose, what they refuse, and that they survive being published.
#include "kernels/plan/plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "backend/engine/group/call_record.hpp"
#include "kernels/core/error.hpp"
#include "kernels/core/platform.hpp"
#include "kernels/protocol/device_layout.hpp"
#include "test/support/expect_error.hpp"

namespace symm {
namespace {

using enum CollectiveKind;
using enum Algorithm;
using test::error_of;
using test::expect_error;

constexpr std::uint64_t kAll = PlanRow::kNoLimit;

const PlanTable& built_in(PlanTarget target) {
  return target == PlanTarget::kHost ? PlanTable::built_in()
                                     : PlanTable::built_in_gpu(WireKind::kLL);
}

class PlanOfTargetTest : public testing::TestWithParam<PlanTarget> {
 protected:
  // Expects that the built-in rows, changed by `change`, are refused with all of `words`.
  void expect_refused(const std::function<void(std::vector<PlanRow>&)>& change,
                      const std::vector<std::string>& words) {
    std::vector<PlanRow> rows = built_in(GetParam()).rows();
    change(rows);
    expect_error(error_of([&] { PlanTable(GetParam(), rows); }), ErrorCode::kInvalidArgument,
                 words);
  }
  static PlanRow& first_of(std::vector<PlanRow>& rows, CollectiveKind kind) {
    for (PlanRow& row : rows) {
      if (row.kind == kind) return row;
    }
    throw std::out_of_range("no such row");
  }
};

TEST_P(PlanOfTargetTest, BuiltInTableHasAnAlgorithmForEveryCall) {
  const PlanTable& table = built_in(GetParam());
  EXPECT_EQ(table.target(), GetParam());
  for (int kind = 0; kind < kCollectiveKindCount; ++kind) {
    for (const int world : {2, 3, 4, 5, 8, 64, kMaxRanks}) {
      for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{64} << 10,
                                        std::uint64_t{1} << 30, kAll - 1, kAll}) {
        const Plan plan = table.select(static_cast<CollectiveKind>(kind), world, bytes, kAuto);
        EXPECT_TRUE(has_algorithm(static_cast<CollectiveKind>(kind), plan.algorithm, GetParam()));
        EXPECT_EQ(plan.chunk_bytes >= std::size_t{16} * 1024, GetParam() == PlanTarget::kHost);
        EXPECT_EQ(plan.channels > 0, GetParam() == PlanTarget::kGpu);
        EXPECT_LE(plan.channels, kMaxChannels);
      }
    }
  }
}

TEST_P(PlanOfTargetTest, ForcedAlgorithmsHoldWhereTheCollectiveHasThem) {
  const PlanTable& table = built_in(GetParam());
  for (int k = 0; k < kCollectiveKindCount; ++k) {
    const auto kind = static_cast<CollectiveKind>(k);
    const Plan chosen = table.select(kind, 4, 1024, kAuto);
    for (int a = 1; a < kAlgorithmCount; ++a) {
      const auto forced = static_cast<Algorithm>(a);
      const Plan plan = table.select(kind, 4, 1024, forced);
      const bool holds = forced != kCopyEngine && has_algorithm(kind, forced, GetParam());
      EXPECT_EQ(plan.algorithm, holds ? forced : chosen.algorithm)
          << collective_name(kind) << " by " << algorithm_name(forced);
      EXPECT_EQ(plan.channels > 0, GetParam() == PlanTarget::kGpu);
    }
  }
}

TEST_P(PlanOfTargetTest, RefusesGapsAndOverlaps) {
  expect_refused(
      [](auto& rows) {
        std::erase_if(rows, [](const PlanRow& row) { return row.kind == kBarrier; });
      },
      {"barrier", "worlds from 2 on are missing"});
  expect_refused([](auto& rows) { first_of(rows, kBroadcast).min_world = 3; },
                 {"broadcast", "world"});
  expect_refused([](auto& rows) { rows.push_back(first_of(rows, kGather)); },
                 {"gather", "never reached"});
  expect_refused(
      [](auto& rows) {
        PlanRow wide = first_of(rows, kScatter);
        wide.max_world = 7;
        rows.push_back(wide);
      },
      {"scatter", "overlaps"});
  expect_refused(
      [](auto& rows) {
        std::erase_if(
            rows, [](const PlanRow& row) { return row.kind == kReduce && row.max_bytes == kAll; });
      },
      {"reduce", "sizes above", "missing"});
}

TEST_P(PlanOfTargetTest, RefusesBadFields) {
  expect_refused([](auto& rows) { first_of(rows, kBarrier).algorithm = kRing; },
                 {"barrier", "ring", algorithm_list(kBarrier, GetParam())});
  // Too few on the host, and none are for a GPU.
  expect_refused([](auto& rows) { first_of(rows, kReduce).chunk_bytes = 1000; },
                 {"reduce", "chunk_bytes", "got 1000"});
  expect_refused([](auto& rows) { first_of(rows, kReduce).max_world = kMaxRanks + 1; },
                 {"reduce", "max_world"});
  const int wrong = GetParam() == PlanTarget::kHost ? 4 : kMaxChannels + 1;
  expect_refused([&](auto& rows) { first_of(rows, kGather).channels = wrong; },
                 {"gather", "channels", "got " + std::to_string(wrong)});
}

INSTANTIATE_TEST_SUITE_P(Targets, PlanOfTargetTest,
                         testing::Values(PlanTarget::kHost, PlanTarget::kGpu), [](const auto& i) {
                           return i.param == PlanTarget::kHost ? "host" : "gpu";
                         });

TEST(Plan, AlgorithmsOfTheTargets) {
  EXPECT_EQ(algorithm_list(kAllReduce, PlanTarget::kHost), "one_shot, two_shot, ring");
  EXPECT_EQ(algorithm_list(kAllReduce, PlanTarget::kGpu), "ll, ll_two_shot, bulk, multimem");
  EXPECT_EQ(algorithm_list(kReduceScatter, PlanTarget::kGpu), "ll, bulk, multimem");
  EXPECT_EQ(algorithm_list(kAllGather, PlanTarget::kGpu), "ll, bulk, copy_engine, multimem");
  EXPECT_EQ(algorithm_list(kBroadcast, PlanTarget::kGpu), "ll, bulk, copy_engine, multimem");
  EXPECT_EQ(algorithm_list(kReduce, PlanTarget::kGpu), "ll, bulk");
  EXPECT_EQ(algorithm_list(kAllToAll, PlanTarget::kGpu), "pipelined, copy_engine");
  EXPECT_EQ(algorithm_list(kBarrier, PlanTarget::kGpu), "ll");
  EXPECT_EQ(parse_algorithm("ll_two_shot", "x"), kLLTwoShot);
  EXPECT_EQ(parse_algorithm("copy_engine", "x"), kCopyEngine);
  EXPECT_EQ(parse_algorithm("multimem", "x"), kMultimem);
  for (int kind = 0; kind < kCollectiveKindCount; ++kind) {
    EXPECT_FALSE(has_algorithm(static_cast<CollectiveKind>(kind), kMultimem, PlanTarget::kHost));
  }
}

TEST(Plan, LimitsOfTheGpuTable) {
  const auto algorithm = [&](WireKind wire, CollectiveKind kind, int world, std::uint64_t bytes) {
    return PlanTable::built_in_gpu(wire).select(kind, world, bytes, kAuto).algorithm;
  };
  EXPECT_EQ(algorithm(WireKind::kLL, kAllReduce, 2, 256 << 10), kLL);
  EXPECT_EQ(algorithm(WireKind::kLL, kAllReduce, 2, (256 << 10) + 1), kLLTwoShot);
  EXPECT_EQ(algorithm(WireKind::kLL, kAllReduce, 4, 128 << 10), kLL);
  EXPECT_EQ(algorithm(WireKind::kLL, kAllReduce, 5, (32 << 10) + 1), kLLTwoShot);
  EXPECT_EQ(algorithm(WireKind::kLL, kAllReduce, 8, (512 << 10) + 1), kBulk);
  EXPECT_EQ(algorithm(WireKind::kLine, kAllReduce, 2, 512 << 10), kLL);
  EXPECT_EQ(algorithm(WireKind::kLine, kAllReduce, 2, (512 << 10) + 1), kLLTwoShot);
  EXPECT_EQ(algorithm(WireKind::kLine, kAllReduce, 4, (128 << 10) + 1), kLLTwoShot);
  EXPECT_EQ(algorithm(WireKind::kLine, kAllReduce, 2, 14 << 20), kLLTwoShot);
  EXPECT_EQ(algorithm(WireKind::kLine, kAllReduce, 2, (14 << 20) + 1), kBulk);
  const std::pair<CollectiveKind, std::uint64_t> limits[] = {{kReduce, 14},   {kBroadcast, 8},
                                                             {kAllGather, 8}, {kGather, 10},
                                                             {kScatter, 16},  {kReduceScatter, 24}};
  for (const auto& [kind, mib] : limits) {
    EXPECT_EQ(algorithm(WireKind::kLine, kind, 2, mib << 20), kLL);
    EXPECT_EQ(algorithm(WireKind::kLine, kind, 2, (mib << 20) + 1), kBulk);
  }
  EXPECT_EQ(algorithm(WireKind::kLine, kReduceScatter, 3, 4 << 20), kLL);
  EXPECT_EQ(algorithm(WireKind::kLine, kReduceScatter, 3, (4 << 20) + 1), kBulk);
  EXPECT_EQ(algorithm(WireKind::kLine, kReduceScatter, 4, 14 << 20), kLL);
  EXPECT_EQ(algorithm(WireKind::kLine, kReduceScatter, 4, (14 << 20) + 1), kBulk);
  EXPECT_EQ(algorithm(WireKind::kLine, kAllToAll, 4, 1), kPipelined);
  EXPECT_EQ(PlanTable::built_in_gpu(WireKind::kLine).copy_engine_bytes(), std::uint64_t{64} << 20);
}

// What has no kernels that go straight on in larger calls.
TEST(Plan, SomeCallsCountTwiceOverLines) {
  CollectiveArgs args;
  args.kind = kReduce;
  args.dtype = Dtype::kBFloat16;
  args.count = 1000;
  const auto bytes = [&](WireKind wire, int ranks_of_gpu) {
    return device_plan_bytes(args, 4, wire, ranks_of_gpu);
  };
  EXPECT_EQ(bytes(WireKind::kLine, 1), 2000u);
  EXPECT_EQ(bytes(WireKind::kLine, 2), 2000u);
  EXPECT_EQ(bytes(WireKind::kLine, 3), 4000u) << "whose blocks do not all fit";
  EXPECT_EQ(bytes(WireKind::kLL, 3), 2000u);
  args.op = ReduceOp::kAvg;
  EXPECT_EQ(bytes(WireKind::kLine, 1), 2000u);
  args.op = ReduceOp::kMax;
  EXPECT_EQ(bytes(WireKind::kLine, 1), 4000u);
  EXPECT_EQ(bytes(WireKind::kLL, 1), 2000u);
  args.kind = kBroadcast;
  EXPECT_EQ(bytes(WireKind::kLine, 1), 2000u) << "combines nothing";
  args.kind = kAllToAll;
  EXPECT_EQ(bytes(WireKind::kLine, 3), PlanRow::kNoLimit);
}

// A line carries more of what it moves than LL's packets, so that it never stops being faster
// earlier.
TEST(Plan, LinesServeAllThatLLServes) {
  for (const PlanRow& row : PlanTable::built_in_gpu(WireKind::kLL).rows()) {
    if (row.algorithm != kLL && row.algorithm != kLLTwoShot) continue;
    for (const int world : {row.min_world, std::min(row.max_world, kMaxDeviceRanks)}) {
      const Plan plan =
          PlanTable::built_in_gpu(WireKind::kLine).select(row.kind, world, row.max_bytes, kAuto);
      EXPECT_TRUE(plan.algorithm == kLL || plan.algorithm == kLLTwoShot)
          << collective_name(row.kind) << " of " << world;
    }
  }
}

TEST(Plan, CopyEnginesAreNoRow) {
  std::vector<PlanRow> rows = PlanTable::built_in_gpu(WireKind::kLL).rows();
  for (PlanRow& row : rows) {
    if (row.kind == kAllGather && row.max_bytes == kAll) row.algorithm = kCopyEngine;
  }
  expect_error(error_of([&] { PlanTable(PlanTarget::kGpu, rows); }), ErrorCode::kInvalidArgument,
               {"all_gather", "copy_engine_bytes"});
}

// Named, and never chosen by itself: it has not been run on hardware.
TEST(Plan, MultimemIsARowOfATuningFileAlone) {
  std::vector<PlanRow> rows = PlanTable::built_in_gpu(WireKind::kLL).rows();
  for (const PlanRow& row : rows) EXPECT_NE(row.algorithm, kMultimem);
  for (PlanRow& row : rows) {
    if (row.kind == kAllGather && row.max_bytes == kAll) row.algorithm = kMultimem;
  }
  const PlanTable table(PlanTarget::kGpu, rows);
  EXPECT_EQ(table.select(kAllGather, 4, 1 << 20, kAuto).algorithm, kMultimem);
  EXPECT_EQ(table.select(kAllGather, 4, 1 << 10, kAuto).algorithm, kLL);
  EXPECT_EQ(PlanTable::built_in_gpu(WireKind::kLL).select(kAllReduce, 4, 1 << 20, kMultimem),
            (Plan{kMultimem, 0, 16}));
  for (PlanRow& row : rows) {
    if (row.kind == kScatter) row.algorithm = kMultimem;
  }
  expect_error(error_of([&] { PlanTable(PlanTarget::kGpu, rows); }), ErrorCode::kInvalidArgument,
               {"scatter", "multimem does not carry out", "it has ll, bulk"});
}

TEST(PlanTables, ComeBackFromJson) {
  const PlanTables built_in;
  EXPECT_EQ(PlanTables::from_json(built_in.to_json(), "test"), built_in);

  std::vector<PlanRow> host = built_in.host.rows();
  host.front().max_bytes = 12'345;
  std::vector<PlanRow> gpu = built_in.gpu.rows();
  gpu.front().channels = 7;
  const PlanTables other{.host = PlanTable(PlanTarget::kHost, host),
                         .gpu = PlanTable(PlanTarget::kGpu, gpu, 4242),
                         .gpu_line = PlanTable(PlanTarget::kGpu, built_in.gpu_line.rows(), 4242)};
  const PlanTables back = PlanTables::from_json(other.to_json(), "test");
  EXPECT_EQ(back, other);
  EXPECT_NE(back, built_in);
  EXPECT_EQ(back.gpu.copy_engine_bytes(), 4242u);
}

TEST(PlanTables, AFileMayNameOneTargetAlone) {
  const std::string row =
      R"("collective": "barrier", "min_world": 2, "max_world": 128, "max_bytes": null)";
  const PlanTables host = PlanTables::from_json(
      R"({"rows": [{)" + row + R"(, "algorithm": "one_shot", "chunk_bytes": 16384}]})", "test");
  EXPECT_EQ(host.host.select(kBarrier, 2, 0, kAuto).chunk_bytes, 16384u);
  EXPECT_EQ(host.host.select(kAllReduce, 2, 0, kAuto),
            PlanTable::built_in().select(kAllReduce, 2, 0, kAuto));
  EXPECT_EQ(host.gpu, PlanTable::built_in_gpu(WireKind::kLL));

  const PlanTables gpu = PlanTables::from_json(R"({"gpu_rows": [{)" + row +
                                                   R"(, "algorithm": "ll", "channels": 3}],
          "copy_engine_bytes": 99})",
                                               "test");
  EXPECT_EQ(gpu.host, PlanTable::built_in());
  EXPECT_EQ(gpu.gpu.select(kBarrier, 2, 0, kAuto), (Plan{kLL, 0, 3}));
  EXPECT_EQ(gpu.gpu.copy_engine_bytes(), 99u);
  EXPECT_EQ(gpu.gpu_line.select(kBarrier, 2, 0, kAuto), (Plan{kLL, 0, 3}));
  EXPECT_EQ(gpu.gpu_line.copy_engine_bytes(), 99u);
}

TEST(PlanTables, RowsForLinesPrecedeThoseForAllGpus) {
  const auto row = [](const std::string& key, int channels) {
    return "\"" + key +
           R"(": [{"collective": "barrier", "min_world": 2, "max_world": 128, "max_bytes": null,
                 "algorithm": "ll", "channels": )" +
           std::to_string(channels) + "}]";
  };
  const PlanTables tables = PlanTables::from_json(
      "{" + row("gpu_line_rows", 5) + ", " + row("gpu_rows", 3) + "}", "test");
  EXPECT_EQ(tables.gpu_of(WireKind::kLL).select(kBarrier, 2, 0, kAuto).channels, 3);
  EXPECT_EQ(tables.gpu_of(WireKind::kLine).select(kBarrier, 2, 0, kAuto).channels, 5);
}

TEST(PlanTables, RefusesWhatIsNoTable) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"not json", "parse"},
      {"{}", "rows"},
      {"[]", "object"},
      {R"({"rows": [], "row": []})", "unknown key 'row'"},
      {R"({"gpu_rows": [{"collective": "barrier"}]})", "max_bytes"},
      {R"({"rows": [{"collective": "barrier", "min_world": 2, "max_world": 128,
          "max_bytes": null, "algorithm": "ll", "chunk_bytes": 65536}]})",
       "ll does not carry out"},
      {R"({"rows": [{"collective": "barrier", "min_world": 2, "max_world": 128,
          "max_bytes": null, "algorithm": "one_shot"}]})",
       "chunk_bytes must be a multiple"},
      {R"({"gpu_rows": [{"collective": "barrier", "min_world": 2, "max_world": 128,
          "max_bytes": null, "algorithm": "ll"}]})",
       "channels must be in"},
      {R"({"gpu_rows": [{"collective": "barrier", "min_world": 2, "max_world": 128,
          "max_bytes": null, "algorithm": "ll", "channels": 4, "chunk_bytes": 65536}]})",
       "chunk_bytes are for rows of the host"},
      {R"({"copy_engine_bytes": "many"})", "number"},
  };
  for (const auto& [text, word] : cases) {
    expect_error(error_of([&, text = text] { PlanTables::from_json(text, "the file"); }),
                 ErrorCode::kInvalidArgument, {"the file", word});
  }
}

}  // namespace
}  // namespace symm
