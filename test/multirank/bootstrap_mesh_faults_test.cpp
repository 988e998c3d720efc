// Strangers, hostile records and ranks that die while a mesh is set up. The test plays the odd one
// out with the same sockets that the mesh uses.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/core/error.hpp"
#include "symm_mem/bootstrap/bootstrap_mesh.hpp"
#include "symm_mem/bootstrap/peer_frame.hpp"
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
using Bytes = std::vector<std::uint8_t>;
using Clock = std::chrono::steady_clock;

std::string key_of(int rank) { return "symm/peer/" + std::to_string(rank); }

// Changes what every rank reads of `rank`.
MemoryStore::Tamper change_record(int rank, const std::function<void(PeerRecord&)>& change) {
  return [=](const std::string& key, Bytes& value) {
    if (key != key_of(rank)) return;
    PeerRecord record = parse_peer_record(value, rank);
    change(record);
    value = encode_peer_record(record);
  };
}

std::vector<std::optional<Error>> connect_errors(KeyValueStore& store, int world_size,
                                                 std::chrono::milliseconds timeout) {
  return errors_of_ranks(world_size, [&](int rank) {
    BootstrapMesh::connect(store, mesh_config(rank, world_size, timeout));
  });
}

// A rank that the test plays: a real listener and a record that names it.
struct PlayedRank {
  PlayedRank(int rank, int world_size) : path(directory.path() + "/s") {
    listener = listen_on(path, 8);
    record.rank = static_cast<std::uint32_t>(rank);
    record.world_size = static_cast<std::uint32_t>(world_size);
    record.process.pid = 4242;
    record.published = test::published_now();
    record.uid = ::geteuid();
    record.mount_namespace = mount_namespace_id();
    record.nonce = random_nonce();
    record.boot_id = host_boot_id();
    record.socket_path = path;
  }
  void publish(KeyValueStore& store) const {
    store.set(key_of(static_cast<int>(record.rank)), encode_peer_record(record));
  }

  test::TemporaryDirectory directory;
  std::string path;
  GuardedDescriptor listener;
  PeerRecord record;
};

PeerRecord record_of(KeyValueStore& store, int rank) {
  return parse_peer_record(test::wait_for_key(store, key_of(rank)), rank);
}

GuardedDescriptor connect_and_say(const PeerRecord& record, const Bytes& bytes) {
  ConnectResult result = connect_to(record.socket_path);
  EXPECT_EQ(result.error, 0);
  if (!bytes.empty()) {
    EXPECT_EQ(send_frame(result.socket.get(), bytes), SocketStatus::kDone);
  }
  return std::move(result.socket);
}

ReceivedFrame wait_for_frame(int socket) {
  pollfd entry{socket, POLLIN, 0};
  EXPECT_EQ(::poll(&entry, 1, static_cast<int>(kMeshTimeout.count())), 1);
  return receive_frame(socket, ExchangeFrame::kMaxBytes);
}

TEST(BootstrapMeshFaults, MissingRanksAreNamed) {
  for (const int present : {1, 2}) {
    MemoryStore store;
    const auto start = Clock::now();
    const auto errors = errors_of_ranks(
        present, [&](int rank) { BootstrapMesh::connect(store, mesh_config(rank, 3, 150ms)); });
    const std::string missing = present == 1 ? "ranks 1, 2 did" : "rank 2 did";
    for (const auto& error : errors) {
      expect_error(error, ErrorCode::kTimeout, {"test", missing, "150 ms"});
    }
    EXPECT_GE(Clock::now() - start, 150ms);
    EXPECT_LT(Clock::now() - start, 1150ms);
  }
}

TEST(BootstrapMeshFaults, StrangersAreRefusedAndDisturbNobody) {
  MemoryStore store;
  constexpr int kWorldSize = 2;
  ::testing::internal::CaptureStderr();
  std::vector<std::unique_ptr<BootstrapMesh>> meshes(kWorldSize);
  const auto join = [&](int rank) {
    meshes[static_cast<std::size_t>(rank)] =
        BootstrapMesh::connect(store, mesh_config(rank, kWorldSize));
  };
  std::thread first([&] { join(0); });
  // Rank 1 comes after the strangers, so rank 0 has to deal with all of them before it.
  const PeerRecord record = record_of(store, 0);
  Nonce wrong = record.nonce;
  wrong[15] ^= 1;
  std::vector<GuardedDescriptor> refused;
  refused.push_back(connect_and_say(record, {1, 2, 3}));
  refused.push_back(connect_and_say(record, Bytes(5000, 0x41)));
  refused.push_back(connect_and_say(record, encode_hello({1, wrong})));
  refused.push_back(connect_and_say(record, encode_hello({0, record.nonce})));
  refused.push_back(connect_and_say(record, encode_hello({2, record.nonce})));
  refused.push_back(connect_and_say(record, encode_hello({0xffffffff, record.nonce})));
  ConnectResult with_descriptor = connect_to(record.socket_path);
  send_frame(with_descriptor.socket.get(), encode_hello({1, record.nonce}), 0);
  refused.push_back(std::move(with_descriptor.socket));
  const GuardedDescriptor silent = connect_and_say(record, {});
  connect_and_say(record, {}).reset();
  std::thread second([&] { join(1); });
  first.join();
  second.join();
  const std::string log = ::testing::internal::GetCapturedStderr();
  for (std::size_t i = 0; i < refused.size(); ++i) {
    EXPECT_TRUE(is_hung_up(refused[i].get())) << i;
    EXPECT_EQ(receive_frame(refused[i].get(), 64).status, SocketStatus::kClosed) << i;
  }
  EXPECT_TRUE(is_hung_up(silent.get()));
  std::size_t lines = 0;
  for (std::size_t at = log.find("symm: refused a connection: "); at != std::string::npos;
       at = log.find("symm: refused a connection: ", at + 1)) {
    ++lines;
  }
  EXPECT_EQ(lines, refused.size()) << log;
  EXPECT_NE(log.find("nonce"), std::string::npos);
  errors_of_ranks(kWorldSize, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    const Bytes mine = {static_cast<std::uint8_t>(70 + rank)};
    const auto received = meshes[r]->exchange(0, mine, -1, kMeshTimeout, nullptr);
    EXPECT_EQ(received[1 - r].message, Bytes{static_cast<std::uint8_t>(71 - rank)});
  });
}

TEST(BootstrapMeshFaults, ManySilentStrangersDoNotKeepTheRanksOut) {
  MemoryStore store;
  ::testing::internal::CaptureStderr();
  std::vector<std::optional<Error>> errors(2);
  std::thread first([&] {
    errors[0] =
        test::error_of([&] { BootstrapMesh::connect(store, mesh_config(0, 2, kMeshTimeout)); });
  });
  const PeerRecord record = record_of(store, 0);
  std::vector<GuardedDescriptor> silent(100);
  for (GuardedDescriptor& stranger : silent) stranger = connect_and_say(record, {});
  errors[1] =
      test::error_of([&] { BootstrapMesh::connect(store, mesh_config(1, 2, kMeshTimeout)); });
  first.join();
  ::testing::internal::GetCapturedStderr();
  EXPECT_FALSE(errors[0].has_value()) << errors[0]->what();
  EXPECT_FALSE(errors[1].has_value()) << errors[1]->what();
}

TEST(BootstrapMeshFaults, SecondConnectionOfARankIsRefused) {
  MemoryStore store;
  ::testing::internal::CaptureStderr();
  std::optional<Error> zero;
  std::thread first(
      [&] { zero = test::error_of([&] { BootstrapMesh::connect(store, mesh_config(0, 2)); }); });
  const PeerRecord record = record_of(store, 0);
  GuardedDescriptor impostor = connect_and_say(record, encode_hello({1, record.nonce}));
  const GuardedDescriptor duplicate = connect_and_say(record, encode_hello({1, record.nonce}));
  PlayedRank one(1, 2);
  one.publish(store);
  const ReceivedFrame answer = wait_for_frame(impostor.get());
  const auto hello = parse_hello(answer.bytes);
  ASSERT_TRUE(hello.has_value());
  EXPECT_EQ(hello->rank, 0u);
  EXPECT_EQ(hello->nonce, one.record.nonce);
  EXPECT_EQ(wait_for_frame(duplicate.get()).status, SocketStatus::kClosed);
  impostor.reset();
  first.join();
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("rank 1 is connected already"), std::string::npos) << log;
  expect_error(zero, ErrorCode::kPeerLost, {"rank 1"});
}

TEST(BootstrapMeshFaults, ListenerWithoutOurNonceIsRefused) {
  MemoryStore store;
  PlayedRank zero(0, 2);
  zero.publish(store);
  std::optional<Error> one;
  std::thread joining(
      [&] { one = test::error_of([&] { BootstrapMesh::connect(store, mesh_config(1, 2)); }); });
  pollfd entry{zero.listener.get(), POLLIN, 0};
  ASSERT_EQ(::poll(&entry, 1, static_cast<int>(kMeshTimeout.count())), 1);
  GuardedDescriptor accepted = accept_waiting(zero.listener.get());
  const auto hello = parse_hello(wait_for_frame(accepted.get()).bytes);
  ASSERT_TRUE(hello.has_value());
  EXPECT_EQ(hello->rank, 1u);
  EXPECT_EQ(hello->nonce, zero.record.nonce);
  Nonce wrong = record_of(store, 1).nonce;
  wrong[0] ^= 0x80;
  send_frame(accepted.get(), encode_hello({0, wrong}));
  joining.join();
  expect_error(one, ErrorCode::kSecurity, {"rank 0", "nonce"});
}

TEST(BootstrapMeshFaults, RankOnAnotherHostIsNamedByAll) {
  MemoryStore store(change_record(
      1, [](PeerRecord& record) { record.boot_id = "00000000-1111-2222-3333-444444444444"; }));
  for (const auto& error : connect_errors(store, 3, kMeshTimeout)) {
    expect_error(error, ErrorCode::kUnsupported,
                 {"rank 1 runs on another host", "host ids", "no engine between hosts"});
  }
}

TEST(BootstrapMeshFaults, RankOfAnotherUserIsNamedByAll) {
  MemoryStore store(change_record(2, [](PeerRecord& record) { record.uid += 1; }));
  for (const auto& error : connect_errors(store, 3, kMeshTimeout)) {
    expect_error(error, ErrorCode::kSecurity, {"rank 2 runs as user"});
  }
}

TEST(BootstrapMeshFaults, UnknownBootIdsLeaveTheProofToTheConnection) {
  MemoryStore store(change_record(1, [](PeerRecord& record) { record.boot_id.clear(); }));
  for (const auto& error : connect_errors(store, 3, kMeshTimeout)) EXPECT_FALSE(error.has_value());
}

TEST(BootstrapMeshFaults, SocketInAnotherMountNamespaceSaysWhatIsMissing) {
  MemoryStore store(change_record(0, [](PeerRecord& record) {
    record.mount_namespace += 1;
    record.socket_path = "/tmp/symm-elsewhere/s";
  }));
  const auto errors = connect_errors(store, 2, kMeshTimeout);
  expect_error(errors[1], ErrorCode::kUnsupported,
               {"rank 0", "/tmp/symm-elsewhere/s", "does not exist here", "TMPDIR"});
  ASSERT_TRUE(errors[0].has_value());
}

TEST(BootstrapMeshFaults, GarbageInTheStoreIsRefused) {
  MemoryStore store([](const std::string& key, Bytes& value) {
    if (key == key_of(1)) value.assign(100000, 0xff);
  });
  for (const auto& error : connect_errors(store, 2, kMeshTimeout)) {
    expect_error(error, ErrorCode::kSecurity, {"rank 1", "100000 bytes"});
  }
}

TEST(BootstrapMeshFaults, OverwrittenRecordIsNoticedByItsOwner) {
  MemoryStore store(change_record(1, [](PeerRecord& record) { record.nonce[3] ^= 4; }));
  const auto start = Clock::now();
  const auto errors = connect_errors(store, 2, kMeshTimeout);
  expect_error(errors[1], ErrorCode::kSecurity, {"rank 1", "no longer holds"});
  ASSERT_TRUE(errors[0].has_value()) << "rank 0 notices that rank 1 gave up";
  EXPECT_LT(Clock::now() - start, 2s);
}

TEST(BootstrapMeshFaults, RankThatDiedAfterPublishingIsLost) {
  for (const int dead : {0, 1}) {
    MemoryStore store;
    PlayedRank played(dead, 2);
    played.publish(store);
    played.listener.reset();  // the file stays, as after SIGKILL
    const auto start = Clock::now();
    const auto error =
        test::error_of([&] { BootstrapMesh::connect(store, mesh_config(1 - dead, 2)); });
    expect_error(error, ErrorCode::kPeerLost, {"rank " + std::to_string(dead), "4242"});
    EXPECT_LT(Clock::now() - start, 1s);
  }
}

TEST(BootstrapMeshFaults, RankThatDiesAfterConnectingIsLost) {
  MemoryStore store;
  PlayedRank one(1, 3);
  PlayedRank two(2, 3);  // never connects
  one.publish(store);
  two.publish(store);
  std::optional<Error> zero;
  std::thread first(
      [&] { zero = test::error_of([&] { BootstrapMesh::connect(store, mesh_config(0, 3)); }); });
  const PeerRecord record = record_of(store, 0);
  GuardedDescriptor link = connect_and_say(record, encode_hello({1, record.nonce}));
  EXPECT_TRUE(parse_hello(wait_for_frame(link.get()).bytes).has_value());
  const auto start = Clock::now();
  link.reset();
  first.join();
  EXPECT_LT(Clock::now() - start, 1s);
  expect_error(zero, ErrorCode::kPeerLost, {"rank 1"});
}

TEST(BootstrapMeshFaults, RankThatConnectsAndStopsIsATimeoutThatNamesIt) {
  MemoryStore store;
  PlayedRank one(1, 2);
  one.publish(store);
  std::optional<Error> zero;
  const auto start = Clock::now();
  std::thread first([&] {
    zero = test::error_of([&] { BootstrapMesh::connect(store, mesh_config(0, 2, 300ms)); });
  });
  const PeerRecord record = record_of(store, 0);
  const GuardedDescriptor link = connect_and_say(record, encode_hello({1, record.nonce}));
  first.join();
  EXPECT_GE(Clock::now() - start, 300ms);
  EXPECT_LT(Clock::now() - start, 1300ms);
  expect_error(zero, ErrorCode::kTimeout, {"rank 1"});
}

TEST(BootstrapMeshFaults, AFailureIsPassedOnWithItsCause) {
  // Rank 2 is dead from the start. Whoever sees it first tells the other.
  MemoryStore store;
  PlayedRank two(2, 3);
  two.publish(store);
  two.listener.reset();
  const auto errors =
      errors_of_ranks(2, [&](int rank) { BootstrapMesh::connect(store, mesh_config(rank, 3)); });
  for (const auto& error : errors) expect_error(error, ErrorCode::kPeerLost, {"rank 2"});
}

TEST(BootstrapMeshFaults, ARankThatLeavesTellsThoseInTheNextRound) {
  auto meshes = test::connect_all(3);
  meshes[2]->leave(Error(ErrorCode::kPeerLost, "rank 0 died"));
  meshes[2].reset();
  const auto error =
      test::error_of([&] { meshes[1]->exchange(1, Bytes{1}, -1, kMeshTimeout, {}); });
  expect_error(error, ErrorCode::kPeerLost, {"rank 1: rank 2 failed: rank 0 died"});
  // Rank 0 hears it from whoever is first, with the rank where it arose.
  meshes[1]->leave(*error);
  meshes[1].reset();
  expect_error(test::error_of([&] { meshes[0]->exchange(1, Bytes{1}, -1, kMeshTimeout, {}); }),
               ErrorCode::kPeerLost, {"rank 0: rank 2 failed: rank 0 died"});
}

TEST(BootstrapMeshFaults, ProcessKilledDuringSetUpIsLost) {
  const test::TemporaryDirectory directory;
  test::FileStore store(directory.path());
  PlayedRank two(2, 3);  // keeps the others in set-up
  two.publish(store);
  test::ForkedChild doomed([&] {
    BootstrapMesh::connect(store, mesh_config(1, 3));
    return 1;
  });
  // Connected to as the higher rank, rank 1 has been through the Store and is setting up.
  const PeerRecord record = record_of(store, 1);
  std::optional<Error> zero;
  std::thread first(
      [&] { zero = test::error_of([&] { BootstrapMesh::connect(store, mesh_config(0, 3)); }); });
  const GuardedDescriptor link = connect_and_say(record, encode_hello({2, record.nonce}));
  EXPECT_TRUE(parse_hello(wait_for_frame(link.get()).bytes).has_value());
  const auto start = Clock::now();
  doomed.kill();
  first.join();
  EXPECT_LT(Clock::now() - start, 1s);
  expect_error(zero, ErrorCode::kPeerLost, {"rank 1"});
}

TEST(BootstrapMeshFaults, DirectoryOfAKilledProcessIsRemovedByTheNextOne) {
  const test::TemporaryDirectory directory;
  const test::TemporaryDirectory keys;
  ASSERT_EQ(::setenv("TMPDIR", directory.path().c_str(), 1), 0);
  test::FileStore store(keys.path());
  const auto wait_for_others = [&](int rank) {
    return [&store, rank] {
      BootstrapMesh::connect(store, mesh_config(rank, 3));
      return 1;
    };
  };
  test::ForkedChild live(wait_for_others(1));
  test::ForkedChild doomed(wait_for_others(2));
  const PeerRecord live_record = record_of(store, 1);
  const PeerRecord doomed_record = record_of(store, 2);
  doomed.kill();
  EXPECT_EQ(doomed.wait(), -SIGKILL);
  EXPECT_EQ(directory.entries(), 2);
  // As that of a live process on another host, whose lock does not count here.
  std::filesystem::path elsewhere = std::filesystem::path(doomed_record.socket_path).parent_path();
  std::string name = elsewhere.filename().string();
  char& digit = name.at(std::string("symm-mesh-").size());
  digit = digit == '0' ? '1' : '0';
  elsewhere.replace_filename(name);
  ASSERT_EQ(::mkdir(elsewhere.c_str(), 0700), 0);
  test::ForkedChild next([] {
    connect_errors(*std::make_unique<MemoryStore>(), 2, kMeshTimeout);
    return 0;
  });
  EXPECT_EQ(next.wait(), 0);
  ::unsetenv("TMPDIR");
  EXPECT_EQ(::access(doomed_record.socket_path.c_str(), F_OK), -1);
  EXPECT_EQ(::access(live_record.socket_path.c_str(), F_OK), 0) << "its owner lives";
  EXPECT_TRUE(std::filesystem::exists(elsewhere));
  EXPECT_EQ(directory.entries(), 2);
}

TEST(BootstrapMeshFaults, MalformedAndSurplusFramesAreRefusedInExchanges) {
  MemoryStore store;
  PlayedRank one(1, 2);
  one.publish(store);
  std::unique_ptr<BootstrapMesh> mesh;
  std::thread first([&] { mesh = BootstrapMesh::connect(store, mesh_config(0, 2)); });
  const PeerRecord record = record_of(store, 0);
  const GuardedDescriptor link = connect_and_say(record, encode_hello({1, record.nonce}));
  send_frame(link.get(), encode_exchange(~std::uint64_t{0}, false, Bytes{1}));
  first.join();
  ASSERT_TRUE(mesh);
  const auto exchange_error = [&] {
    return test::error_of([&] { mesh->exchange(7, Bytes{1}, -1, kMeshTimeout, nullptr); });
  };
  const Bytes good = encode_exchange(7, false, Bytes{1, 2});
  send_frame(link.get(), Bytes{1, 2, 3});
  expect_error(exchange_error(), ErrorCode::kSecurity, {"rank 1", "malformed"});
  send_frame(link.get(), good, 0);
  expect_error(exchange_error(), ErrorCode::kSecurity, {"rank 1", "malformed"});
  send_frame(link.get(), encode_exchange(7, true, Bytes{1, 2}));
  expect_error(exchange_error(), ErrorCode::kSecurity, {"rank 1", "malformed"});
  send_frame(link.get(), Bytes(6000, 1));
  expect_error(exchange_error(), ErrorCode::kSecurity, {"rank 1", "more than"});
  EXPECT_FALSE(mesh->hung_up(1)) << "odd bytes are no hang-up";
  send_frame(link.get(), good);
  EXPECT_FALSE(mesh->hung_up(1)) << "unread bytes are no hang-up";
  EXPECT_EQ(mesh->exchange(7, Bytes{1}, -1, kMeshTimeout, nullptr)[1].message, (Bytes{1, 2}));
}

}  // namespace
}  // namespace symm
