// Set-up, exchange and hang-up of meshes whose ranks behave. What strangers, wrong records and
// deaths during set-up do is in bootstrap_mesh_faults_test.cpp.
#include "symm_mem/bootstrap/bootstrap_mesh.hpp"

#include <gtest/gtest.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "kernels/core/error.hpp"
#include "test/support/expect_error.hpp"
#include "test/support/file_store.hpp"
#include "test/support/forked_child.hpp"
#include "test/support/mesh_ranks.hpp"
#include "test/support/temporary_directory.hpp"

namespace symm {
namespace {

using namespace std::chrono_literals;
using test::connect_all;
using test::error_of;
using test::expect_error;
using test::kMeshTimeout;
using test::mesh_config;
using test::run_ranks;
using Bytes = std::vector<std::uint8_t>;
using Clock = std::chrono::steady_clock;

// Says who sent it, to tell ranks, rounds and lengths apart.
Bytes message_of(int rank, std::uint64_t sequence) {
  Bytes message(static_cast<std::size_t>(1 + 7 * rank));
  for (std::size_t i = 0; i < message.size(); ++i) {
    message[i] =
        static_cast<std::uint8_t>(31 * rank + 3 * static_cast<int>(i) + static_cast<int>(sequence));
  }
  return message;
}

FileDescriptor memory_file_of(int rank) {
  FileDescriptor fd(::memfd_create("test", MFD_CLOEXEC));
  const int value = 1000 + rank;
  EXPECT_EQ(::pwrite(fd.get(), &value, sizeof(value), 0), ssize_t{sizeof(value)});
  return fd;
}

int value_in(const FileDescriptor& fd) {
  int value = -1;
  EXPECT_EQ(::pread(fd.get(), &value, sizeof(value), 0), ssize_t{sizeof(value)});
  return value;
}

std::ptrdiff_t entries_of(const char* directory) {
  return std::distance(std::filesystem::directory_iterator(directory), {});
}

// Linux may list a thread for a moment after it has been joined, so the fewest within a tenth of a
// second count.
std::ptrdiff_t threads_of_process() {
  std::ptrdiff_t fewest = entries_of("/proc/self/task");
  for (int look = 0; look < 20; ++look) {
    std::this_thread::sleep_for(5ms);
    fewest = std::min(fewest, entries_of("/proc/self/task"));
  }
  return fewest;
}

class BootstrapMeshWorlds : public ::testing::TestWithParam<int> {};

TEST_P(BootstrapMeshWorlds, PeersKnowEachOther) {
  const int world_size = GetParam();
  test::MemoryStore store;
  run_ranks(world_size, [&](int rank) {
    BootstrapMeshConfig config = mesh_config(rank, world_size);
    config.payload = message_of(rank, 5);
    const auto mesh = BootstrapMesh::connect(store, config);
    EXPECT_EQ(mesh->rank(), rank);
    EXPECT_EQ(mesh->world_size(), world_size);
    for (int peer = 0; peer < world_size; ++peer) {
      EXPECT_EQ(mesh->peer(peer).payload, message_of(peer, 5));
      EXPECT_EQ(mesh->peer(peer).process.pid, ::getpid());
    }
    expect_error(error_of([&] { mesh->peer(world_size); }), ErrorCode::kInvalidArgument, {"peer"});
    expect_error(error_of([&] { mesh->hung_up(-1); }), ErrorCode::kInvalidArgument, {"-1"});
  });
}

TEST_P(BootstrapMeshWorlds, ExchangeBringsEveryMessageAndDescriptor) {
  const int world_size = GetParam();
  const auto meshes = connect_all(world_size);
  run_ranks(world_size, [&](int rank) {
    for (std::uint64_t sequence = 0; sequence < 50; ++sequence) {
      // Odd ranks send a descriptor in every third round.
      const auto sends = [&](int r) { return r % 2 == 1 && sequence % 3 == 0; };
      const FileDescriptor mine = sends(rank) ? memory_file_of(rank) : FileDescriptor();
      const auto received = meshes[static_cast<std::size_t>(rank)]->exchange(
          sequence, message_of(rank, sequence), mine.get(), kMeshTimeout, nullptr);
      ASSERT_EQ(received.size(), static_cast<std::size_t>(world_size));
      for (int peer = 0; peer < world_size; ++peer) {
        const auto& from = received[static_cast<std::size_t>(peer)];
        if (peer == rank) {
          EXPECT_TRUE(from.message.empty());
          EXPECT_FALSE(from.descriptor.valid());
          continue;
        }
        EXPECT_EQ(from.message, message_of(peer, sequence));
        ASSERT_EQ(from.descriptor.valid(), sends(peer));
        if (sends(peer)) {
          EXPECT_EQ(value_in(from.descriptor), 1000 + peer);
        }
      }
    }
  });
}

TEST_P(BootstrapMeshWorlds, NobodyHangsUpUntilItDoes) {
  const int world_size = GetParam();
  auto meshes = connect_all(world_size);
  for (const auto& mesh : meshes) {
    for (int peer = 0; peer < world_size; ++peer) EXPECT_FALSE(mesh->hung_up(peer));
  }
  meshes.back().reset();
  for (int rank = 0; rank < world_size - 1; ++rank) {
    for (int peer = 0; peer < world_size; ++peer) {
      const auto& mesh = meshes[static_cast<std::size_t>(rank)];
      EXPECT_EQ(mesh->hung_up(peer), peer == world_size - 1);
      EXPECT_EQ(mesh->hung_up(peer), peer == world_size - 1) << "remembered";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, BootstrapMeshWorlds, ::testing::Range(1, 9));

TEST(BootstrapMesh, ConfigurationIsChecked) {
  test::MemoryStore store;
  const auto refused = [&](BootstrapMeshConfig config, const std::string& word) {
    expect_error(error_of([&] { BootstrapMesh::connect(store, config); }),
                 ErrorCode::kInvalidArgument, {"test", word});
  };
  refused(mesh_config(0, 0), "world_size");
  refused(mesh_config(0, 129), "129");
  refused(mesh_config(2, 2), "rank");
  refused(mesh_config(-1, 2), "rank");
  BootstrapMeshConfig config = mesh_config(0, 1);
  config.payload.resize(PeerRecord::kMaxPayload + 1);
  refused(config, "65537");
}

TEST(BootstrapMesh, WorldOfOneTouchesNeitherStoreNorFiles) {
  struct NoStore final : KeyValueStore {
    void set(const std::string&, const Bytes&) override { ADD_FAILURE(); }
    std::optional<Bytes> get(const std::string&) override {
      ADD_FAILURE();
      return std::nullopt;
    }
  } store;
  const auto before = entries_of("/proc/self/fd");
  const auto mesh = BootstrapMesh::connect(store, mesh_config(0, 1, 0ms));
  EXPECT_EQ(entries_of("/proc/self/fd"), before);
  EXPECT_EQ(mesh->exchange(3, Bytes{1}, -1, 0ms, nullptr).size(), 1u);
}

// Whether it can be read no more or written no more.
TEST(BootstrapMesh, AStoreThatIsGoneIsToldWithTheGroupAndTheRank) {
  struct GoneStore final : KeyValueStore {
    explicit GoneStore(bool readable_) : readable(readable_) {}
    void set(const std::string&, const Bytes&) override {
      throw Error(ErrorCode::kSystem, "nobody listens");
    }
    std::optional<Bytes> get(const std::string&) override {
      if (!readable) throw Error(ErrorCode::kSystem, "nobody answers");
      return std::nullopt;
    }
    bool readable;
  };
  for (const bool readable : {true, false}) {
    GoneStore store(readable);
    expect_error(error_of([&] { BootstrapMesh::connect(store, mesh_config(1, 2)); }),
                 ErrorCode::kSystem,
                 {"group 'test', rank 1", readable ? "nobody listens" : "nobody answers"});
  }
}

TEST(BootstrapMesh, LargestPayloadAndMessage) {
  test::MemoryStore store;
  run_ranks(2, [&](int rank) {
    BootstrapMeshConfig config = mesh_config(rank, 2);
    config.payload.assign(PeerRecord::kMaxPayload, static_cast<std::uint8_t>(rank + 1));
    const auto mesh = BootstrapMesh::connect(store, config);
    const int other = 1 - rank;
    EXPECT_EQ(mesh->peer(other).payload,
              Bytes(PeerRecord::kMaxPayload, static_cast<std::uint8_t>(other + 1)));
    const Bytes largest(4096, static_cast<std::uint8_t>(rank));
    const auto received = mesh->exchange(0, largest, -1, kMeshTimeout, nullptr);
    EXPECT_EQ(received[static_cast<std::size_t>(other)].message,
              Bytes(4096, static_cast<std::uint8_t>(other)));
    expect_error(error_of([&] { mesh->exchange(1, Bytes(4097), -1, kMeshTimeout, nullptr); }),
                 ErrorCode::kInvalidArgument, {"4096", "4097"});
  });
}

TEST(BootstrapMesh, NothingIsLeftInTheTemporaryDirectory) {
  const test::TemporaryDirectory directory;
  ASSERT_EQ(::setenv("TMPDIR", directory.path().c_str(), 1), 0);
  const auto meshes = connect_all(3);
  EXPECT_EQ(directory.entries(), 0);
  test::MemoryStore store;
  error_of([&] { BootstrapMesh::connect(store, mesh_config(0, 2, 20ms)); });
  EXPECT_EQ(directory.entries(), 0);
  ::unsetenv("TMPDIR");
}

TEST(BootstrapMesh, UnusableTemporaryDirectoriesFallBack) {
  for (const std::string& path :
       {std::string("/nowhere/at/all"), "/tmp/" + std::string(200, 'x'), std::string("relative")}) {
    ASSERT_EQ(::setenv("TMPDIR", path.c_str(), 1), 0);
    EXPECT_EQ(connect_all(2).size(), 2u);
  }
  ::unsetenv("TMPDIR");
}

TEST(BootstrapMesh, ExchangeNamesTheRankThatDoesNotCome) {
  const auto meshes = connect_all(3);
  const auto errors = test::errors_of_ranks(2, [&](int rank) {
    meshes[static_cast<std::size_t>(rank)]->exchange(0, Bytes{1}, -1, 100ms, nullptr);
  });
  for (const auto& error : errors) expect_error(error, ErrorCode::kTimeout, {"rank 2"});
  // Packets of the broken round are still on the way: the mesh is of no use any more.
  expect_error(error_of([&] { meshes[0]->exchange(1, Bytes{1}, -1, 100ms, nullptr); }),
               ErrorCode::kAborted, {"earlier", "rank 2"});
}

TEST(BootstrapMesh, ExchangeStopsWhenToldTo) {
  const auto meshes = connect_all(2);
  std::atomic<int> asked{0};
  const auto start = Clock::now();
  expect_error(error_of([&] {
                 meshes[0]->exchange(0, Bytes{1}, -1, kMeshTimeout, [&] { return ++asked == 4; });
               }),
               ErrorCode::kAborted, {"rank 1"});
  EXPECT_LT(Clock::now() - start, 1s);
}

TEST(BootstrapMesh, ExchangeNamesTheRankThatLeft) {
  auto meshes = connect_all(3);
  meshes[1].reset();
  expect_error(error_of([&] { meshes[0]->exchange(0, Bytes{1}, -1, kMeshTimeout, nullptr); }),
               ErrorCode::kPeerLost, {"rank 1"});
}

TEST(BootstrapMesh, WhatARankSentBeforeItLeftStillArrives) {
  auto meshes = connect_all(2);
  // Rank 1 leaves with rank 0's frame read or unread: both must do.
  for (const bool reads : {true, false}) {
    if (!reads) meshes = connect_all(2);
    std::optional<Error> left;
    run_ranks(2, [&](int rank) {
      if (rank == 1) {
        if (reads) {
          meshes[1]->exchange(0, message_of(1, 0), -1, kMeshTimeout, nullptr);
        } else {
          left = error_of(
              [&] { meshes[1]->exchange(0, message_of(1, 0), -1, 0ms, [] { return true; }); });
        }
        meshes[1].reset();
      } else if (reads) {
        EXPECT_EQ(meshes[0]->exchange(0, Bytes{1}, -1, kMeshTimeout, nullptr)[1].message,
                  message_of(1, 0));
      }
    });
    if (!reads) {
      EXPECT_EQ(meshes[0]->exchange(0, Bytes{1}, -1, kMeshTimeout, nullptr)[1].message,
                message_of(1, 0));
    }
    EXPECT_TRUE(meshes[0]->hung_up(1));
  }
}

TEST(BootstrapMesh, DifferentSequenceIsSeenByAllAndLeavesTheMeshUsable) {
  const auto meshes = connect_all(2);
  const auto errors = test::errors_of_ranks(2, [&](int rank) {
    const auto sequence = std::uint64_t{40} + static_cast<std::uint64_t>(rank);
    meshes[static_cast<std::size_t>(rank)]->exchange(sequence, Bytes{1}, -1, kMeshTimeout, nullptr);
  });
  for (const auto& error : errors) expect_error(error, ErrorCode::kMismatch, {"40", "41"});
  run_ranks(2, [&](int rank) {
    const auto received = meshes[static_cast<std::size_t>(rank)]->exchange(
        50, message_of(rank, 50), -1, kMeshTimeout, nullptr);
    EXPECT_EQ(received[static_cast<std::size_t>(1 - rank)].message, message_of(1 - rank, 50));
  });
}

TEST(BootstrapMesh, KilledProcessHangsUpAtOnce) {
  const test::TemporaryDirectory directory;
  test::FileStore store(directory.path());
  const auto stand_and_wait = [&](int rank) {
    return [&store, rank] {
      const auto mesh = BootstrapMesh::connect(store, mesh_config(rank, 3));
      store.set("stands/" + std::to_string(rank), {1});
      return ::pause();
    };
  };
  test::ForkedChild live(stand_and_wait(1));
  test::ForkedChild doomed(stand_and_wait(2));
  const auto mesh = BootstrapMesh::connect(store, mesh_config(0, 3));
  // Set-up ends for one rank a little before it ends for another; a death in between is a failed
  // set-up, which is not what this test is about.
  for (const int rank : {1, 2}) test::wait_for_key(store, "stands/" + std::to_string(rank));
  EXPECT_FALSE(mesh->hung_up(1));
  EXPECT_FALSE(mesh->hung_up(2));
  const auto start = Clock::now();
  doomed.kill();
  while (!mesh->hung_up(2) && Clock::now() - start < 5s) ::sched_yield();
  EXPECT_LT(Clock::now() - start, 100ms);
  EXPECT_TRUE(mesh->hung_up(2));
  EXPECT_FALSE(mesh->hung_up(1));
}

TEST(BootstrapMesh, ForkedChildNeitherUsesNorKeepsTheConnections) {
  auto meshes = connect_all(2);
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  test::ForkedChild child([&] {
    char status = 'k';
    if (meshes[0]->hung_up(1)) status = 'h';
    const auto error =
        error_of([&] { meshes[0]->exchange(0, Bytes{1}, -1, kMeshTimeout, nullptr); });
    if (!error || error->code() != ErrorCode::kInvalidArgument) status = 'e';
    meshes[0].reset();
    if (::write(ready[1], &status, 1) != 1) return 1;
    return ::pause();
  });
  char status = '?';
  ASSERT_EQ(::read(ready[0], &status, 1), 1);
  EXPECT_EQ(status, 'k');
  ::close(ready[0]);
  ::close(ready[1]);
  // The child closed nothing of the parent's, and its copy does not hide that rank 1 leaves.
  EXPECT_FALSE(meshes[0]->hung_up(1));
  EXPECT_FALSE(meshes[1]->hung_up(0));
  meshes[1].reset();
  EXPECT_TRUE(meshes[0]->hung_up(1));
}

TEST(BootstrapMesh, NoRoomForADescriptorIsAnErrorAfterWhichTheMeshWorks) {
  test::ForkedChild child([] {
    const auto meshes = connect_all(2);
    const FileDescriptor sent = memory_file_of(0);
    const rlimit limit{static_cast<rlim_t>(sent.get()) + 1, 4096};
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
    const auto errors = test::errors_of_ranks(2, [&](int rank) {
      meshes[static_cast<std::size_t>(rank)]->exchange(0, Bytes{1}, sent.get(), kMeshTimeout,
                                                       nullptr);
    });
    for (const auto& error : errors) {
      if (!error || error->code() != ErrorCode::kSystem) return 2;
      if (std::string(error->what()).find("RLIMIT_NOFILE") == std::string::npos) return 3;
    }
    run_ranks(2, [&](int rank) {
      meshes[static_cast<std::size_t>(rank)]->exchange(1, Bytes{1}, -1, kMeshTimeout, nullptr);
    });
    return 0;
  });
  EXPECT_EQ(child.wait(), 0);
}

TEST(BootstrapMesh, NoDescriptorsForTheMeshIsAnErrorOnAllRanks) {
  test::ForkedChild child([] {
    test::MemoryStore store;
    const rlimit limit{12, 12};
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
    const auto errors = test::errors_of_ranks(
        8, [&](int rank) { BootstrapMesh::connect(store, mesh_config(rank, 8, 2000ms)); });
    bool named = false;
    for (const auto& error : errors) {
      if (!error) return 2;
      named |= std::string(error->what()).find("RLIMIT_NOFILE") != std::string::npos;
    }
    return named ? 0 : 3;
  });
  EXPECT_EQ(child.wait(), 0);
}

TEST(BootstrapMesh, ManyGroupsLeaveNothingBehind) {
  connect_all(3);
  const auto descriptors = entries_of("/proc/self/fd");
  const auto threads = threads_of_process();
  for (int i = 0; i < 200; ++i) connect_all(3);
  EXPECT_EQ(entries_of("/proc/self/fd"), descriptors);
  EXPECT_EQ(threads_of_process(), threads);
}

}  // namespace
}  // namespace symm
