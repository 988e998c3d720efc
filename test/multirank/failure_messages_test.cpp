// What the errors of a failed group say on every rank: the first cause, whole and once, who is
// waited for and what is known of it, and the global ranks.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend/engine/communicator.hpp"
#include "backend/engine/host/mailbox_engine.hpp"
#include "symm_mem/bootstrap/peer_exchange.hpp"
#include "symm_mem/bootstrap/peer_frame.hpp"
#include "symm_mem/bootstrap/unix_socket.hpp"
#include "symm_mem/group/local_group.hpp"
#include "test/support/expect_error.hpp"
#include "test/support/file_store.hpp"
#include "test/support/forked_child.hpp"
#include "test/support/memory_store.hpp"
#include "test/support/rank_threads.hpp"
#include "test/support/temporary_directory.hpp"

namespace symm {
namespace {

using std::chrono::milliseconds;
using test::error_of;
using test::expect_error;

constexpr milliseconds kPatience{20'000};

std::vector<std::int64_t> global_ranks_of(int world_size) {
  std::vector<std::int64_t> ranks;
  for (int rank = 0; rank < world_size; ++rank) ranks.push_back(10 + rank);
  return ranks;
}

LocalGroupConfig group_config(const std::string& name, int rank, int world_size,
                              milliseconds timeout = kPatience) {
  return {.group_name = name,
          .rank = rank,
          .world_size = world_size,
          .global_ranks = global_ranks_of(world_size),
          .timeout = timeout,
          .payload = {}};
}

std::size_t occurrences(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

// A rank looks at the lower ranks first, so that each one here hears of it from the next.
TEST(FailureMessages, TheFirstCauseIsWholeHoweverManyRanksPassItOn) {
  constexpr int kWorld = 4;
  test::MemoryStore store;
  std::vector<std::shared_ptr<LocalGroup>> groups(kWorld);
  const std::string name(300, 'n');
  test::run_ranks(kWorld, [&](int rank) {
    groups[static_cast<std::size_t>(rank)] =
        LocalGroup::connect(store, group_config(name, rank, kWorld));
  });
  std::string cause = "all_reduce(float32, SUM, count 4, one_shot) seq 2: ";
  while (cause.size() < 5000) cause += "what happened; ";
  cause += "and the end";
  groups[3]->fail(Error(ErrorCode::kTimeout, groups[3]->prefix(), cause));
  for (const int rank : {2, 1, 0}) {
    LocalGroup& group = *groups[static_cast<std::size_t>(rank)];
    EXPECT_FALSE(group.poll("barrier seq 5"));
    EXPECT_EQ(group.failure().code(), ErrorCode::kTimeout);
    EXPECT_EQ(
        group.failure().what(),
        text_of(group.prefix(), "barrier seq 5: ", "rank 3 (global rank 13) gave up: ", cause));
    EXPECT_EQ(occurrences(group.failure().what(), name), 1u);
  }
}

CommunicatorConfig two_ranks(int rank) {
  CommunicatorConfig config;
  config.group_name = "test";
  config.rank = rank;
  config.world_size = 2;
  config.global_ranks = global_ranks_of(2);
  config.timeout = kPatience;
  config.algorithm = Algorithm::kTwoShot;
  return config;
}

void reduce(Communicator& communicator, milliseconds timeout) {
  std::vector<float> data(1000);
  CollectiveArgs args;
  args.kind = CollectiveKind::kAllReduce;
  args.dtype = Dtype::kFloat32;
  args.count = data.size();
  args.input = args.output = data.data();
  communicator.run(args, timeout);
}

// In the second of two steps a rank waits for the share that the other one has reduced.
TEST(FailureMessages, ATimeOutNamesAStoppedRankThatHasArrived) {
  const test::TemporaryDirectory directory;
  test::FileStore store(directory.path());
  test::ForkedChild other([&] {
    Communicator communicator(store, two_ranks(1));
    reduce(communicator, kPatience);
    std::thread caller([&] { reduce(communicator, kPatience); });
    while (communicator.next_sequence() < 3) std::this_thread::yield();
    std::this_thread::sleep_for(milliseconds(100));
    ::kill(::getpid(), SIGSTOP);
    caller.join();
    return 1;
  });
  Communicator communicator(store, two_ranks(0));
  reduce(communicator, kPatience);
  other.await_stop();
  expect_error(
      error_of([&] { reduce(communicator, milliseconds(300)); }), ErrorCode::kTimeout,
      {"seq 2: Timed out after ", "waiting for rank 1 (global rank 11), which is in the call",
       text_of("; arrived: rank 1 (global rank 11) (its process, pid ", other.pid(),
               ", is stopped); not arrived: none")});
}

TEST(FailureMessages, ATimeOutOfAMessageSaysThatThePeerIsStopped) {
  const test::TemporaryDirectory directory;
  test::FileStore store(directory.path());
  test::ForkedChild other([&] {
    Communicator communicator(store, two_ranks(1));
    communicator.run(CollectiveArgs{});
    ::kill(::getpid(), SIGSTOP);
    return 1;
  });
  Communicator communicator(store, two_ranks(0));
  communicator.run(CollectiveArgs{});
  other.await_stop();
  std::vector<std::byte> data(1000);
  MailboxEngine& messages = communicator.point_to_point();
  expect_error(
      error_of([&] {
        messages.wait(
            *messages.start({{data.data(), data.size(), 3, 1, false}, {}}, milliseconds(200)), {});
      }),
      ErrorCode::kTimeout,
      {"recv from rank 1 (global rank 11)", "tag 3", "Timed out after",
       text_of("(its process, pid ", other.pid(), ", is stopped)"),
       "0 of the 1000 bytes were moved"});
}

TEST(FailureMessages, SetUpNamesGlobalRanks) {
  test::MemoryStore store;
  const auto absent = test::errors_of_ranks(2, [&](int rank) {
    LocalGroup::connect(store, group_config("test", rank, 4, milliseconds(100)));
  });
  expect_error(absent[0], ErrorCode::kTimeout,
               {"group 'test', rank 0 (global rank 10): ranks 2 (global rank 12), 3 (global rank "
                "13) did not join the group of 4 ranks"});
  // A record of another size of group.
  test::MemoryStore uneven;
  const auto mismatch = test::errors_of_ranks(2, [&](int rank) {
    LocalGroup::connect(uneven, group_config("test", rank, 2 + rank, milliseconds(500)));
  });
  expect_error(mismatch[0], ErrorCode::kMismatch,
               {"group 'test', rank 0 (global rank 10): ", "for rank 1 (global rank 11): "});
}

TEST(FailureMessages, MemoryOfAGroupNamesGlobalRanks) {
  test::MemoryStore store;
  std::vector<std::shared_ptr<LocalGroup>> groups(2);
  test::run_ranks(2, [&](int rank) {
    groups[static_cast<std::size_t>(rank)] =
        LocalGroup::connect(store, group_config("test", rank, 2));
  });
  expect_error(error_of([&] {
                 groups[0]->share(LocalSegment::allocate(host_runtime(), 8),
                                  Deadline(milliseconds(50)));
               }),
               ErrorCode::kTimeout,
               {"group 'test', rank 0 (global rank 10): ", "rank 1 (global rank 11) did not come"});
}

TEST(FailureMessages, ArgumentsAreRefusedByNamesOfGlobalRanksToo) {
  test::MemoryStore store;
  const auto errors = test::errors_of_ranks(2, [&](int rank) {
    Communicator communicator(store, two_ranks(rank));
    CollectiveArgs args;
    args.kind = CollectiveKind::kBroadcast;
    args.root = 2;
    communicator.run(args);
  });
  expect_error(errors[1], ErrorCode::kInvalidArgument,
               {"broadcast on rank 1 (global rank 11): root: expected a group rank from 0 to 1"});
}

TEST(FailureMessages, SegmentsThatDoNotFitAreThoseOfGlobalRanksToo) {
  test::MemoryStore store;
  const auto errors = test::errors_of_ranks(2, [&](int rank) {
    const auto group = LocalGroup::connect(store, group_config("test", rank, 2));
    const std::size_t bytes = rank == 0 ? 4096 : 8192;
    group->share(LocalSegment::allocate(host_runtime(), bytes), Deadline(kPatience));
  });
  for (const auto& error : errors) {
    expect_error(error, ErrorCode::kMismatch,
                 {"rank 0 (global rank 10) brought 4096 bytes",
                  "rank 1 (global rank 11) brought 8192 bytes"});
  }
}

TEST(FailureMessages, ARankWithoutRoomForItsGroupTellsTheOthers) {
  test::MemoryStore store;
  const auto errors = test::errors_of_ranks(2, [&](int rank) {
    LocalGroupConfig config = group_config("test", rank, 2);
    if (rank == 1) config.later_bytes = std::size_t{1} << 60;
    LocalGroup::connect(store, config);
  });
  expect_error(errors[1], ErrorCode::kSystem, {"of a group of 2 ranks", "bytes available"});
  expect_error(errors[0], ErrorCode::kSystem,
               {"rank 0 (global rank 10): rank 1 (global rank 11) failed: ", "bytes available"});
}

// `rank` gives up its set-up because of `error`, and the next lower one because of its goodbye.
void pass_goodbye_on(int rank, const Error& error) {
  const RankNames names(global_ranks_of(4));
  if (rank == 0) {
    EXPECT_EQ(error.code(), ErrorCode::kSecurity);
    EXPECT_STREQ(error.what(),
                 "group 'test', rank 0 (global rank 10): rank 3 (global rank 13) failed: a cause");
    return;
  }
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
  std::vector<GuardedDescriptor> link;
  for (const int end : ends) link.emplace_back(FileDescriptor(end));
  say_goodbye(mesh_prefix("test", names, rank), rank, {link.data(), 1}, error);
  const auto frame = parse_exchange(receive_frame(link[1].get(), ExchangeFrame::kMaxBytes).bytes);
  ASSERT_TRUE(frame.has_value());
  try {
    throw_if_goodbye(mesh_prefix("test", names, rank - 1), names, rank, frame->message);
    FAIL() << "no goodbye";
  } catch (const Error& heard) {
    pass_goodbye_on(rank - 1, heard);
  }
}

TEST(FailureMessages, AGoodbyeKeepsItsOriginOverAllHops) {
  const std::string prefix = mesh_prefix("test", RankNames(global_ranks_of(4)), 3);
  pass_goodbye_on(3, Error(ErrorCode::kSecurity, prefix, "a cause"));
}

}  // namespace
}  // namespace symm
