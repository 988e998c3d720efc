// Groups that are suspended and resumed: what is given back, what stays, and who is named.
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstring>
#include <thread>
#include <vector>

#include "test/support/device_ranks.hpp"
#include "test/support/expect_error.hpp"
#include "test/support/process_footprint.hpp"

namespace symm {
namespace {

using std::chrono::milliseconds;
using test::DeviceRank;
using test::error_of;
using test::expect_error;
using test::FakeGpu;
using test::sum_args;

class SuspendedGroupTest : public test::DeviceRanksTest {
 protected:
  static constexpr std::size_t kElements = 1'000'000;  // more than small slots hold

  static void expect_right_sum(DeviceRank& rank) {
    std::vector<float> data(kElements, static_cast<float>(1 + rank.number()));
    rank.communicator.run(sum_args(data));
    const int world = rank.communicator.world_size();
    EXPECT_EQ(data.back(), static_cast<float>(world * (world + 1) / 2));
  }
  // Of a GPU's memory.
  static std::vector<std::byte> contents(DeviceRank& rank) {
    const std::byte* const base = rank.kernels().peer(rank.number());
    return {base, base + rank.kernels().config().layout.total_bytes};
  }
};

TEST_F(SuspendedGroupTest, TheWorkspaceIsGivenBackAndHadAgain) {
  run_group(3, [](DeviceRank& rank) {
    Communicator& group = rank.communicator;
    for (int time = 0; time < 3; ++time) {
      expect_right_sum(rank);
      const Communicator::MemoryUse before = group.memory_use();
      EXPECT_FALSE(before.suspended);
      EXPECT_EQ(before.suspendable_bytes, group.config().workspace_bytes);
      rank.meet();
      const int mappings = test::memfd_mappings();
      rank.meet();
      group.suspend();
      rank.meet();
      EXPECT_EQ(test::memfd_mappings(), mappings - 9);
      const Communicator::MemoryUse meanwhile = group.memory_use();
      EXPECT_TRUE(meanwhile.suspended);
      EXPECT_EQ(meanwhile.suspendable_bytes, before.suspendable_bytes);
      EXPECT_EQ(meanwhile.host_bytes, before.host_bytes - before.suspendable_bytes);
      rank.meet();
      group.resume();
      rank.meet();
      EXPECT_EQ(test::memfd_mappings(), mappings);
      EXPECT_EQ(group.memory_use().host_bytes, before.host_bytes);
    }
    expect_right_sum(rank);
  });
}

TEST_F(SuspendedGroupTest, ItsCallsSayThatItIsSuspended) {
  run_group(2, [](DeviceRank& rank) {
    Communicator& group = rank.communicator;
    const auto expect_refused = [](const std::optional<Error>& error) {
      expect_error(error, ErrorCode::kAborted, {"group \"test\"", "is suspended", "resume()"});
    };
    expect_error(error_of([&] { group.resume(); }), ErrorCode::kAborted, {"is not suspended"});
    group.suspend();
    expect_refused(error_of([&] { expect_right_sum(rank); }));
    expect_refused(error_of([&] { group.suspend(); }));
    expect_refused(error_of([&] { rank.engine(); }));
    const auto memory = LocalSegment::allocate(host_runtime(), 4096);
    expect_refused(error_of([&] { group.check_segment(*memory); }));
    group.resume();
    expect_error(error_of([&] { group.resume(); }), ErrorCode::kAborted, {"is not suspended"});
    expect_right_sum(rank);
  });
}

// NOTE [Order of locks]: another thread suspends while this one is inside a rendezvous.
TEST_F(SuspendedGroupTest, ARendezvousAndSuspendAtOnceBothEnd) {
  run_group(2, [](DeviceRank& rank) {
    std::thread other;
    const auto begin_to_suspend = [&] {
      other = std::thread([&] { rank.communicator.suspend(); });
      std::this_thread::sleep_for(milliseconds(100));  // as far as it comes
    };
    const auto segment =
        test::join_segment(rank.communicator, LocalSegment::allocate(host_runtime(), 4096), false,
                           {.before_status = begin_to_suspend, .give_up = {}});
    other.join();
    EXPECT_TRUE(rank.communicator.is_suspended());
    rank.communicator.resume();
    expect_right_sum(rank);
  });
}

TEST_F(SuspendedGroupTest, ARankThatDoesNotComeIsNamedAndTheGroupGoesOn) {
  run_group(3, [](DeviceRank& rank) {
    Communicator& group = rank.communicator;
    if (rank.number() != 1) {
      const auto error = error_of([&] { group.suspend(milliseconds(200)); });
      ASSERT_TRUE(error);
      EXPECT_NE(std::string(error->what()).find("rank 1"), std::string::npos) << error->what();
      EXPECT_FALSE(group.is_suspended());
    }
    rank.meet();
    // The number of the meeting that was given up is behind it as well.
    if (rank.number() == 1) {
      EXPECT_TRUE(error_of([&] { group.suspend(milliseconds(200)); }));
    }
    rank.meet();
    expect_right_sum(rank);
    group.suspend();
    group.resume();
    expect_right_sum(rank);
  });
}

TEST_F(SuspendedGroupTest, ARankThatHasLeftMeanwhileIsNamed) {
  run_group(2, [](DeviceRank& rank) {
    Communicator& group = rank.communicator;
    group.suspend();
    rank.meet();
    if (rank.number() == 1) group.shutdown();
    rank.meet();
    if (rank.number() == 1) return;
    expect_error(error_of([&] { group.resume(); }), ErrorCode::kPeerLost, {"resume()", "rank 1"});
    EXPECT_TRUE(group.is_suspended());
  });
}

TEST_F(SuspendedGroupTest, OneThatSuspendsWhileAnotherResumesIsADifferentCall) {
  run_group(2, [](DeviceRank& rank) {
    Communicator& group = rank.communicator;
    group.suspend();
    rank.meet();
    // As if the other rank had not been there.
    const auto error = error_of([&] {
      if (rank.number() == 0) {
        group.resume();
      } else {
        group.local_group()->exchange_words(LocalGroup::Purpose::kSuspend, {}, 0,
                                            Deadline(test::kPatience));
      }
    });
    expect_error(error, ErrorCode::kMismatch, {"suspend()", "resume()", "rank 0", "rank 1"});
  });
}

TEST_F(SuspendedGroupTest, AGpusMemoryComesBackWithItsContentsAtItsAddresses) {
  run_group(3, [](DeviceRank& rank) {
    Communicator& group = rank.communicator;
    for (int time = 0; time < 2; ++time) {
      rank.launch(CollectiveArgs{});
      std::byte* const base = rank.kernels().peer(rank.number());
      std::memset(base + 4096, 0x10 * (time + 1) + rank.number(), 4096);
      const std::vector<std::byte> before = contents(rank);
      const Communicator::MemoryUse use = group.memory_use();
      EXPECT_EQ(use.suspendable_bytes, rank.engine().segment_bytes());
      rank.meet();
      const int mappings = test::memfd_mappings();
      const int synchronizations = rank.gpu.synchronizations;
      rank.meet();
      group.suspend();
      EXPECT_GT(rank.gpu.synchronizations, synchronizations);
      rank.meet();
      EXPECT_EQ(test::memfd_mappings(), mappings - 9);
      EXPECT_EQ(group.memory_use().device_bytes, 0u);
      EXPECT_EQ(group.memory_use().suspendable_bytes, use.suspendable_bytes);
      DeviceGroup* const engine = group.device_group_if_made();
      ASSERT_NE(engine, nullptr);
      expect_error(error_of([&] {
                     engine->launch(CollectiveArgs{}, {FakeGpu::plain_stream(), milliseconds(0)});
                   }),
                   ErrorCode::kAborted, {"is suspended"});
      rank.meet();
      group.resume();
      EXPECT_EQ(group.memory_use().device_bytes, use.device_bytes);
      EXPECT_EQ(contents(rank), before);
      for (int peer = 0; peer < 3; ++peer) {
        EXPECT_EQ(rank.kernels().peer(peer)[4096],
                  static_cast<std::byte>(0x10 * (time + 1) + peer));
      }
      rank.meet();
    }
    rank.launch(CollectiveArgs{});
    rank.engine().check();
  });
}

TEST_F(SuspendedGroupTest, AGpusMemoryStaysWhereNotEveryRankHasRunACollectiveThere) {
  run_group(2, [](DeviceRank& rank) {
    Communicator& group = rank.communicator;
    if (rank.number() == 0) rank.engine();
    const std::size_t bytes = group.memory_use().device_bytes;
    EXPECT_EQ(group.memory_use().suspendable_bytes, 0u);
    group.suspend();
    EXPECT_EQ(group.memory_use().device_bytes, bytes);
    group.resume();
    rank.launch(CollectiveArgs{});
    rank.engine().check();
    rank.meet();
  });
}

TEST_F(SuspendedGroupTest, AGpuWithoutRoomIsNamedAndTheGroupStaysSuspended) {
  run_group(3, [](DeviceRank& rank) {
    Communicator& group = rank.communicator;
    expect_right_sum(rank);
    rank.launch(CollectiveArgs{});
    const std::vector<std::byte> before = contents(rank);
    group.suspend();
    if (rank.number() == 1) rank.gpu.refuse_allocation = true;
    for (int time = 0; time < 2; ++time) {
      const auto error = error_of([&] { group.resume(); });
      expect_error(error, ErrorCode::kSystem, {"out of fake memory"});
      if (rank.number() != 1) expect_error(error, ErrorCode::kSystem, {"rank 1"});
      EXPECT_TRUE(group.is_suspended());
      EXPECT_EQ(group.memory_use().device_bytes, 0u);
    }
    rank.meet();
    rank.gpu.refuse_allocation = false;
    rank.meet();
    group.resume();
    EXPECT_EQ(contents(rank), before);
    rank.launch(CollectiveArgs{});
    expect_right_sum(rank);
    rank.engine().check();
    rank.meet();
  });
}

TEST_F(SuspendedGroupTest, AGroupOfOneHasAGpusMemoryToGiveBack) {
  run_group(1, [](DeviceRank& rank) {
    Communicator& group = rank.communicator;
    group.suspend();
    group.resume();
    rank.launch(CollectiveArgs{});
    const std::size_t bytes = group.memory_use().device_bytes;
    group.suspend();
    EXPECT_EQ(group.memory_use().device_bytes, 0u);
    group.resume();
    EXPECT_EQ(group.memory_use().device_bytes, bytes);
    rank.launch(CollectiveArgs{});
  });
}

TEST_F(SuspendedGroupTest, ItCanEndWithoutBeingResumed) {
  const int mappings = test::memfd_mappings();
  run_group(2, [](DeviceRank& rank) {
    expect_right_sum(rank);
    rank.launch(CollectiveArgs{});
    rank.communicator.suspend();
  });
  EXPECT_EQ(test::memfd_mappings(), mappings);
}

}  // namespace
}  // namespace symm
