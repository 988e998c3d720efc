// The engine of a device over fake GPUs: ranks that cannot, that call something else, that leave,
// and kernels that give up. Every rank learns of it, and every stream is freed.
#include <gtest/gtest.h>

#include "backend/engine/group_engine.hpp"
#include "kernels/protocol/control_region.hpp"
#include "test/support/device_ranks.hpp"
#include "test/support/environment.hpp"
#include "test/support/expect_error.hpp"

namespace symm {
namespace {

using std::chrono::milliseconds;
using test::device_config;
using test::DeviceRank;
using test::error_of;
using test::expect_error;
using test::FakeGpu;
using test::ScopedVariable;
using test::sum_args;

class DeviceFaultsTest : public test::DeviceRanksTest {};

TEST_F(DeviceFaultsTest, OneRankWithoutPeerAccessIsEverybodysError) {
  gpus_[1].refuse_imports = true;
  run_group(3, [](DeviceRank& rank) {
    for (int attempt = 0; attempt < 2; ++attempt) {
      expect_error(error_of([&] { rank.launch(CollectiveArgs{}); }), ErrorCode::kUnsupported,
                   {"rank 1's cuda:1", "Fake GPU", "a1a1a1a1-", "rank 0's cuda:0", "a0a0a0a0-",
                    "no peer access"});
    }
    EXPECT_TRUE(rank.kernels().launches().empty());
    std::vector<float> data(4, 1.0f);
    rank.communicator.run(sum_args(data));
    EXPECT_EQ(data[3], 3.0f);
  });
}

TEST_F(DeviceFaultsTest, OneRankWithoutMemoryIsEverybodysError) {
  gpus_[2].refuse_allocation = true;
  run_group(3, [](DeviceRank& rank) {
    for (int attempt = 0; attempt < 2; ++attempt) {
      expect_error(error_of([&] { rank.launch(CollectiveArgs{}); }), ErrorCode::kSystem,
                   {"cuda:2", "out of fake memory"});
    }
    rank.communicator.run(CollectiveArgs{});
  });
}

TEST_F(DeviceFaultsTest, DifferentCallsNameBothSides) {
  for (int i = 0; i < 2; ++i) gpus_[i].hold_kernels = true;
  run_group(2, [](DeviceRank& rank) {
    std::vector<float> data(rank.number() == 0 ? 4 : 5);
    // Whoever posts last may learn of it at once, the other from its watching thread.
    error_of([&] { rank.launch(sum_args(data)); });
    expect_error(rank.failure(), ErrorCode::kMismatch,
                 {"device seq 1", "rank 0", "count 4", "rank 1", "count 5", ", ll)"});
    EXPECT_TRUE(rank.kernels().told_to_leave());
    rank.meet();
  });
}

// Their kernels have other blocks, so they must not meet unnoticed.
TEST_F(DeviceFaultsTest, RowsThatOneRankAloneNormsAreAnotherCall) {
  for (const std::size_t others : {0, 4}) {
    run_group(2, [others](DeviceRank& rank) {
      std::vector<float> data(16);
      std::vector<float> weight(8);
      std::vector<float> result(16);
      CollectiveArgs args = sum_args(data);
      args.norm = {.columns = rank.number() == 0 ? 8 : others,
                   .eps = 0.5,
                   .weight = weight.data(),
                   .result = result.data()};
      error_of([&] { rank.launch(args); });
      expect_error(rank.failure(), ErrorCode::kMismatch, {"device seq 1", "other rows to norm"});
      rank.meet();
    });
  }
}

TEST_F(DeviceFaultsTest, DifferentCallsThatBothEndedAreFoundAsWell) {
  run_group(2, [](DeviceRank& rank) {
    std::int32_t value = 7;
    CollectiveArgs args;
    args.kind = CollectiveKind::kBroadcast;
    args.dtype = Dtype::kInt32;
    args.count = 1;
    args.root = rank.number();
    args.input = args.output = &value;
    rank.launch(CollectiveArgs{});
    error_of([&] { rank.launch(args); });
    expect_error(rank.failure(), ErrorCode::kMismatch,
                 {"device seq 2", "broadcast", "root 0", "root 1"});
    expect_error(error_of([&] { rank.launch(args); }), ErrorCode::kMismatch, {"device seq 2"});
    rank.meet();
  });
}

// Without a watchdog: a rank that posts many calls looks itself, before its ring is full.
TEST_F(DeviceFaultsTest, ManyCallsInARowAreComparedByTheirRank) {
  const ScopedVariable no_watchdog("SYMM_WATCHDOG", "0");
  run_group(2, [](DeviceRank& rank) {
    std::vector<float> data(4 + static_cast<std::size_t>(rank.number()));
    rank.launch(CollectiveArgs{});
    rank.meet();
    rank.launch(sum_args(data));
    rank.meet();
    const auto many_calls = [&] {
      for (std::uint64_t i = 0; i < kDeviceCallRing / 2; ++i) rank.launch(CollectiveArgs{});
    };
    expect_error(error_of(many_calls), ErrorCode::kMismatch,
                 {"device seq 2", "count 4", "count 5"});
    rank.meet();
  });
}

TEST_F(DeviceFaultsTest, RecordsThatAreLappedAreNotCompared) {
  run_group(2, [](DeviceRank& rank) {
    std::vector<float> data(4);
    rank.launch(CollectiveArgs{});
    rank.meet();
    if (rank.number() == 0) {
      for (int i = 0; i < 3 * static_cast<int>(kDeviceCallRing); ++i) rank.launch(sum_args(data));
    }
    rank.meet();
    if (rank.number() == 1) {
      for (int i = 0; i < 3 * static_cast<int>(kDeviceCallRing); ++i) rank.launch(sum_args(data));
    }
    rank.meet();
    rank.launch(CollectiveArgs{});
    rank.engine().check();
    EXPECT_FALSE(rank.communicator.failure().has_value());
    rank.meet();
  });
}

TEST_F(DeviceFaultsTest, ATimeOutNamesWhoDidNotArrive) {
  run_group(3, [](DeviceRank& rank) {
    std::vector<float> data(4);
    rank.launch(CollectiveArgs{});
    rank.gpu.hold_kernels = true;
    if (rank.number() != 2) rank.launch(sum_args(data), milliseconds(1500));
    rank.meet();
    if (rank.number() == 0) {
      rank.kernels().give_up(DeviceFault::kTimeout, 2, 2);
      expect_error(rank.failure(), ErrorCode::kTimeout,
                   {"all_reduce(float32, SUM, count 4", "device seq 2", "Timed out after 1.500 s",
                    "arrived: rank 1", "not arrived: rank 2", "barrier device seq 1", "ended 1"});
      expect_error(error_of([&] { rank.engine().check(); }), ErrorCode::kTimeout, {"rank 2"});
    } else {
      expect_error(rank.failure(), ErrorCode::kTimeout, {"rank 0 gave up", "device seq 2"});
    }
    EXPECT_TRUE(rank.kernels().told_to_leave());
    rank.meet();
  });
}

// A barrier of the host where the others have a call on their devices.
TEST_F(DeviceFaultsTest, ATimeOutNamesWhatALateRankDoesOnTheHost) {
  run_group(2, [](DeviceRank& rank) {
    std::vector<float> data(4);
    rank.launch(CollectiveArgs{});
    rank.gpu.hold_kernels = true;
    if (rank.number() == 0) rank.launch(sum_args(data));
    rank.meet();
    if (rank.number() == 1) {
      expect_error(error_of([&] { rank.communicator.run(CollectiveArgs{}); }), ErrorCode::kTimeout,
                   {"rank 0 gave up"});
    } else {
      const DeviceTrace& trace = rank.engine().trace();
      while (trace.arrival_report(2).find("on the host") == std::string::npos) {
        std::this_thread::yield();
      }
      rank.kernels().give_up(DeviceFault::kTimeout, 1, 2);
      expect_error(rank.failure(), ErrorCode::kTimeout,
                   {"not arrived: rank 1", "in barrier seq 1 on the host"});
    }
    rank.meet();
  });
}

TEST_F(DeviceFaultsTest, ATimeOutOnTheHostNamesWhatALateRankDoesOnItsDevice) {
  run_group(2, [](DeviceRank& rank) {
    std::vector<float> data(4);
    rank.launch(CollectiveArgs{});
    rank.gpu.hold_kernels = true;
    if (rank.number() == 0) rank.launch(sum_args(data));
    rank.meet();
    if (rank.number() == 1) {
      expect_error(error_of([&] { rank.communicator.run(CollectiveArgs{}, milliseconds(50)); }),
                   ErrorCode::kTimeout,
                   {"barrier seq 1", "not arrived: rank 0", "in all_reduce(float32, SUM, count 4",
                    "device seq 2 on its device", "no call yet"});
    }
    rank.meet();
  });
}

TEST_F(DeviceFaultsTest, EveryReportOfAKernelBecomesAnError) {
  struct Case {
    DeviceFault fault;
    ErrorCode code;
    std::vector<std::string> words;
    std::uint64_t theirs = 40;
  };
  const std::vector<Case> cases = {
      {DeviceFault::kCountMismatch,
       ErrorCode::kMismatch,
       {"all_to_all", "device seq 1", "rank 1 sends 40 bytes to rank 0", "expects 12"}},
      {DeviceFault::kAsymmetricUse,
       ErrorCode::kMismatch,
       {"rank 1", "at different offsets", "symmetric registration"}},
      {DeviceFault::kAsymmetricUse,
       ErrorCode::kMismatch,
       {"rank 1", "of different segments", "symmetric registration"},
       std::uint64_t{2} << kLocationShift},
      {DeviceFault::kAborted, ErrorCode::kAborted, {"told to leave"}},
  };
  for (const Case& one : cases) {
    gpus_[0].hold_kernels = true;
    run_group(2, [&](DeviceRank& rank) {
      std::vector<float> data(4);
      const std::vector<Part> parts = {{data.data(), 2}, {data.data() + 2, 2}};
      CollectiveArgs args;
      args.kind = CollectiveKind::kAllToAll;
      args.dtype = Dtype::kFloat32;
      args.input_parts = args.output_parts = parts;
      rank.launch(args);
      rank.meet();  // a rank that comes after the report has its launch refused
      if (rank.number() == 0) {
        rank.kernels().give_up(one.fault, 1, 1, one.theirs, 12);
        expect_error(error_of([&] { rank.engine().check(); }), one.code, one.words);
      }
      rank.meet();
    });
  }
}

// The stream of a kernel that gave up goes on, so a program may make its next call before the
// watching thread has looked.
TEST_F(DeviceFaultsTest, TheNextCallAfterAKernelGaveUpIsNotLaunched) {
  gpus_[0].hold_kernels = true;
  run_group(2, [](DeviceRank& rank) {
    rank.launch(CollectiveArgs{});
    rank.meet();
    if (rank.number() == 0) {
      const std::size_t before = rank.kernels().launches().size();
      DeviceGroup& engine = rank.engine();  // refused once the watching thread has looked
      rank.kernels().give_up(DeviceFault::kTimeout, 1, 1);
      EXPECT_TRUE(engine.gave_up());
      expect_error(error_of([&] { rank.launch(CollectiveArgs{}); }), ErrorCode::kTimeout,
                   {"device seq 1", "Timed out", "rank 1"});
      EXPECT_EQ(rank.kernels().launches().size(), before);
    }
    rank.meet();
  });
}

TEST_F(DeviceFaultsTest, APeerThatLeavesDuringACallIsNamed) {
  for (int i = 0; i < 3; ++i) gpus_[i].hold_kernels = true;
  run_group(3, [](DeviceRank& rank) {
    std::vector<float> data(4);
    rank.launch(sum_args(data));
    rank.meet();
    if (rank.number() == 1) {
      rank.communicator.shutdown();
      EXPECT_TRUE(rank.kernels().told_to_leave());
    } else {
      expect_error(rank.failure(), ErrorCode::kPeerLeft, {"all_reduce", "device seq 1", "rank 1"});
      EXPECT_TRUE(rank.kernels().told_to_leave());
    }
    rank.meet();
  });
}

TEST_F(DeviceFaultsTest, APeerThatLeavesAfterItsCallsIsNoFailure) {
  gpus_[0].hold_kernels = true;
  run_group(2, [](DeviceRank& rank) {
    std::vector<float> data(4);
    rank.launch(sum_args(data));
    rank.meet();
    if (rank.number() == 1) rank.communicator.shutdown();
    rank.meet();
    if (rank.number() == 0) {
      // Several looks of the watching thread: time is what is tested here.
      const Deadline deadline(milliseconds(100));
      while (!deadline.passed()) std::this_thread::yield();
      EXPECT_FALSE(rank.communicator.failure().has_value());
      rank.launch(sum_args(data));
      expect_error(rank.failure(), ErrorCode::kPeerLeft, {"device seq 2", "rank 1"});
    }
    rank.meet();
  });
}

TEST_F(DeviceFaultsTest, APeerThatLeavesDuringAMessageIsNamed) {
  gpus_[0].hold_kernels = true;
  run_group(2, [](DeviceRank& rank) {
    std::vector<std::byte> data(4000);
    const bool receives = rank.number() == 0;
    const TransferOp op{data.data(), data.size(), 7, 1 - rank.number(), !receives};
    if (receives) rank.engine().transfer({&op, 1}, {FakeGpu::plain_stream()});
    if (!receives) rank.engine();
    rank.meet();
    if (!receives) rank.communicator.shutdown();
    if (receives) {
      const auto failure = rank.failure();
      expect_error(failure, ErrorCode::kPeerLeft,
                   {"recv from rank 1", "message 1", "tag 7", "4000 bytes"});
      // The peer has made its part of every collective; of the message that would say nothing.
      EXPECT_EQ(std::string(failure->what()).find("arrived"), std::string::npos) << failure->what();
    }
    rank.meet();
  });
}

TEST_F(DeviceFaultsTest, ARankThatNeverComesIsNamed) {
  const auto errors = errors_in_group(2, [](DeviceRank& rank) {
    if (rank.number() == 0) {
      rank.communicator.run(CollectiveArgs{});
      rank.launch(CollectiveArgs{}, milliseconds(200));
      return;
    }
    rank.communicator.run(CollectiveArgs{});
    const auto failure = error_of([&] { rank.communicator.run(CollectiveArgs{}); });
    if (failure) throw Error(*failure);
  });
  expect_error(errors[0], ErrorCode::kTimeout,
               {"barrier", "first use of a device by rank 1", "Timed out"});
  expect_error(errors[1], ErrorCode::kTimeout, {"rank 0 gave up"});
}

TEST_F(DeviceFaultsTest, AbortFreesTheStreamsOfAllRanks) {
  for (int i = 0; i < 3; ++i) gpus_[i].hold_kernels = true;
  run_group(3, [](DeviceRank& rank) {
    rank.launch(CollectiveArgs{});
    rank.meet();
    if (rank.number() == 2) rank.communicator.abort("enough");
    expect_error(rank.failure(), ErrorCode::kAborted, {"aborted: enough", "rank 2"});
    EXPECT_TRUE(rank.kernels().told_to_leave());
    expect_error(error_of([&] { rank.launch(CollectiveArgs{}); }), ErrorCode::kAborted, {"enough"});
    rank.meet();
  });
}

TEST_F(DeviceFaultsTest, ACallThatHasNotBegunIsNamedAsWell) {
  gpus_[0].queue_kernels = true;
  gpus_[1].hold_kernels = true;
  run_group(2, [](DeviceRank& rank) {
    std::vector<float> data(4);
    rank.launch(sum_args(data));
    rank.meet();
    if (rank.number() == 1) {
      rank.communicator.abort("enough");
    } else {
      expect_error(rank.failure(), ErrorCode::kAborted,
                   {"rank 0: all_reduce", "device seq 1", "rank 1 gave up"});
    }
    rank.meet();
  });
}

TEST_F(DeviceFaultsTest, ALaunchThatIsRefusedFailsTheGroup) {
  run_group(2, [](DeviceRank& rank) {
    rank.launch(CollectiveArgs{});
    rank.meet();
    if (rank.number() == 0) {
      rank.gpu.refuse_launches = true;
      expect_error(error_of([&] { rank.launch(CollectiveArgs{}); }), ErrorCode::kSystem,
                   {"barrier device seq 2", "the launch was refused"});
    } else {
      expect_error(rank.failure(), ErrorCode::kSystem, {"rank 0 gave up"});
    }
    rank.meet();
  });
}

TEST_F(DeviceFaultsTest, MemoryIsFreedAfterTheDeviceHasEnded) {
  run_group(2, [](DeviceRank& rank) {
    rank.launch(CollectiveArgs{});
    EXPECT_EQ(rank.gpu.synchronizations, 0);
  });
  EXPECT_EQ(gpus_[0].synchronizations, 1);
  EXPECT_EQ(gpus_[1].synchronizations, 1);
}

// What destroy_process_group does.
TEST_F(DeviceFaultsTest, ShutdownLetsWhatIsUnderWayEnd) {
  test::MemoryStore store;
  gpus_[0].hold_kernels = true;
  test::run_ranks(2, [&](int rank) {
    const auto engine = GroupEngine::create(store, device_config(rank, 2, Algorithm::kAuto));
    DeviceGroup& device = engine->communicator().device_group({DeviceKind::kCuda, rank});
    device.launch(CollectiveArgs{}, {FakeGpu::plain_stream()});
    if (rank == 1) return;
    std::thread ends(
        [&] { store_release(&gpus_[0].kernels().page().completed, std::uint64_t{1}); });
    engine->shutdown();
    ends.join();
    EXPECT_EQ(load_acquire(&gpus_[0].kernels().page().completed), 1u);
  });
}

// What a device in error has not begun it never will.
TEST_F(DeviceFaultsTest, ShutdownDoesNotWaitForADeviceInError) {
  test::MemoryStore store;
  gpus_[0].queue_kernels = true;
  test::run_ranks(2, [&](int rank) {
    const auto engine = GroupEngine::create(store, device_config(rank, 2, Algorithm::kAuto));
    DeviceGroup& device = engine->communicator().device_group({DeviceKind::kCuda, rank});
    device.launch(CollectiveArgs{}, {FakeGpu::plain_stream()});
    gpus_[rank].in_error = rank == 0;
    engine->shutdown();
    EXPECT_EQ(load_acquire(&gpus_[rank].kernels().page().entered), rank == 0 ? 0u : 1u);
    gpus_[rank].in_error = false;  // its memory is kept otherwise
  });
}

}  // namespace
}  // namespace symm
