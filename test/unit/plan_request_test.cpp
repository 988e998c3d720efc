// Plans that a call asks for itself, and what peers touch by each algorithm.
#include "kernels/plan/plan_request.hpp"

#include <gtest/gtest.h>

#include "kernels/plan/placement.hpp"
#include "kernels/plan/plan.hpp"
#include "test/support/expect_error.hpp"

namespace symm {
namespace {

using enum Algorithm;
using enum CollectiveKind;
using test::error_of;
using test::expect_error;

constexpr std::size_t kLargest = 1 << 20;

void expect_refusal(CollectiveKind kind, const PlanRequest& request, PlanTarget target,
                    const std::vector<std::string>& parts) {
  expect_error(error_of([&] { check_request(kind, request, target, kLargest); }),
               ErrorCode::kInvalidArgument, parts);
}

TEST(PlanRequest, AnEmptyOneLeavesEverythingToTheTable) {
  EXPECT_TRUE(PlanRequest{}.empty());
  for (const PlanTable* table : {&PlanTable::built_in(), &PlanTable::built_in_gpu(WireKind::kLL)}) {
    for (const std::uint64_t bytes : {0u, 70'000u, 900'000u}) {
      EXPECT_EQ(table->select(kAllReduce, 4, bytes, kAuto, {}),
                table->select(kAllReduce, 4, bytes, kAuto));
      EXPECT_EQ(table->select(kAllReduce, 4, bytes, kRing, {}),
                table->select(kAllReduce, 4, bytes, kRing));
    }
  }
}

TEST(PlanRequest, ComesBeforeTheTableAndBeforeWhatIsForced) {
  const PlanTable& host = PlanTable::built_in();
  EXPECT_EQ(host.select(kAllReduce, 4, 8, kTwoShot, {.algorithm = kRing}).algorithm, kRing);
  EXPECT_EQ(host.select(kAllReduce, 4, 8, kTwoShot, {.chunk_bytes = 16'384}),
            (Plan{kTwoShot, 16'384, 0}));
  const PlanTable& gpu = PlanTable::built_in_gpu(WireKind::kLL);
  EXPECT_EQ(gpu.select(kAllReduce, 4, 8, kLL, {.algorithm = kBulk, .channels = 3}),
            (Plan{kBulk, 0, 3}));
  EXPECT_EQ(gpu.select(kAllGather, 4, 8, kBulk, {.channels = 5}), (Plan{kBulk, 0, 5}));
}

TEST(PlanRequest, AcceptsExactlyTheAlgorithmsThatACollectiveHas) {
  for (const PlanTarget target : {PlanTarget::kHost, PlanTarget::kGpu}) {
    for (int k = 0; k < kCollectiveKindCount; ++k) {
      const auto kind = static_cast<CollectiveKind>(k);
      for (int a = 1; a < kAlgorithmCount; ++a) {
        const PlanRequest request{.algorithm = static_cast<Algorithm>(a)};
        if (has_algorithm(kind, request.algorithm, target)) {
          EXPECT_NO_THROW(check_request(kind, request, target, kLargest));
        } else {
          expect_refusal(kind, request, target,
                         {std::string(collective_name(kind)), "config.algorithm", "auto",
                          algorithm_list(kind, target),
                          "got " + std::string(algorithm_name(request.algorithm)),
                          target == PlanTarget::kHost ? "on the host" : "on a GPU"});
        }
      }
    }
  }
}

TEST(PlanRequest, RefusesPartsThatAnAlgorithmHasNot) {
  expect_refusal(kAllReduce, {.channels = 4}, PlanTarget::kHost, {"config.channels", "got 4"});
  expect_refusal(kAllGather, {.algorithm = kCopyEngine, .channels = 4}, PlanTarget::kGpu,
                 {"copy_engine", "has none"});
  for (const Algorithm algorithm : {kAuto, kLL, kBulk, kMultimem}) {
    expect_refusal(kAllReduce, {.algorithm = algorithm, .chunk_bytes = 65'536}, PlanTarget::kGpu,
                   {"config.chunk_bytes", "none on a GPU", "got 65536"});
  }
  expect_refusal(kAllToAll, {.channels = 4}, PlanTarget::kGpu, {"config.channels", "all_to_all"});
  EXPECT_NO_THROW(
      check_request(kAllReduce, {.algorithm = kLL, .channels = 64}, PlanTarget::kGpu, kLargest));
}

TEST(PlanRequest, RefusesValuesOutOfRange) {
  for (const int channels : {-1, 65}) {
    expect_refusal(kAllReduce, {.channels = channels}, PlanTarget::kGpu,
                   {"config.channels", "1 to 64", "got " + std::to_string(channels)});
  }
  for (const std::size_t bytes : {std::size_t{16'256}, std::size_t{16'385}, kLargest + 128}) {
    expect_refusal(kAllReduce, {.chunk_bytes = bytes}, PlanTarget::kHost,
                   {"config.chunk_bytes", "128", "16384", std::to_string(kLargest),
                    "got " + std::to_string(bytes)});
  }
  EXPECT_NO_THROW(
      check_request(kAllReduce, {.chunk_bytes = kLargest}, PlanTarget::kHost, kLargest));
}

TEST(Placement, OnlyCopyEnginesAndMulticastWriteAndOnlyInputsAreRead) {
  using enum RemoteAccess;
  using enum PlanTarget;
  EXPECT_EQ(remote_access(kAllReduce, kOneShot, kHost), kReadsInputApart);
  EXPECT_EQ(remote_access(kAllReduce, kTwoShot, kHost), kReadsInputInPlace);
  EXPECT_EQ(remote_access(kAllReduce, kRing, kHost), kNone);
  EXPECT_EQ(remote_access(kReduce, kTwoShot, kHost), kReadsInput);
  EXPECT_EQ(remote_access(kBroadcast, kPipelined, kHost), kReadsInput);
  EXPECT_EQ(remote_access(kAllToAll, kOneShot, kHost), kReadsInput);
  EXPECT_EQ(remote_access(kAllToAll, kPipelined, kHost), kReadsInput);
  EXPECT_EQ(remote_access(kAllToAll, kPipelined, kGpu), kNone);
  EXPECT_EQ(remote_access(kAllReduce, kLLTwoShot, kGpu), kNone);
  EXPECT_EQ(remote_access(kAllGather, kBulk, kGpu), kNone);
  EXPECT_EQ(remote_access(kBarrier, kOneShot, kHost), kNone);
  for (const CollectiveKind kind : {kBroadcast, kAllGather, kAllToAll}) {
    EXPECT_EQ(remote_access(kind, kCopyEngine, kGpu), kWritesOutput);
  }
  EXPECT_EQ(remote_access(kAllReduce, kMultimem, kGpu), kNeedsBoth);
  EXPECT_EQ(remote_access(kReduceScatter, kMultimem, kGpu), kNeedsInput);
  EXPECT_EQ(remote_access(kAllGather, kMultimem, kGpu), kWritesOutput);
  EXPECT_EQ(remote_access(kBroadcast, kMultimem, kGpu), kWritesOutput);
}

}  // namespace
}  // namespace symm
