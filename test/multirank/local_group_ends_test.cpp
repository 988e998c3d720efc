// The ranks of a group on one host: how failures, leaving, the watchdog and tries that failed
// before end what others wait for.
#include "symm_mem/group/local_group.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "kernels/core/error.hpp"
#include "kernels/protocol/group_page.hpp"
#include "test/support/environment.hpp"
#include "test/support/expect_error.hpp"
#include "test/support/file_store.hpp"
#include "test/support/forked_child.hpp"
#include "test/support/local_groups.hpp"
#include "test/support/memory_store.hpp"
#include "test/support/mesh_ranks.hpp"
#include "test/support/rank_threads.hpp"
#include "test/support/temporary_directory.hpp"

namespace symm {
namespace {

using namespace std::chrono_literals;
using test::config_of;
using test::connect_groups;
using test::errors_of_ranks;
using test::exchange;
using test::expect_error;
using test::Groups;
using test::kTimeout;
using test::MemoryStore;
using test::message_of;
using test::of;
using test::run_ranks;
using Clock = std::chrono::steady_clock;
using Purpose = LocalGroup::Purpose;

TEST(LocalGroupEnds, ARankThatLeavesEndsTheWaitOfTheOthers) {
  const Groups groups = connect_groups(3);
  const auto start = Clock::now();
  const auto errors = errors_of_ranks(3, [&](int rank) {
    if (rank == 1) {
      of(groups, 1).leave();
    } else {
      exchange(of(groups, rank), 1, Purpose::kRendezvous);
    }
  });
  EXPECT_LT(Clock::now() - start, 5s);
  for (const int rank : {0, 2}) {
    expect_error(errors[static_cast<std::size_t>(rank)], ErrorCode::kPeerLost, {"rendezvous"});
  }
  expect_error(test::error_of([&] { exchange(of(groups, 1), 2); }), ErrorCode::kAborted,
               {"was destroyed on this rank"});
  Error reason(ErrorCode::kAborted, "");
  EXPECT_TRUE(of(groups, 0).is_gone(1, &reason));
  EXPECT_EQ(reason.code(), ErrorCode::kPeerLeft);
}

TEST(LocalGroupEnds, AFailureEndsMetadataExchangesAndIsHeardByThePeers) {
  const Groups groups = connect_groups(2);
  std::uint32_t abort_word = 0;
  of(groups, 0).set_abort_word(&abort_word);
  const auto errors = errors_of_ranks(2, [&](int rank) {
    if (rank == 0) exchange(of(groups, 0), 1);
    if (rank == 1) of(groups, 0).fail(Error(ErrorCode::kTimeout, "of a collective"));
  });
  expect_error(errors[0], ErrorCode::kTimeout, {"of a collective"});
  EXPECT_EQ(abort_word, 1u);
  EXPECT_FALSE(of(groups, 1).poll("all_reduce"));
  expect_error(of(groups, 1).failure(), ErrorCode::kTimeout,
               {"all_reduce", "rank 0 (global rank 10) gave up", "of a collective"});
}

class CountingTask final : public WatchdogTask {
 public:
  void look(bool at_connections) override {
    looks += 1;
    connections += at_connections ? 1 : 0;
  }
  std::atomic<int> looks{0};
  std::atomic<int> connections{0};
};

TEST(LocalGroupEnds, AFailureIsToldOnceAndLeavingIsNone) {
  const Groups groups = connect_groups(2);
  int failed = 0;
  int late = 0;
  int left = 0;
  of(groups, 0).on_failure([&] { failed += of(groups, 0).failed() ? 1 : 100; });
  of(groups, 0).fail(Error(ErrorCode::kAborted, "on purpose"));
  of(groups, 0).fail(Error(ErrorCode::kAborted, "again"));
  of(groups, 0).on_failure([&] { ++late; });
  of(groups, 1).on_failure([&] { ++left; });
  of(groups, 1).leave();
  EXPECT_EQ(failed, 1);
  EXPECT_EQ(late, 1);
  EXPECT_EQ(left, 0);
}

TEST(LocalGroupEnds, AFailureEndsWhereItEndsOnAPageThatWasWrittenOver) {
  const Groups groups = connect_groups(2);
  std::byte* const page = of(groups, 1).region(0) - sizeof(GroupPage);
  FailureRecord& record = reinterpret_cast<GroupPage*>(page)->failure;
  std::fill_n(record.text, FailureRecord::kTextBytes, 'x');
  of(groups, 0).fail(Error(ErrorCode::kAborted, "on purpose"));
  EXPECT_FALSE(of(groups, 1).poll("a call"));
  EXPECT_TRUE(std::string(of(groups, 1).failure().what()).ends_with(" gave up: on purpose"));
}

TEST(LocalGroupEnds, TheWatchdogLooksUntilATaskIsRemoved) {
  const Groups groups = connect_groups(1);
  CountingTask first;
  CountingTask second;
  Watchdog& watchdog = of(groups, 0).watchdog();
  watchdog.add(first);
  watchdog.add(second);
  const auto start = Clock::now();
  while (second.connections < 2 && Clock::now() - start < 10s) std::this_thread::yield();
  EXPECT_GE(second.connections, 2);
  EXPECT_GT(second.looks, second.connections);
  watchdog.remove(first);
  const int looks = first.looks;
  const int others = second.looks;
  while (second.looks < others + 3 && Clock::now() - start < 20s) std::this_thread::yield();
  EXPECT_EQ(first.looks, looks);
  EXPECT_GE(second.looks, others + 3);
  watchdog.remove(second);
  watchdog.remove(second);
}

TEST(LocalGroupEnds, TheWatchdogCanBeLeftOut) {
  const test::ScopedVariable variable("SYMM_WATCHDOG", "0");
  const Groups groups = connect_groups(1);
  CountingTask task;
  of(groups, 0).watchdog().add(task);
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(task.looks, 0);
  of(groups, 0).watchdog().remove(task);
}

// What an earlier try left in the store must not disturb the next one, whoever tries again first.
TEST(LocalGroupEnds, CanBeTriedAgainOverTheSameStore) {
  MemoryStore store;
  constexpr int kWorld = 3;
  const auto first = errors_of_ranks(kWorld, [&](int rank) {
    if (rank != 2) LocalGroup::connect(store, config_of(rank, kWorld, 150ms));
  });
  for (const int rank : {0, 1}) {
    expect_error(first[static_cast<std::size_t>(rank)], ErrorCode::kTimeout, {"rank 2"});
  }
  for (int again = 0; again < 5; ++again) {
    Groups groups(kWorld);
    run_ranks(kWorld, [&](int rank) {
      groups[static_cast<std::size_t>(rank)] = LocalGroup::connect(store, config_of(rank, kWorld));
    });
    run_ranks(kWorld, [&](int rank) {
      EXPECT_EQ(exchange(of(groups, rank), again).messages[2], message_of(2, again));
    });
  }
}

// A rank that ends before it publishes has no connection to the new group, but to the old one.
TEST(LocalGroupEnds, ARankThatEndsInSetUpIsKnownFromAnotherGroup) {
  const test::TemporaryDirectory first;
  const test::TemporaryDirectory second;
  test::FileStore old_store(first.path());
  test::FileStore new_store(second.path());
  test::ForkedChild doomed([&] {
    const auto group = LocalGroup::connect(old_store, config_of(1, 2));
    ::pause();
    return 0;
  });
  const auto group = LocalGroup::connect(old_store, config_of(0, 2));
  std::optional<Error> error;
  std::thread joining(
      [&] { error = test::error_of([&] { LocalGroup::connect(new_store, config_of(0, 2)); }); });
  test::wait_for_key(new_store, "symm/peer/0");
  const auto start = Clock::now();
  doomed.kill();
  joining.join();
  EXPECT_LT(Clock::now() - start, 1s);
  expect_error(error, ErrorCode::kPeerLost, {"rank 1", "global rank 11", "pid", "has ended"});
}

// What is known from a group that this rank has left, or aborted, says nothing.
TEST(LocalGroupEnds, AGroupThatWasLeftDoesNotDisturbALaterOne) {
  for (const bool aborted : {false, true}) {
    const test::TemporaryDirectory first;
    test::FileStore old_store(first.path());
    std::shared_ptr<LocalGroup> group;
    {
      test::ForkedChild doomed([&] {
        const auto mine = LocalGroup::connect(old_store, config_of(1, 2));
        ::pause();
        return 0;
      });
      group = LocalGroup::connect(old_store, config_of(0, 2));
      if (aborted) {
        group->fail(Error(ErrorCode::kAborted, "on purpose"));
      } else {
        group->leave();
      }
    }
    MemoryStore new_store;
    expect_error(test::error_of([&] { LocalGroup::connect(new_store, config_of(0, 2, 100ms)); }),
                 ErrorCode::kTimeout, {"rank 1", "100 ms"});
  }
}

TEST(LocalGroupEnds, AnAbortOfTheGroupThatHasAllRanksEndsSetUp) {
  const Groups groups = connect_groups(2);
  MemoryStore store;
  std::optional<Error> error;
  std::thread joining(
      [&] { error = test::error_of([&] { LocalGroup::connect(store, config_of(0, 2)); }); });
  test::wait_for_key(store, "symm/peer/0");
  std::this_thread::sleep_for(20ms);
  of(groups, 0).fail(Error(ErrorCode::kAborted, "on purpose"));
  of(groups, 1).fail(Error(ErrorCode::kAborted, "on purpose"));
  joining.join();
  expect_error(error, ErrorCode::kAborted, {"aborted during set-up"});
}

}  // namespace
}  // namespace symm
