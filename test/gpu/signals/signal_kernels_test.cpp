// Signals between ranks that share GPU 0. Launches return at once, so one thread plays every rank;
// each has streams of its own.
#include "kernels/gpu/interface/signal_kernels.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "kernels/protocol/signal_pad.hpp"
#include "test/gpu/signals/signal_rig.hpp"
#include "test/support/expect_error.hpp"

namespace symm::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

class SignalKernelsTest : public GpuTest {};

std::vector<SignalSlot> zeros() { return std::vector<SignalSlot>(SignalRig::kPadSlots, 0); }

TEST_F(SignalKernelsTest, APutFillsTheSlotOfItsChannelAndRankAlone) {
  SignalRig rig(*runtime_, 3);
  rig.kernels(2).put_signal(rig.pads(), 0, rig.options(2, 4));
  rig.finish();
  std::vector<SignalSlot> expected = zeros();
  expected[4 * 3 + 2] = 1;
  EXPECT_EQ(rig.pad(0), expected);
  EXPECT_EQ(rig.pad(1), zeros());
  EXPECT_EQ(rig.pad(2), zeros());
  rig.kernels(0).wait_signal(rig.pads(), 2, rig.options(0, 4));
  rig.finish();
  rig.expect_at_rest();
}

TEST_F(SignalKernelsTest, ASecondPutWaitsUntilTheFirstIsTaken) {
  SignalRig rig(*runtime_, 2);
  rig.kernels(0).put_signal(rig.pads(), 1, rig.options(0, 1));
  rig.finish();
  rig.kernels(0).put_signal(rig.pads(), 1, rig.options(0, 1));
  EXPECT_TRUE(rig.stays_busy(0));
  rig.kernels(1).wait_signal(rig.pads(), 0, rig.options(1, 1));
  rig.finish();
  EXPECT_EQ(rig.pad(1)[1 * 2 + 0], 1U) << "the second signal";
  rig.kernels(1).wait_signal(rig.pads(), 0, rig.options(1, 1));
  rig.finish();
  rig.expect_at_rest();
}

TEST_F(SignalKernelsTest, ARankMaySignalItself) {
  SignalRig rig(*runtime_, 2);
  rig.kernels(1).put_signal(rig.pads(), 1, rig.options(1, 2));
  rig.kernels(1).wait_signal(rig.pads(), 1, rig.options(1, 2));
  rig.finish();
  rig.expect_at_rest();
}

TEST_F(SignalKernelsTest, AWaitReturnsWhatTheStreamDidBeforeThePut) {
  SignalRig rig(*runtime_, 3);
  for (int round = 1; round <= 50; ++round) {
    for (int rank = 0; rank < rig.world(); ++rank) {
      const int next = (rank + 1) % rig.world();
      const int previous = (rank + 2) % rig.world();
      // The reader is launched before its writer for two of three ranks.
      rig.fill(rank, 10 * round + rank);
      rig.kernels(rank).put_signal(rig.pads(), next, rig.options(rank, 0));
      rig.kernels(rank).wait_signal(rig.pads(), previous, rig.options(rank, 0));
      rig.copy_data(rank, previous);
      rig.kernels(rank).put_signal(rig.pads(), previous, rig.options(rank, 1));
      rig.kernels(rank).wait_signal(rig.pads(), next, rig.options(rank, 1));
    }
    rig.finish();
    for (int rank = 0; rank < rig.world(); ++rank) {
      const int previous = (rank + 2) % rig.world();
      ASSERT_EQ(rig.seen(rank, previous), SignalRig::filled(10 * round + previous)) << rank;
    }
  }
  rig.expect_at_rest();
}

class SignalBarrierTest : public SignalKernelsTest, public testing::WithParamInterface<int> {};

TEST_P(SignalBarrierTest, NobodyPassesBeforeTheLastHasCome) {
  SignalRig rig(*runtime_, GetParam());
  for (int last = 0; last < rig.world(); ++last) {
    for (int i = 1; i <= rig.world(); ++i) {
      const int rank = (last + i) % rig.world();
      if (rank == last && rig.world() > 1) {
        EXPECT_TRUE(rig.stays_busy((last + 1) % rig.world()));
      }
      rig.fill(rank, 10 * last + rank);
      rig.kernels(rank).barrier(rig.pads(), rig.options(rank, 7));
      for (int peer = 0; peer < rig.world(); ++peer) rig.copy_data(rank, peer);
      rig.kernels(rank).barrier(rig.pads(), rig.options(rank, 7));
    }
    rig.finish();
    for (int rank = 0; rank < rig.world(); ++rank) {
      for (int peer = 0; peer < rig.world(); ++peer) {
        ASSERT_EQ(rig.seen(rank, peer), SignalRig::filled(10 * last + peer))
            << "rank " << rank << " of rank " << peer;
      }
    }
    rig.expect_at_rest();
  }
}

TEST_P(SignalBarrierTest, ManyInARowEnd) {
  SignalRig rig(*runtime_, GetParam());
  for (int round = 0; round < 200; ++round) {
    for (int rank = 0; rank < rig.world(); ++rank) {
      rig.kernels(rank).barrier(rig.pads(), rig.options(rank, round % 3));
    }
  }
  rig.finish();
  rig.expect_at_rest();
}

INSTANTIATE_TEST_SUITE_P(Worlds, SignalBarrierTest, testing::Values(1, 2, 3, 8));

TEST_F(SignalKernelsTest, ChannelsOnTwoStreamsDoNotWaitForEachOther) {
  SignalRig rig(*runtime_, 2);
  rig.kernels(0).barrier(rig.pads(), rig.options(0, 1, SignalRig::kFirstStream));
  rig.kernels(0).barrier(rig.pads(), rig.options(0, 2, SignalRig::kSecondStream));
  rig.kernels(1).barrier(rig.pads(), rig.options(1, 2, SignalRig::kSecondStream));
  rig.finish(SignalRig::kSecondStream);
  EXPECT_TRUE(rig.stays_busy(0, SignalRig::kFirstStream));
  rig.kernels(1).barrier(rig.pads(), rig.options(1, 1, SignalRig::kFirstStream));
  rig.finish();
  rig.expect_at_rest();
}

// Every replay brings new words, so an old signal that let a rank pass would show.
TEST_F(SignalKernelsTest, ACaptureReplaysAHundredTimesWithNewData) {
  SignalRig rig(*runtime_, 4);
  std::vector<SignalGraph> graphs;
  for (int rank = 0; rank < rig.world(); ++rank) {
    graphs.emplace_back(rig.stream(rank), [&] {
      rig.upload(rank);
      rig.kernels(rank).barrier(rig.pads(), rig.options(rank, 0));
      for (int peer = 0; peer < rig.world(); ++peer) rig.copy_data(rank, peer);
      rig.kernels(rank).put_signal(rig.pads(), rank ^ 1, rig.options(rank, 5));
      rig.kernels(rank).wait_signal(rig.pads(), rank ^ 1, rig.options(rank, 5));
      rig.kernels(rank).barrier(rig.pads(), rig.options(rank, 1));
    });
  }
  rig.expect_at_rest();  // nothing ran yet
  for (int replay = 0; replay < 100; ++replay) {
    for (int rank = 0; rank < rig.world(); ++rank) rig.stage(rank, 10 * replay + rank);
    for (int i = 0; i < rig.world(); ++i) {
      const int rank = (i + replay) % rig.world();
      graphs[static_cast<std::size_t>(rank)].launch(rig.stream(rank));
    }
    rig.finish();
    for (int rank = 0; rank < rig.world(); ++rank) {
      for (int peer = 0; peer < rig.world(); ++peer) {
        ASSERT_EQ(rig.seen(rank, peer), SignalRig::filled(10 * replay + peer))
            << "replay " << replay << ", rank " << rank << " of rank " << peer;
      }
    }
  }
  rig.expect_at_rest();
}

class SignalFailuresTest : public SignalKernelsTest {
 protected:
  // The stream ends in time, the rank's failure is as told and stays, and the device still works.
  void expect_failure(SignalRig& rig, int rank, ErrorCode code,
                      const std::vector<std::string>& words) {
    const auto start = steady_clock::now();
    SYMM_GPU_CHECK(gpuStreamSynchronize(rig.stream(rank)));
    EXPECT_LT(steady_clock::now() - start, milliseconds(2000));
    expect_error(error_of([&] { rig.kernels(rank).check(); }), code, words);
    expect_error(error_of([&] { rig.kernels(rank).barrier(rig.pads(), rig.options(rank, 0)); }),
                 code, words);
    EXPECT_EQ(gpuGetLastError(), gpuSuccess);
  }

  // A group that is made afterwards on the same device works.
  void expect_working_device() {
    SignalRig rig(*runtime_, 2);
    for (int rank = 0; rank < 2; ++rank) {
      rig.kernels(rank).barrier(rig.pads(), rig.options(rank, 0));
    }
    rig.finish();
    rig.expect_at_rest();
  }
};

TEST_F(SignalFailuresTest, AWaitForNobodyTimesOut) {
  {
    SignalRig rig(*runtime_, 3);
    rig.kernels(0).wait_signal(rig.pads(), 2, rig.options(0, 3, milliseconds(200)));
    expect_failure(rig, 0, ErrorCode::kTimeout,
                   {"wait_signal on channel 3", "Timed out after 200 ms",
                    "rank 0 waited for rank 2", "did not come"});
    EXPECT_NO_THROW(rig.kernels(1).check());
    EXPECT_EQ(rig.pad(0), zeros());
  }
  expect_working_device();
}

TEST_F(SignalFailuresTest, APutToAFullSlotTimesOut) {
  {
    SignalRig rig(*runtime_, 2);
    rig.kernels(0).put_signal(rig.pads(), 1, rig.options(0, 6, milliseconds(300)));
    rig.kernels(0).put_signal(rig.pads(), 1, rig.options(0, 6, milliseconds(300)));
    expect_failure(rig, 0, ErrorCode::kTimeout,
                   {"put_signal on channel 6", "after 300 ms", "rank 0 waited for rank 1 to take"});
  }
  expect_working_device();
}

TEST_F(SignalFailuresTest, ABarrierNamesTheRankThatIsMissing) {
  {
    SignalRig rig(*runtime_, 3);
    for (const int rank : {0, 2}) {
      rig.kernels(rank).barrier(rig.pads(), rig.options(rank, 1, milliseconds(250)));
    }
    for (const int rank : {0, 2}) {
      expect_failure(rig, rank, ErrorCode::kTimeout,
                     {"barrier on channel 1", "after 250 ms", "waited for rank 1,"});
    }
  }
  expect_working_device();
}

// Whoever comes after the first rank has given up must not pass.
TEST_F(SignalFailuresTest, AGivenUpBarrierIsWithdrawn) {
  {
    SignalRig rig(*runtime_, 3);
    rig.kernels(0).barrier(rig.pads(), rig.options(0, 1, milliseconds(100)));
    expect_failure(rig, 0, ErrorCode::kTimeout, {"barrier on channel 1"});
    std::vector<SignalSlot> expected = zeros();
    expected[1 * 3 + 0] = kSignalWithdrawn;
    EXPECT_EQ(rig.pad(1), expected);
    EXPECT_EQ(rig.pad(2), expected);
    for (const int rank : {1, 2}) {
      rig.kernels(rank).barrier(rig.pads(), rig.options(rank, 1, milliseconds(20'000)));
    }
    for (const int rank : {1, 2}) {
      expect_failure(rig, rank, ErrorCode::kPeerLost,
                     {"barrier on channel 1", "has given up a barrier on this channel"});
    }
  }
  expect_working_device();
}

// A wait whose signal comes before the time is up is none of this.
TEST_F(SignalFailuresTest, ASignalInTimeIsNoFailure) {
  SignalRig rig(*runtime_, 2);
  rig.kernels(0).wait_signal(rig.pads(), 1, rig.options(0, 0, milliseconds(20'000)));
  EXPECT_TRUE(rig.stays_busy(0));
  rig.kernels(1).put_signal(rig.pads(), 0, rig.options(1, 0, milliseconds(20'000)));
  rig.finish();
  rig.expect_at_rest();
}

TEST_F(SignalFailuresTest, ReplaysAfterAFailureTouchNoPad) {
  {
    SignalRig rig(*runtime_, 2);
    SignalGraph graph(rig.stream(0), [&] {
      rig.kernels(0).put_signal(rig.pads(), 1, rig.options(0, 2));
      rig.kernels(0).barrier(rig.pads(), rig.options(0, 4));
    });
    rig.kernels(0).wait_signal(rig.pads(), 1, rig.options(0, 0, milliseconds(100)));
    expect_failure(rig, 0, ErrorCode::kTimeout, {"wait_signal"});
    graph.launch(rig.stream(0));
    expect_failure(rig, 0, ErrorCode::kTimeout, {"wait_signal"});
    EXPECT_EQ(rig.pad(0), zeros());
    EXPECT_EQ(rig.pad(1), zeros());
  }
  expect_working_device();
}

TEST_F(SignalFailuresTest, AbortEndsAWaitWithoutTimeOut) {
  {
    SignalRig rig(*runtime_, 3);
    rig.kernels(0).barrier(rig.pads(), rig.options(0, 0, milliseconds(0)));
    EXPECT_TRUE(rig.stays_busy(0));
    std::thread other([&] { rig.kernels(0).abort(Error(ErrorCode::kPeerLost, "rank 1 is gone")); });
    other.join();
    expect_failure(rig, 0, ErrorCode::kPeerLost, {"rank 1 is gone"});
    rig.kernels(0).abort(Error(ErrorCode::kAborted, "a later reason"));
    expect_failure(rig, 0, ErrorCode::kPeerLost, {"rank 1 is gone"});
    EXPECT_NO_THROW(rig.kernels(2).check());
  }
  expect_working_device();
}

// What it has signalled is taken, and ranks that are there are waited for.
TEST_F(SignalFailuresTest, OfALostRankTheSignalsThatCameCount) {
  SignalRig rig(*runtime_, 3);
  const Error gone(ErrorCode::kPeerLost, "rank 1 is gone");
  rig.kernels(1).put_signal(rig.pads(), 0, rig.options(1, 5));
  rig.finish();
  rig.kernels(0).wait_signal(rig.pads(), 2, rig.options(0, 3));
  rig.kernels(0).wait_signal(rig.pads(), 1, rig.options(0, 5));
  rig.kernels(0).lose(std::uint64_t{1} << 1, gone);
  EXPECT_TRUE(rig.stays_busy(0));
  rig.kernels(2).put_signal(rig.pads(), 0, rig.options(2, 3));
  SYMM_GPU_CHECK(gpuDeviceSynchronize());  // finish() would raise what is expected
  rig.expect_at_rest();
  expect_failure(rig, 0, ErrorCode::kPeerLost, {"rank 1 is gone"});
}

TEST_F(SignalFailuresTest, AWaitForALostRankEnds) {
  {
    SignalRig rig(*runtime_, 3);
    rig.kernels(0).barrier(rig.pads(), rig.options(0, 0, milliseconds(0)));
    rig.kernels(0).lose(std::uint64_t{1} << 2, Error(ErrorCode::kPeerLost, "rank 2 is gone"));
    expect_failure(rig, 0, ErrorCode::kPeerLost, {"rank 2 is gone"});
  }
  expect_working_device();
}

TEST_F(SignalFailuresTest, DestructionEndsWhatWaits) {
  {
    SignalRig rig(*runtime_, 2);
    rig.kernels(1).wait_signal(rig.pads(), 0, rig.options(1, 0, milliseconds(0)));
    EXPECT_TRUE(rig.stays_busy(1));
    rig.destroy_kernels(1);
    EXPECT_EQ(gpuStreamQuery(rig.stream(1)), gpuSuccess);
  }
  expect_working_device();
}

TEST_F(SignalFailuresTest, WrongArgumentsAreRefusedAndHarmNothing) {
  SignalRig rig(*runtime_, 3);
  SignalKernels& kernels = rig.kernels(0);
  const auto refused = [](const std::function<void()>& call,
                          const std::vector<std::string>& words) {
    expect_error(error_of(call), ErrorCode::kInvalidArgument, words);
  };
  const int channels = static_cast<int>(signal_channels(SignalRig::kPadBytes, 3));
  refused([&] { kernels.barrier(rig.pads(), rig.options(0, channels)); },
          {"barrier: channel", "got " + std::to_string(channels)});
  refused([&] { kernels.wait_signal(rig.pads(), 1, rig.options(0, -1)); },
          {"wait_signal: channel", "got -1"});
  refused([&] { kernels.put_signal(rig.pads(), 3, rig.options(0, 0)); },
          {"put_signal: rank", "below 3", "got 3"});
  refused([&] { kernels.wait_signal(rig.pads(), -1, rig.options(0, 0)); }, {"got -1"});
  SignalPads few = rig.pads();
  few.addresses = few.addresses.first(2);
  refused([&] { kernels.barrier(few, rig.options(0, 0)); }, {"3 ranks", "got 2"});
  refused([&] { kernels.barrier(rig.pads(), rig.options(0, 0, milliseconds(-1))); },
          {"time-out", "negative"});
  refused([&] { runtime_->make_signal_kernels({.rank = 0, .world_size = 65}); }, {"64", "got 65"});
  for (int rank = 0; rank < 3; ++rank) {
    rig.kernels(rank).barrier(rig.pads(), rig.options(rank, channels - 1));
  }
  rig.finish();
  rig.expect_at_rest();
}

}  // namespace
}  // namespace symm::test
