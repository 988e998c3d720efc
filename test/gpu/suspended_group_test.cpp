// Groups on a GPU that are suspended and resumed: the memory is free meanwhile, and afterwards
// calls, messages that were under way and graphs go on as if nothing had happened.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "test/gpu/gpu_call.hpp"

namespace symm::test {
namespace {

std::size_t free_bytes() {
  std::size_t free = 0;
  std::size_t total = 0;
  SYMM_GPU_CHECK(gpuMemGetInfo(&free, &total));
  return free;
}

void suspend_and_resume(GpuRank& rank) {
  rank.meet();
  rank.communicator.suspend();
  rank.communicator.resume();
}

class SuspendedGpuTest : public GpuRanksTest {};
// Counts the free memory of the whole GPU.
class SuspendedGpuAlone : public GpuRanksTest {};

TEST_F(SuspendedGpuTest, CallsOfEverySizeGoOn) {
  run_group(3, [](GpuRank& rank) {
    for (int time = 0; time < 3; ++time) {
      for (const auto kind : {CollectiveKind::kAllReduce, CollectiveKind::kAllGather,
                              CollectiveKind::kAllToAll, CollectiveKind::kBroadcast}) {
        for (const std::size_t count : {5u, 1003u, 300'001u, 1'000'003u}) {
          check_call(rank, {.kind = kind, .count = count});
        }
      }
      suspend_and_resume(rank);
    }
    check_call(rank, {.count = 1000});
    rank.meet();
  });
}

TEST_F(SuspendedGpuAlone, TheMemoryIsFreeMeanwhile) {
  run_group(2, [](GpuRank& rank) {
    check_call(rank, {.count = 1000});
    rank.meet();
    const std::size_t before = free_bytes();
    const std::size_t bytes = rank.engine().segment_bytes();
    rank.meet();
    rank.communicator.suspend();
    EXPECT_EQ(rank.communicator.memory_use().device_bytes, 0u);
    EXPECT_GE(free_bytes(), before + 2 * bytes);
    rank.meet();
    rank.communicator.resume();
    rank.meet();
    EXPECT_LE(free_bytes(), before);
    check_call(rank, {.count = 1000});
    rank.meet();
  });
}

TEST_F(SuspendedGpuTest, AMessageThatWasSentIsReceivedAfterwards) {
  run_group(2, [](GpuRank& rank) {
    check_call(rank, {.count = 1000});
    for (const std::uint64_t bytes : {std::uint64_t{100}, std::uint64_t{200'000}}) {
      const int peer = 1 - rank.number();
      const auto count = static_cast<std::size_t>(bytes);
      rank.write(rank.input(), std::vector<std::byte>(count, std::byte(10 + rank.number())));
      const TransferOp send{rank.input(), bytes, 4, peer, true};
      rank.engine().transfer({&send, 1}, rank.to());
      suspend_and_resume(rank);
      const TransferOp receive{rank.output(), bytes, 4, peer, false};
      rank.engine().transfer({&receive, 1}, rank.to());
      rank.finish();
      EXPECT_EQ(rank.read(rank.output(), count),
                std::vector<std::byte>(count, std::byte(10 + peer)));
    }
    rank.meet();
  });
}

TEST_F(SuspendedGpuTest, AGraphFromBeforeIsReplayedAfterwards) {
  run_group(2, [](GpuRank& rank) {
    constexpr std::size_t kCount = 200'003;
    CollectiveArgs sum;
    sum.kind = CollectiveKind::kAllReduce;
    sum.dtype = Dtype::kInt32;
    sum.count = kCount;
    sum.input = rank.input();
    sum.output = rank.output();
    check_call(rank, {.count = 77});
    gpuGraph_t graph = nullptr;
    gpuGraphExec_t executable = nullptr;
    SYMM_GPU_CHECK(gpuStreamBeginCapture(rank.stream(), gpuStreamCaptureModeThreadLocal));
    rank.launch(sum);
    SYMM_GPU_CHECK(gpuStreamEndCapture(rank.stream(), &graph));
    SYMM_GPU_CHECK(gpuGraphInstantiate(&executable, graph));
    for (std::int32_t replay = 0; replay < 6; ++replay) {
      const std::vector<std::int32_t> mine(kCount, 100 * replay + rank.number());
      const auto bytes = std::as_bytes(std::span(mine));
      rank.write(rank.input(), {bytes.begin(), bytes.end()});
      rank.meet();
      SYMM_GPU_CHECK(gpuGraphLaunch(executable, rank.stream()));
      rank.finish();
      const std::vector<std::int32_t> expected(kCount, 200 * replay + 1);
      const auto right = std::as_bytes(std::span(expected));
      EXPECT_EQ(rank.read(rank.output(), right.size()) ==
                    std::vector<std::byte>(right.begin(), right.end()),
                true)
          << "replay " << replay;
      check_call(rank, {.count = 77});
      suspend_and_resume(rank);
    }
    SYMM_GPU_CHECK(gpuGraphExecDestroy(executable));
    SYMM_GPU_CHECK(gpuGraphDestroy(graph));
    rank.meet();
  });
}

}  // namespace
}  // namespace symm::test
