// Kernels that wait for a peer in vain: every stream ends, with an error that names the cause, and
// the GPU serves the next group.
#include <gtest/gtest.h>

#include "test/gpu/gpu_call.hpp"
#include "test/support/expect_error.hpp"

namespace symm::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

class DeviceFailuresTest : public GpuRanksTest {
 protected:
  // A group of two in which `body` goes wrong, then one that works.
  void run_and_recover(const std::function<void(GpuRank&)>& body) {
    run_group(2, body);
    run_group(2, [](GpuRank& rank) { check_call(rank, {.count = 1000}); });
  }

  static CollectiveArgs sum_args(GpuRank& rank, std::size_t count) {
    CollectiveArgs args;
    args.kind = CollectiveKind::kAllReduce;
    args.dtype = Dtype::kFloat32;
    args.count = count;
    args.input = args.output = rank.input();
    return args;
  }

  // Waits for the stream, which must end within `limit`, and returns the group's failure.
  static std::optional<Error> failure_after_stream(GpuRank& rank, milliseconds limit) {
    const auto start = steady_clock::now();
    SYMM_GPU_CHECK(gpuStreamSynchronize(rank.stream()));
    EXPECT_LE(steady_clock::now() - start, limit);
    return error_of([&] { rank.engine().check(); });
  }
};

class DeviceFailureSizesTest : public DeviceFailuresTest,
                               public testing::WithParamInterface<std::size_t> {};

TEST_P(DeviceFailureSizesTest, AKernelTimesOutAndNamesWhoIsMissing) {
  run_and_recover([](GpuRank& rank) {
    rank.launch(CollectiveArgs{});
    rank.finish();
    rank.meet();
    if (rank.number() == 0) {
      rank.launch(sum_args(rank, GetParam()), milliseconds(500));
      expect_error(
          failure_after_stream(rank, milliseconds(1500)), ErrorCode::kTimeout,
          {"all_reduce", "device seq 2", "Timed out after 0.500 s", "not arrived: rank 1"});
    }
    rank.meet();
    if (rank.number() == 1) {
      expect_error(error_of([&] {
                     const auto end = steady_clock::now() + milliseconds(5000);
                     while (steady_clock::now() < end) rank.engine().check();
                   }),
                   ErrorCode::kTimeout, {"rank 0 gave up"});
    }
    rank.meet();
  });
}

TEST_P(DeviceFailureSizesTest, AbortFreesTheStream) {
  run_and_recover([](GpuRank& rank) {
    rank.launch(CollectiveArgs{});
    rank.finish();
    rank.meet();
    if (rank.number() == 0) rank.launch(sum_args(rank, GetParam()));
    rank.meet();
    if (rank.number() == 1) rank.communicator.abort("enough");
    if (rank.number() == 0) {
      expect_error(failure_after_stream(rank, milliseconds(1000)), ErrorCode::kAborted,
                   {"aborted: enough", "rank 1"});
    }
    rank.meet();
  });
}

TEST_P(DeviceFailureSizesTest, APeerThatLeavesIsNamed) {
  run_and_recover([](GpuRank& rank) {
    rank.launch(CollectiveArgs{});
    rank.finish();
    rank.meet();
    if (rank.number() == 0) rank.launch(sum_args(rank, GetParam()));
    rank.meet();
    if (rank.number() == 1) rank.communicator.shutdown();
    if (rank.number() == 0) {
      expect_error(failure_after_stream(rank, milliseconds(1000)), ErrorCode::kPeerLeft,
                   {"all_reduce", "device seq 2", "rank 1"});
    }
    rank.meet();
  });
}

TEST_P(DeviceFailureSizesTest, DifferentCallsAreAMismatch) {
  run_and_recover([](GpuRank& rank) {
    rank.launch(CollectiveArgs{});
    rank.finish();
    const std::size_t count = GetParam() + static_cast<std::size_t>(rank.number());
    // Whoever comes second may learn of it while launching.
    const auto at_once = error_of([&] { rank.launch(sum_args(rank, count)); });
    const auto later = failure_after_stream(rank, milliseconds(1000));
    expect_error(at_once ? at_once : later, ErrorCode::kMismatch,
                 {"device seq 2", "count " + std::to_string(GetParam()),
                  "count " + std::to_string(GetParam() + 1)});
    rank.meet();
  });
}

// ll, ll_two_shot, bulk.
INSTANTIATE_TEST_SUITE_P(Sizes, DeviceFailureSizesTest,
                         testing::Values(std::size_t{16}, std::size_t{100'000},
                                         std::size_t{2'000'000}));

TEST_F(DeviceFailuresTest, UnequalCountsOfAllToAllNameBoth) {
  run_and_recover([](GpuRank& rank) {
    // Rank 0 sends 5 elements where rank 1 expects 3.
    const std::size_t to_peer = rank.number() == 0 ? 5 : 4;
    const std::size_t from_peer = rank.number() == 0 ? 4 : 3;
    std::vector<Part> in(2, Part{rank.input(), 1});
    std::vector<Part> out(2, Part{rank.output(), 1});
    const auto peer = static_cast<std::size_t>(1 - rank.number());
    in[peer] = {rank.input() + 64, to_peer};
    out[peer] = {rank.output() + 64, from_peer};
    CollectiveArgs args;
    args.kind = CollectiveKind::kAllToAll;
    args.dtype = Dtype::kInt32;
    args.input_parts = in;
    args.output_parts = out;
    rank.launch(args, milliseconds(3000));
    SYMM_GPU_CHECK(gpuStreamSynchronize(rank.stream()));
    rank.meet();
    if (rank.number() == 1) {
      expect_error(error_of([&] { rank.engine().check(); }), ErrorCode::kMismatch,
                   {"all_to_all", "rank 0", "20", "12"});
    }
    rank.meet();
  });
}

TEST_F(DeviceFailuresTest, AMessageThatNobodySendsTimesOut) {
  run_and_recover([](GpuRank& rank) {
    rank.engine();
    rank.meet();
    if (rank.number() == 0) {
      const TransferOp op{rank.output(), 4000, 7, 1, false};
      rank.engine().transfer({&op, 1}, rank.to(milliseconds(400)));
      expect_error(failure_after_stream(rank, milliseconds(1400)), ErrorCode::kTimeout,
                   {"recv from rank 1", "tag 7", "4000 bytes", "Timed out"});
    }
    rank.meet();
  });
}

// Destroyed without waiting: the stream ends, and so does the group.
TEST_F(DeviceFailuresTest, AGroupThatIsDestroyedFreesItsStream) {
  run_and_recover([](GpuRank& rank) {
    rank.launch(CollectiveArgs{});
    rank.finish();
    rank.meet();
    if (rank.number() == 0) {
      rank.launch(sum_args(rank, 16));
      rank.communicator.shutdown();
      SYMM_GPU_CHECK(gpuStreamSynchronize(rank.stream()));
    }
    rank.meet();
  });
}

}  // namespace
}  // namespace symm::test
