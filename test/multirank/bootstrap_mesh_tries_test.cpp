// Meshes over a Store that holds records of earlier tries, and two jobs on one Store.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/core/error.hpp"
#include "symm_mem/bootstrap/bootstrap_mesh.hpp"
#include "symm_mem/bootstrap/peer_record.hpp"
#include "symm_mem/bootstrap/unix_socket.hpp"
#include "symm_mem/process/process_identity.hpp"
#include "test/support/expect_error.hpp"
#include "test/support/file_store.hpp"
#include "test/support/forked_child.hpp"
#include "test/support/mesh_ranks.hpp"
#include "test/support/temporary_directory.hpp"

namespace symm {
namespace {

using namespace std::chrono_literals;
using test::errors_of_ranks;
using test::expect_error;
using test::kMeshTimeout;
using test::MemoryStore;
using test::mesh_config;
using test::run_ranks;
using Bytes = std::vector<std::uint8_t>;
using Clock = std::chrono::steady_clock;

std::string record_key(int rank) { return "symm/peer/" + std::to_string(rank); }

// Of a rank whose process has ended in set-up, before this one started.
PeerRecord left_over(int rank, int world_size) {
  PeerRecord record;
  record.rank = static_cast<std::uint32_t>(rank);
  record.world_size = static_cast<std::uint32_t>(world_size);
  record.process.pid = 4242;
  record.published = 1;
  record.uid = ::geteuid();
  record.mount_namespace = mount_namespace_id();
  record.nonce = random_nonce();
  record.boot_id = host_boot_id();
  record.socket_path = "/tmp/symm-mesh-no-such/s";
  return record;
}

void publish(KeyValueStore& store, const PeerRecord& record) {
  store.set(record_key(static_cast<int>(record.rank)), encode_peer_record(record));
}

void expect_exchange(BootstrapMesh& mesh, std::uint64_t sequence) {
  const auto received = mesh.exchange(sequence, Bytes{1}, -1, kMeshTimeout, nullptr);
  EXPECT_EQ(received.size(), static_cast<std::size_t>(mesh.world_size()));
}

TEST(BootstrapMeshTries, AHundredRoundsUnderOneName) {
  MemoryStore store;
  constexpr int kWorld = 3;
  run_ranks(kWorld, [&](int rank) {
    std::minstd_rand random(static_cast<unsigned>(rank) + 1);
    for (std::uint64_t round = 0; round < 100; ++round) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 4 == 0 ? 3000 : 0));
      const auto mesh = BootstrapMesh::connect(store, mesh_config(rank, kWorld));
      expect_exchange(*mesh, round);
    }
  });
}

TEST(BootstrapMeshTries, RecordsOfAKilledRunAreWaitedPast) {
  for (const int late : {0, 1, 2}) {
    MemoryStore store;
    for (const int rank : {0, 1, 2}) publish(store, left_over(rank, 3));
    run_ranks(3, [&](int rank) {
      if (rank == late) std::this_thread::sleep_for(200ms);
      expect_exchange(*BootstrapMesh::connect(store, mesh_config(rank, 3)), 0);
    });
  }
}

TEST(BootstrapMeshTries, RecordsOfARunOfAnotherSizeAreWaitedPast) {
  MemoryStore store;
  for (const int rank : {0, 1, 2, 3}) publish(store, left_over(rank, 4));
  run_ranks(2, [&](int rank) {
    if (rank == 1) std::this_thread::sleep_for(100ms);
    expect_exchange(*BootstrapMesh::connect(store, mesh_config(rank, 2)), 0);
  });
}

TEST(BootstrapMeshTries, AnotherWorldSizeInThisTryIsAMismatch) {
  MemoryStore store;
  const auto errors = errors_of_ranks(
      2, [&](int rank) { BootstrapMesh::connect(store, mesh_config(rank, 2 + rank, 2000ms)); });
  expect_error(errors[0], ErrorCode::kMismatch, {"rank 1", "3 ranks", "this one 2"});
  expect_error(errors[1], ErrorCode::kMismatch, {"rank 0", "2 ranks", "this one 3"});
}

TEST(BootstrapMeshTries, ALeftOverThatIsNotReplacedIsNamedAtTheTimeout) {
  for (const int dead : {0, 1}) {
    MemoryStore store;
    publish(store, left_over(dead, 2));
    const auto error =
        test::error_of([&] { BootstrapMesh::connect(store, mesh_config(1 - dead, 2, 200ms)); });
    expect_error(error, ErrorCode::kTimeout,
                 {"rank " + std::to_string(dead), "4242", "earlier try"});
  }
}

// Rank 0 gives up while rank 1 has its record in hand, and comes again.
TEST(BootstrapMeshTries, ARankThatTimedOutMayTryAgainWhileTheOthersWait) {
  MemoryStore store;
  const auto errors = errors_of_ranks(3, [&](int rank) {
    if (rank == 0) {
      const auto late =
          test::error_of([&] { BootstrapMesh::connect(store, mesh_config(0, 3, 50ms)); });
      expect_error(late, ErrorCode::kTimeout, {"rank"});
      std::this_thread::sleep_for(50ms);
    }
    if (rank == 2) std::this_thread::sleep_for(80ms);
    expect_exchange(*BootstrapMesh::connect(store, mesh_config(rank, 3)), 0);
  });
  for (const auto& error : errors) EXPECT_FALSE(error.has_value()) << error->what();
}

TEST(BootstrapMeshTries, ALateRankDoesNotWaitForThoseThatKnowOfADeath) {
  MemoryStore store;
  PeerRecord dead = left_over(2, 3);
  dead.published = test::published_now();
  publish(store, dead);
  std::vector<std::optional<Error>> errors(2);
  std::thread one([&] {
    errors[1] = test::error_of([&] { BootstrapMesh::connect(store, mesh_config(1, 3, 5000ms)); });
  });
  test::wait_for_key(store, record_key(1));
  PeerRecord gone = left_over(0, 3);
  gone.published = dead.published;
  publish(store, gone);
  one.join();
  const auto start = Clock::now();
  errors[0] = test::error_of([&] { BootstrapMesh::connect(store, mesh_config(0, 3, 5000ms)); });
  EXPECT_LT(Clock::now() - start, 1s);
  for (const auto& error : errors) expect_error(error, ErrorCode::kPeerLost, {"rank"});
}

// A rank that began in the clock tick in which another one published takes that record for one of
// an earlier try. Where a third rank gives up because of the other one's death, both are named.
TEST(BootstrapMeshTries, ADeathIsNamedThoughTheRecordSeemsLeftOver) {
  MemoryStore store;
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  test::ForkedChild child([&] {
    const ProcessIdentity mine = own_process();
    return ::write(pipe[1], &mine, sizeof(mine)) == sizeof(mine) ? 0 : 1;
  });
  PeerRecord dead = left_over(0, 3);
  ASSERT_EQ(::read(pipe[0], &dead.process, sizeof(dead.process)),
            static_cast<ssize_t>(sizeof(dead.process)));
  EXPECT_EQ(child.wait(), 0);
  ::close(pipe[0]);
  ::close(pipe[1]);
  publish(store, dead);
  PeerRecord gave_up = left_over(1, 3);
  gave_up.published = test::published_now();
  publish(store, gave_up);
  const auto error =
      test::error_of([&] { BootstrapMesh::connect(store, mesh_config(2, 3, 5000ms)); });
  expect_error(error, ErrorCode::kPeerLost, {"rank 0", "rank 1", "during set-up"});
}

// A rank that reads an old record just before it is replaced must not give up.
TEST(BootstrapMeshTries, OldAndNewRecordsMixed) {
  std::atomic<int> reads{0};
  const PeerRecord old = left_over(0, 2);
  MemoryStore store([&](const std::string& key, Bytes& value) {
    if (key == record_key(0) && ++reads % 3 != 0) value = encode_peer_record(old);
  });
  // The owner sees its own record first.
  std::vector<std::optional<Error>> errors(2);
  struct Direct final : KeyValueStore {
    explicit Direct(MemoryStore& over) : below(over) {}
    void set(const std::string& key, const Bytes& value) override {
      below.set(key, value);
      own[key] = value;
    }
    std::optional<Bytes> get(const std::string& key) override {
      const auto found = own.find(key);
      return found == own.end() ? below.get(key) : std::optional(found->second);
    }
    MemoryStore& below;
    std::map<std::string, Bytes> own;
  } owner(store);
  std::thread zero([&] {
    errors[0] = test::error_of([&] { BootstrapMesh::connect(owner, mesh_config(0, 2)); });
  });
  errors[1] = test::error_of([&] { BootstrapMesh::connect(store, mesh_config(1, 2)); });
  zero.join();
  for (const auto& error : errors) EXPECT_FALSE(error.has_value()) << error->what();
}

TEST(BootstrapMeshTries, ASecondJobIsRefusedByNameWhileTheFirstOneRuns) {
  const test::TemporaryDirectory directory;
  test::FileStore store(directory.path());
  const auto rank_of_first_job = [&](int rank) {
    return [&store, rank] {
      for (std::uint64_t round = 0; round < 200; ++round) {
        expect_exchange(*BootstrapMesh::connect(store, mesh_config(rank, 2)), round);
        if (round == 0) store.set("first/" + std::to_string(rank), {1});
      }
      return 0;
    };
  };
  test::ForkedChild zero(rank_of_first_job(0));
  test::ForkedChild one(rank_of_first_job(1));
  for (const int rank : {0, 1}) test::wait_for_key(store, "first/" + std::to_string(rank));
  for (int trial = 0; trial < 20; ++trial) {
    for (const int rank : {0, 1}) {
      const auto error =
          test::error_of([&] { BootstrapMesh::connect(store, mesh_config(rank, 2, 100ms)); });
      expect_error(error, ErrorCode::kSecurity, {"another job", record_key(rank), "process"});
    }
  }
  EXPECT_EQ(zero.wait(), 0);
  EXPECT_EQ(one.wait(), 0);
  // Once it has ended its keys are free.
  run_ranks(2, [&](int rank) {
    expect_exchange(*BootstrapMesh::connect(store, mesh_config(rank, 2)), 0);
  });
}

// Ranks that know each other may change places: the group becomes smaller under its old name.
TEST(BootstrapMeshTries, ColleaguesMayTakeAnotherRank) {
  const test::TemporaryDirectory directory;
  test::FileStore store(directory.path());
  const auto survivor = [&](int before, int after) {
    return [&store, before, after] {
      expect_exchange(*BootstrapMesh::connect(store, mesh_config(before, 3)), 0);
      expect_exchange(*BootstrapMesh::connect(store, mesh_config(after, 2)), 0);
      return 0;
    };
  };
  test::ForkedChild gone([&] {
    expect_exchange(*BootstrapMesh::connect(store, mesh_config(0, 3)), 0);
    return 0;
  });
  test::ForkedChild first(survivor(1, 0));
  test::ForkedChild second(survivor(2, 1));
  EXPECT_EQ(gone.wait(), 0);
  EXPECT_EQ(first.wait(), 0);
  EXPECT_EQ(second.wait(), 0);
}

TEST(BootstrapMeshTries, WhatTheCallerSeesEndsTheWait) {
  for (const bool published : {false, true}) {
    MemoryStore store;
    if (published) publish(store, left_over(1, 2));
    BootstrapMeshConfig config = mesh_config(0, 2);
    const auto start = Clock::now();
    config.look = [&] {
      if (Clock::now() - start > 100ms)
        throw Error(ErrorCode::kPeerLost, "rank 1 is seen to be gone");
    };
    expect_error(test::error_of([&] { BootstrapMesh::connect(store, config); }),
                 ErrorCode::kPeerLost, {"rank 1 is seen"});
    EXPECT_LT(Clock::now() - start, 1s);
  }
}

// The process that served the Store, or wrote to it, may be the rank that is gone.
TEST(BootstrapMeshTries, AStoreThatFailsBecauseARankEndedNamesTheRank) {
  for (const bool is_seen : {false, true}) {
    std::atomic<int> reads{0};
    MemoryStore store([&](const std::string& key, Bytes&) {
      if (key == record_key(1) && ++reads > 5) throw Error(ErrorCode::kSystem, "the file is torn");
    });
    PeerRecord over = left_over(1, 2);
    over.joining = 0;
    publish(store, over);
    BootstrapMeshConfig config = mesh_config(0, 2);
    config.look = [&] {
      if (reads > 5 && is_seen) throw Error(ErrorCode::kPeerLost, "rank 1 is seen to be gone");
    };
    expect_error(test::error_of([&] { BootstrapMesh::connect(store, config); }),
                 is_seen ? ErrorCode::kPeerLost : ErrorCode::kSystem,
                 {is_seen ? "rank 1 is seen" : "torn"});
  }
}

TEST(ProcessIdentity, TimesOfTicksFitHostsThatRunForYears) {
  constexpr std::uint64_t kDay = 24 * 60 * 60;
  EXPECT_EQ(time_of_ticks(0, 100), 0ns);
  EXPECT_EQ(time_of_ticks(7, 100), 70ms);
  EXPECT_EQ(time_of_ticks(1, 3), 333'333'333ns);
  for (const std::uint64_t days : {1u, 1067u, 1068u, 3000u, 100'000u}) {
    for (const std::uint64_t per_second : {100u, 250u, 300u, 1024u}) {
      EXPECT_EQ(time_of_ticks(days * kDay * per_second, per_second),
                std::chrono::seconds(days * kDay));
      EXPECT_EQ(time_of_ticks(days * kDay * per_second + per_second / 2, per_second),
                std::chrono::seconds(days * kDay) + 500ms);
    }
  }
}

TEST(ProcessIdentity, TellsRunningFromEnded) {
  EXPECT_TRUE(is_running(own_process()));
  EXPECT_FALSE(has_begun_to_end(own_process()));
  EXPECT_LT(start_time(own_process()), host_clock() + 20ms);
  EXPECT_GT(start_time(own_process()), 0ns);
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  test::ForkedChild child([&] {
    const ProcessIdentity mine = own_process();
    if (::write(pipe[1], &mine, sizeof(mine)) != sizeof(mine)) return 1;
    ::pause();
    return 0;
  });
  ProcessIdentity theirs;
  ASSERT_EQ(::read(pipe[0], &theirs, sizeof(theirs)), static_cast<ssize_t>(sizeof(theirs)));
  EXPECT_TRUE(is_running(theirs));
  EXPECT_FALSE(has_begun_to_end(theirs));
  ProcessIdentity another = theirs;
  another.start += 1;
  EXPECT_FALSE(is_running(another)) << "the pid is used again";
  EXPECT_TRUE(has_begun_to_end(another));
  another.pid_namespace += 1;
  EXPECT_FALSE(has_begun_to_end(another)) << "nobody can tell";
  child.kill();
  const auto start = Clock::now();
  while (is_running(theirs) && Clock::now() - start < 5s) std::this_thread::sleep_for(1ms);
  EXPECT_FALSE(is_running(theirs)) << "also before it was waited for";
  EXPECT_TRUE(has_begun_to_end(theirs));
  child.wait();
  EXPECT_FALSE(is_running(theirs));
  EXPECT_TRUE(has_begun_to_end(theirs));
  ::close(pipe[0]);
  ::close(pipe[1]);
}

}  // namespace
}  // namespace symm
