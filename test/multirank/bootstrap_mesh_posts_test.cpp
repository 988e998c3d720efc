// Posts: frames that a rank sends unasked and its peers take when they want them, beside
// exchanges on the same sockets.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/core/error.hpp"
#include "symm_mem/bootstrap/bootstrap_mesh.hpp"
#include "symm_mem/bootstrap/frame_queues.hpp"
#include "symm_mem/bootstrap/peer_frame.hpp"
#include "symm_mem/bootstrap/unix_socket.hpp"
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
using test::run_ranks;
using Bytes = std::vector<std::uint8_t>;
using Clock = std::chrono::steady_clock;

// Says who posted it, under which topic.
Bytes post_of(int rank, std::uint64_t topic) {
  Bytes message(static_cast<std::size_t>(2 + 5 * rank));
  for (std::size_t i = 0; i < message.size(); ++i) {
    message[i] = static_cast<std::uint8_t>(17 * rank + 5 * static_cast<int>(topic) +
                                           static_cast<int>(3 * i) + 1);
  }
  return message;
}

FileDescriptor memory_file_of(int value) {
  FileDescriptor fd(::memfd_create("test", MFD_CLOEXEC));
  EXPECT_EQ(::pwrite(fd.get(), &value, sizeof(value), 0), ssize_t{sizeof(value)});
  return fd;
}

int value_in(const FileDescriptor& fd) {
  int value = -1;
  EXPECT_EQ(::pread(fd.get(), &value, sizeof(value), 0), ssize_t{sizeof(value)});
  return value;
}

BootstrapMesh::Received take(BootstrapMesh& mesh, int peer, std::uint64_t topic) {
  return mesh.take(peer, topic, kMeshTimeout, nullptr);
}

BootstrapMesh::Received exchange_with(BootstrapMesh& mesh, std::uint64_t sequence, int peer) {
  auto received = mesh.exchange(sequence, Bytes{static_cast<std::uint8_t>(100 + mesh.rank())}, -1,
                                kMeshTimeout, nullptr);
  return std::move(received[static_cast<std::size_t>(peer)]);
}

TEST(BootstrapMeshPosts, EveryPeerTakesThemInAnyOrderOfTopics) {
  constexpr int kWorldSize = 4;
  const auto meshes = connect_all(kWorldSize);
  run_ranks(kWorldSize, [&](int rank) {
    BootstrapMesh& mesh = *meshes[static_cast<std::size_t>(rank)];
    for (const std::uint64_t topic : {7u, 8u, 9u}) mesh.post(topic, post_of(rank, topic), -1);
    for (const std::uint64_t topic : {9u, 7u, 8u}) {
      for (int peer = kWorldSize - 1; peer >= 0; --peer) {
        if (peer == rank) continue;
        const BootstrapMesh::Received got = take(mesh, peer, topic);
        EXPECT_EQ(got.message, post_of(peer, topic))
            << rank << " takes " << topic << " of " << peer;
        EXPECT_FALSE(got.descriptor.valid());
      }
    }
  });
}

TEST(BootstrapMeshPosts, DescriptorsTravelToEveryPeer) {
  const auto meshes = connect_all(3);
  run_ranks(3, [&](int rank) {
    BootstrapMesh& mesh = *meshes[static_cast<std::size_t>(rank)];
    mesh.post(1, post_of(rank, 1), memory_file_of(500 + rank).get());
    for (int peer = 0; peer < 3; ++peer) {
      if (peer == rank) continue;
      const BootstrapMesh::Received got = take(mesh, peer, 1);
      EXPECT_EQ(got.message, post_of(peer, 1));
      ASSERT_TRUE(got.descriptor.valid());
      EXPECT_EQ(value_in(got.descriptor), 500 + peer);
    }
  });
}

// A post that arrives before, between and after exchanges is in nobody's way.
TEST(BootstrapMeshPosts, ExchangesPassThemBy) {
  const auto meshes = connect_all(2);
  run_ranks(2, [&](int rank) {
    BootstrapMesh& mesh = *meshes[static_cast<std::size_t>(rank)];
    const int other = 1 - rank;
    const Bytes other_word = {static_cast<std::uint8_t>(100 + other)};
    mesh.post(0, post_of(rank, 0), -1);
    EXPECT_EQ(exchange_with(mesh, 0, other).message, other_word);
    mesh.post(1, post_of(rank, 1), -1);
    EXPECT_EQ(exchange_with(mesh, 1, other).message, other_word);
    EXPECT_EQ(take(mesh, other, 1).message, post_of(other, 1));
    EXPECT_EQ(take(mesh, other, 0).message, post_of(other, 0));
    EXPECT_EQ(exchange_with(mesh, 2, other).message, other_word);
    mesh.post(2, post_of(rank, 2), -1);
    EXPECT_EQ(take(mesh, other, 2).message, post_of(other, 2));
  });
}

// One thread a rank exchanges while another posts and takes: each sorts what is the other's.
TEST(BootstrapMeshPosts, TakenWhileAnotherThreadExchanges) {
  constexpr int kWorldSize = 3;
  constexpr std::uint64_t kRounds = 200;
  const auto meshes = connect_all(kWorldSize);
  run_ranks(2 * kWorldSize, [&](int thread) {
    const int rank = thread / 2;
    BootstrapMesh& mesh = *meshes[static_cast<std::size_t>(rank)];
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      const bool posts = thread % 2 == 0;
      if (posts)
        mesh.post(round, post_of(rank, round), memory_file_of(static_cast<int>(round)).get());
      const auto received =
          posts ? std::vector<BootstrapMesh::Received>{}
                : mesh.exchange(round, post_of(rank, round + 1), -1, kMeshTimeout, nullptr);
      for (int peer = 0; peer < kWorldSize; ++peer) {
        if (peer == rank) continue;
        if (posts) {
          const BootstrapMesh::Received got = take(mesh, peer, round);
          ASSERT_EQ(got.message, post_of(peer, round));
          ASSERT_EQ(value_in(got.descriptor), static_cast<int>(round));
        } else {
          ASSERT_EQ(received[static_cast<std::size_t>(peer)].message, post_of(peer, round + 1));
        }
      }
    }
  });
}

// The same numbers in both streams, two threads a rank, exchanges and posts: no frame of one is
// ever taken for one of the other.
TEST(BootstrapMeshPosts, FramesOfTheTwoStreamsAreNotConfused) {
  constexpr int kWorldSize = 3;
  constexpr std::uint64_t kRounds = 200;
  const auto meshes = connect_all(kWorldSize);
  run_ranks(2 * kWorldSize, [&](int thread) {
    const int rank = thread / 2;
    const auto stream = thread % 2 == 0 ? FrameStream::kCollectives : FrameStream::kSymmetricMemory;
    const auto said_by = [&](int who, std::uint64_t number) {
      return Bytes{static_cast<std::uint8_t>(who), static_cast<std::uint8_t>(stream),
                   static_cast<std::uint8_t>(number)};
    };
    BootstrapMesh& mesh = *meshes[static_cast<std::size_t>(rank)];
    for (std::uint64_t round = 10; round < 10 + kRounds; ++round) {
      const FramePosition position(stream, round);
      mesh.post(position, said_by(rank, round + 1), -1);
      const auto received =
          mesh.exchange(position, said_by(rank, round), -1, kMeshTimeout, nullptr);
      for (int peer = 0; peer < kWorldSize; ++peer) {
        if (peer == rank) continue;
        ASSERT_EQ(received[static_cast<std::size_t>(peer)].message, said_by(peer, round));
        ASSERT_EQ(mesh.take(peer, position, kMeshTimeout, nullptr).message,
                  said_by(peer, round + 1));
      }
    }
  });
}

// One stream breaks off in the middle of an exchange, starts again, and passes over what was left;
// the other does not notice.
TEST(BootstrapMeshPosts, AStreamStartsAgainWhileTheOtherGoesOn) {
  const auto meshes = connect_all(2);
  const FramePosition broken(FrameStream::kSymmetricMemory, 5);
  meshes[0]->post(broken, Bytes{9}, -1);
  expect_error(error_of([&] { meshes[0]->exchange(broken, Bytes{1}, -1, 20ms, nullptr); }),
               ErrorCode::kTimeout, {"rank 1"});
  expect_error(error_of([&] { meshes[0]->exchange(broken, Bytes{1}, -1, 20ms, nullptr); }),
               ErrorCode::kAborted, {"an earlier exchange failed"});
  run_ranks(2, [&](int rank) {
    BootstrapMesh& mesh = *meshes[static_cast<std::size_t>(rank)];
    EXPECT_EQ(exchange_with(mesh, 1, 1 - rank).message,
              Bytes{static_cast<std::uint8_t>(100 + 1 - rank)});
    mesh.restart({FrameStream::kSymmetricMemory, 6});
    const auto received =
        mesh.exchange({FrameStream::kSymmetricMemory, 6}, Bytes{static_cast<std::uint8_t>(rank)},
                      -1, kMeshTimeout, nullptr);
    EXPECT_EQ(received[static_cast<std::size_t>(1 - rank)].message,
              Bytes{static_cast<std::uint8_t>(1 - rank)});
  });
}

TEST(BootstrapMeshPosts, WaitsForAPostThatComesLater) {
  const auto meshes = connect_all(2);
  std::atomic<int> asked{0};
  std::thread poster([&] {
    while (asked.load() < 3) std::this_thread::yield();
    meshes[1]->post(4, post_of(1, 4), -1);
  });
  const auto got = meshes[0]->take(1, 4, kMeshTimeout, [&] {
    ++asked;
    return false;
  });
  poster.join();
  EXPECT_EQ(got.message, post_of(1, 4));
}

TEST(BootstrapMeshPosts, APeerThatDiedAfterItsPostStillCounts) {
  const test::TemporaryDirectory directory;
  test::FileStore store(directory.path());
  test::ForkedChild peer([&] {
    const auto mesh = BootstrapMesh::connect(store, test::mesh_config(1, 2));
    mesh->post(5, post_of(1, 5), memory_file_of(77).get());
    store.set("posted", {1});
    return ::pause();
  });
  const auto mesh = BootstrapMesh::connect(store, test::mesh_config(0, 2));
  test::wait_for_key(store, "posted");
  peer.kill();
  EXPECT_EQ(peer.wait(), -SIGKILL);
  EXPECT_TRUE(mesh->hung_up(1));
  const auto got = take(*mesh, 1, 5);
  EXPECT_EQ(got.message, post_of(1, 5));
  EXPECT_EQ(value_in(got.descriptor), 77);
  // Nothing more is to come.
  const auto start = Clock::now();
  expect_error(error_of([&] { take(*mesh, 1, 6); }), ErrorCode::kPeerLost, {"rank 1"});
  EXPECT_LT(Clock::now() - start, 1s);
}

TEST(BootstrapMeshPosts, APeerThatDiedBeforeItsPostIsNamed) {
  auto meshes = connect_all(3);
  meshes[2]->post(1, post_of(2, 1), -1);
  std::optional<Error> error;
  std::atomic<int> asked{0};
  std::thread taker([&] {
    error = error_of([&] {
      meshes[0]->take(1, 1, kMeshTimeout, [&] {
        ++asked;
        return false;
      });
    });
  });
  while (asked.load() < 2) std::this_thread::yield();
  const auto start = Clock::now();
  meshes[1].reset();
  taker.join();
  EXPECT_LT(Clock::now() - start, 1s);
  expect_error(error, ErrorCode::kPeerLost, {"rank 1"});
  EXPECT_EQ(take(*meshes[0], 2, 1).message, post_of(2, 1)) << "the others are not touched";
  meshes[0]->post(3, post_of(0, 3), -1);
  EXPECT_EQ(take(*meshes[2], 0, 3).message, post_of(0, 3)) << "nor is posting";
}

TEST(BootstrapMeshPosts, TimeoutAndGivingUpNameTheRank) {
  const auto meshes = connect_all(3);
  meshes[1]->post(8, Bytes{1}, -1);
  const auto start = Clock::now();
  expect_error(error_of([&] { meshes[0]->take(1, 9, 100ms, nullptr); }), ErrorCode::kTimeout,
               {"rank 1", "topic 9"});
  EXPECT_GE(Clock::now() - start, 100ms);
  EXPECT_LT(Clock::now() - start, 1100ms);
  expect_error(error_of([&] { meshes[0]->take(2, 9, kMeshTimeout, [] { return true; }); }),
               ErrorCode::kAborted, {"rank 2"});
  EXPECT_EQ(meshes[0]->take(1, 8, 0ms, nullptr).message, Bytes{1}) << "it was there all the time";
}

TEST(BootstrapMeshPosts, EachIsTakenOnceAndPostedOnce) {
  const auto meshes = connect_all(2);
  meshes[1]->post(3, post_of(1, 3), -1);
  EXPECT_EQ(take(*meshes[0], 1, 3).message, post_of(1, 3));
  expect_error(error_of([&] { take(*meshes[0], 1, 3); }), ErrorCode::kInvalidArgument,
               {"rank 1", "topic 3", "already"});
  expect_error(error_of([&] { meshes[1]->post(3, Bytes{2}, -1); }), ErrorCode::kInvalidArgument,
               {"topic 3"});
  expect_error(error_of([&] { meshes[0]->take(0, 1, 0ms, nullptr); }), ErrorCode::kInvalidArgument,
               {"own"});
  expect_error(error_of([&] { meshes[0]->take(2, 1, 0ms, nullptr); }), ErrorCode::kInvalidArgument,
               {"got 2"});
  expect_error(error_of([&] { meshes[0]->post(4, Bytes(4097), -1); }), ErrorCode::kInvalidArgument,
               {"4096", "4097"});
}

// Posts of `mesh`, whose peers drop them where they restart above, until one does not fit. Returns
// that one's topic.
std::uint64_t post_until_full(BootstrapMesh& mesh) {
  for (std::uint64_t topic = 1;; ++topic) {
    const auto error = error_of([&] { mesh.post(topic, Bytes(4096), -1); });
    if (!error) continue;
    expect_error(error, ErrorCode::kSystem, {"posting", "rank 1 is full"});
    return topic;
  }
}

TEST(BootstrapMeshPosts, OneThatNoPeerHasCanBePostedAgain) {
  const auto meshes = connect_all(2);
  const std::uint64_t topic = post_until_full(*meshes[0]);
  meshes[1]->restart(topic);
  expect_error(error_of([&] { meshes[1]->take(0, topic, 0ms, nullptr); }), ErrorCode::kTimeout,
               {"rank 0"});
  meshes[0]->post(topic, post_of(0, topic), -1);
  EXPECT_EQ(take(*meshes[1], 0, topic).message, post_of(0, topic));
}

// The sockets to both peers are full; rank 1 alone reads.
TEST(BootstrapMeshPosts, OneThatSomePeersHaveCannot) {
  const auto meshes = connect_all(3);
  const std::uint64_t first = post_until_full(*meshes[0]);
  meshes[1]->restart(first);
  expect_error(error_of([&] { meshes[1]->take(0, first, 0ms, nullptr); }), ErrorCode::kTimeout,
               {"rank 0"});
  expect_error(error_of([&] { meshes[0]->post(first, Bytes(4096), -1); }), ErrorCode::kSystem,
               {"rank 2 is full"});
  expect_error(error_of([&] { meshes[0]->post(first, Bytes(4096), -1); }),
               ErrorCode::kInvalidArgument, {"posted already"});
}

// Runs `trial(fill)` as a user without capabilities, who may have 64 descriptors on sockets that
// nobody has read. `fill(mesh, between)` posts descriptors until there are no more, which its peers
// drop, and calls `between` after each.
using Between = std::function<void()>;
using Fill = std::function<void(BootstrapMesh& mesh, const Between& between)>;
constexpr std::uint64_t kAboveFilling = 1000;

void with_few_descriptors_under_way(
    int world_size,
    const std::function<void(const std::vector<std::unique_ptr<BootstrapMesh>>& meshes,
                             const Fill& fill)>& trial) {
  test::ForkedChild child([&] {
    const auto meshes = connect_all(world_size);
    for (const auto& mesh : meshes) mesh->restart(kAboveFilling);
    constexpr rlimit kLimit{64, 64};
    constexpr uid_t kNobody = 65534;
    if (::geteuid() == 0 && ::setuid(kNobody) != 0) return 1;
    if (::setrlimit(RLIMIT_NOFILE, &kLimit) != 0) return 2;
    const FileDescriptor file = memory_file_of(1);
    trial(meshes, [&](BootstrapMesh& mesh, const Between& between) {
      std::optional<Error> error;
      for (std::uint64_t topic = 1; !error && topic < kAboveFilling; ++topic) {
        error = error_of([&] { mesh.post(topic, Bytes{1}, file.get()); });
        if (between) between();
      }
      expect_error(error, ErrorCode::kSystem, {"as many descriptors as RLIMIT_NOFILE allows"});
    });
    return ::testing::Test::HasFailure() ? 3 : 0;
  });
  EXPECT_EQ(child.wait(), 0);
}

// What keeps a rank from posting is on its own sockets.
TEST(BootstrapMeshPosts, WhoMayNotSendMoreDescriptorsReadsThoseThatItHas) {
  with_few_descriptors_under_way(2, [](const auto& meshes, const Fill& fill) {
    fill(*meshes[1], {});
    const FileDescriptor file = memory_file_of(5);
    meshes[0]->post(kAboveFilling, Bytes{1}, file.get(), kMeshTimeout, nullptr);
    EXPECT_EQ(value_in(take(*meshes[1], 0, kAboveFilling).descriptor), 5);
  });
}

// It is on those of a rank that waits for this one, and for nobody else.
TEST(BootstrapMeshPosts, WhoWaitsForAPostReadsWhatOthersHaveSent) {
  with_few_descriptors_under_way(3, [](const auto& meshes, const Fill& fill) {
    fill(*meshes[2], [&] { meshes[1]->take_in(); });
    const FileDescriptor file = memory_file_of(5);
    run_ranks(2, [&](int rank) {
      if (rank == 1) {
        meshes[1]->post(kAboveFilling, Bytes{1}, file.get(), kMeshTimeout, nullptr);
      } else {
        EXPECT_EQ(value_in(take(*meshes[0], 1, kAboveFilling).descriptor), 5);
      }
    });
  });
}

// Rank 2's frame of the exchange is in front of what fills rank 0's socket: rank 0 hears rank 2 and
// then waits for rank 1 alone. It has no descriptor, as that would make room once it is read.
TEST(BootstrapMeshPosts, ExchangesReadWhatIsSentBeside) {
  with_few_descriptors_under_way(3, [](const auto& meshes, const Fill& fill) {
    const FileDescriptor file = memory_file_of(5);
    std::atomic<bool> sent{false};
    std::atomic<bool> filled{false};
    run_ranks(3, [&](int rank) {
      if (rank == 1) {
        while (!sent) std::this_thread::yield();
        fill(*meshes[2], [&] { meshes[1]->take_in(); });
        filled = true;
      }
      while (rank == 0 && !filled) std::this_thread::yield();
      BootstrapMesh& mesh = *meshes[static_cast<std::size_t>(rank)];
      const auto received =
          mesh.exchange(kAboveFilling, Bytes{1}, rank == 2 ? -1 : file.get(), kMeshTimeout, [&] {
            if (rank == 2) sent = true;
            return false;
          });
      for (int peer = 0; peer < 3; ++peer) {
        if (peer == rank || peer == 2) continue;
        EXPECT_EQ(value_in(received[static_cast<std::size_t>(peer)].descriptor), 5);
      }
    });
  });
}

TEST(BootstrapMeshPosts, WaitsForRoomAsLongAsItIsTold) {
  const auto meshes = connect_all(2);
  const std::uint64_t topic = post_until_full(*meshes[0]);
  const auto start = Clock::now();
  expect_error(error_of([&] { meshes[0]->post(topic, Bytes(4096), -1, 50ms, nullptr); }),
               ErrorCode::kSystem, {"rank 1 is full"});
  EXPECT_GE(Clock::now() - start, 50ms);
  expect_error(
      error_of([&] { meshes[0]->post(topic, Bytes(4096), -1, kMeshTimeout, [] { return true; }); }),
      ErrorCode::kAborted, {"posting to rank 1"});
  std::atomic<int> asked{0};
  run_ranks(2, [&](int rank) {
    if (rank == 1) {
      while (asked.load() < 3) std::this_thread::yield();
      meshes[1]->restart(topic);
      EXPECT_EQ(take(*meshes[1], 0, topic).message, post_of(0, topic));
      return;
    }
    meshes[0]->post(topic, post_of(0, topic), -1, kMeshTimeout, [&] {
      ++asked;
      return false;
    });
  });
}

TEST(BootstrapMeshPosts, AWorldOfOnePostsToNobody) {
  test::MemoryStore store;
  const auto mesh = BootstrapMesh::connect(store, test::mesh_config(0, 1));
  EXPECT_FALSE(error_of([&] { mesh->post(1, Bytes{1}, -1); }).has_value());
}

}  // namespace
}  // namespace symm
