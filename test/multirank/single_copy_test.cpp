// Messages and all_to_all that read the memory of the peers' processes: who permits it, that it is
// done, what is read after the owner gave up, and what a death in the middle does.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "backend/engine/communicator.hpp"
#include "backend/engine/host/mailbox_engine.hpp"
#include "kernels/cpu/host_collectives.hpp"
#include "test/support/denied_calls.hpp"
#include "test/support/environment.hpp"
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
using test::ForkedChild;
using test::ScopedVariable;

constexpr milliseconds kPatience{20'000};
constexpr std::size_t kLarge = 1'500'000;  // bytes

CommunicatorConfig config_of(int rank, int world, milliseconds timeout = kPatience) {
  CommunicatorConfig config;
  config.group_name = "test";
  config.rank = rank;
  config.world_size = world;
  config.timeout = timeout;
  return config;
}

std::vector<unsigned char> pattern(std::size_t bytes, int sender, int receiver) {
  std::vector<unsigned char> data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    data[i] = static_cast<unsigned char>(i * 7 + i / 251 + static_cast<std::size_t>(sender) * 31 +
                                         static_cast<std::size_t>(receiver) * 5);
  }
  return data;
}

void transfer(Communicator& communicator, std::vector<unsigned char>& data, int peer, bool is_send,
              milliseconds timeout = {}) {
  MailboxEngine& engine = communicator.point_to_point();
  const TransferOp op{data.data(), data.size(), 3, peer, is_send, Dtype::kUInt8};
  engine.wait(*engine.start({op, {}}, timeout), {});
}

bool receives(Communicator& communicator, std::size_t bytes, int sender) {
  std::vector<unsigned char> data(bytes);
  transfer(communicator, data, sender, false);
  return data == pattern(bytes, sender, communicator.rank());
}

// Sends to the next rank and receives from the one before; every rank does.
bool ring(Communicator& communicator, std::size_t bytes) {
  const int me = communicator.rank();
  const int world = communicator.world_size();
  const int next = (me + 1) % world;
  std::vector<unsigned char> data = pattern(bytes, me, next);
  MailboxEngine& engine = communicator.point_to_point();
  const auto send = engine.start({{data.data(), bytes, 3, next, true, Dtype::kUInt8}, {}}, {});
  const bool right = receives(communicator, bytes, (me + world - 1) % world);
  engine.wait(*send, {});
  return right;
}

// Shares of different sizes, some of them empty; `one_sender`: only rank 0 has any.
bool exchanges(Communicator& communicator, std::size_t most, bool one_sender = false) {
  const int me = communicator.rank();
  const int world = communicator.world_size();
  const auto size = [&](int from, int to) {
    return from > 0 && one_sender ? 0 : most * static_cast<std::size_t>((from + 2 * to) % 3) / 2;
  };
  std::vector<std::vector<unsigned char>> given;
  std::vector<std::vector<unsigned char>> got;
  std::vector<Part> inputs;
  std::vector<Part> outputs;
  for (int peer = 0; peer < world; ++peer) {
    given.push_back(pattern(size(me, peer), me, peer));
    got.emplace_back(size(peer, me));
    inputs.push_back({given.back().data(), given.back().size()});
    outputs.push_back({got.back().data(), got.back().size()});
  }
  CollectiveArgs args;
  args.kind = CollectiveKind::kAllToAll;
  args.input_parts = inputs;
  args.output_parts = outputs;
  communicator.run(args);
  for (int peer = 0; peer < world; ++peer) {
    const auto& from = got[static_cast<std::size_t>(peer)];
    if (from != pattern(from.size(), peer, me)) return false;
  }
  return true;
}

bool all_is_right(Communicator& communicator) {
  for (const std::size_t bytes : {std::size_t{481}, std::size_t{70'001}, kLarge,
                                  std::size_t{kMostRead}, std::size_t{kMostRead} + 1}) {
    if (!ring(communicator, bytes)) return false;
  }
  for (const std::size_t most :
       {std::size_t{1000}, std::size_t{90'000}, kMostReadShare, kMostReadShare + 1000}) {
    if (!exchanges(communicator, most) || !exchanges(communicator, most)) return false;
  }
  return true;
}

// Runs `body` on two ranks, rank 1 in a forked child, whose body's result must be true.
void on_two_processes(
    const std::function<bool(Communicator& communicator)>& body,
    const std::function<void()>& before_rank_1 = [] {}) {
  const test::TemporaryDirectory directory;
  test::FileStore store(directory.path());
  ForkedChild other([&] {
    before_rank_1();
    Communicator communicator(store, config_of(1, 2));
    const bool right = body(communicator);
    communicator.run(CollectiveArgs{});
    return right ? 0 : 1;
  });
  Communicator communicator(store, config_of(0, 2));
  EXPECT_TRUE(body(communicator));
  communicator.run(CollectiveArgs{});
  EXPECT_EQ(other.wait(), 0);
}

TEST(SingleCopy, RanksThatAreThreadsGetTheRightData) {
  for (const char* const choice : {"0", "1"}) {
    const ScopedVariable variable("SYMM_SINGLE_COPY", choice);
    test::MemoryStore store;
    test::run_ranks(3, [&](int rank) {
      Communicator communicator(store, config_of(rank, 3));
      EXPECT_TRUE(all_is_right(communicator));
      communicator.run(CollectiveArgs{});
    });
  }
}

TEST(SingleCopy, RanksThatAreProcessesGetTheRightData) {
  for (const char* const choice : {"0", "1"}) {
    const ScopedVariable variable("SYMM_SINGLE_COPY", choice);
    on_two_processes(all_is_right);
  }
}

// Nobody reads where nobody asks for it, nor where a rank forbids it.
TEST(SingleCopy, WhereItIsNotDemandedARefusalIsNotMet) {
  for (const char* const choice : {"auto", "0"}) {
    const ScopedVariable variable("SYMM_SINGLE_COPY", choice);
    on_two_processes(all_is_right, [choice] {
      test::deny_process_reads(true);
      if (*choice == '0') setenv("SYMM_SINGLE_COPY", "1", 1);
    });
  }
}

TEST(SingleCopy, WhereItIsDemandedARefusalNamesTheRanksOnAll) {
  const ScopedVariable variable("SYMM_SINGLE_COPY", "1");
  const test::TemporaryDirectory directory;
  test::FileStore store(directory.path());
  const auto is_refused = [&](int rank) {
    const auto error = error_of([&] { Communicator(store, config_of(rank, 2)); });
    expect_error(error, ErrorCode::kUnsupported,
                 {"SYMM_SINGLE_COPY=1 on rank 0", "rank 1 cannot read the memory of rank 0",
                  "Operation not permitted"});
    return !testing::Test::HasFailure();
  };
  ForkedChild other([&] {
    test::deny_process_reads();
    return is_refused(1) ? 0 : 1;
  });
  EXPECT_TRUE(is_refused(0));
  EXPECT_EQ(other.wait(), 0);
}

// How the receiving rank 1 ends where a read of its peer's memory ends it.
int end_of_reader(const char* choice, const std::function<void(Communicator&)>& call) {
  const ScopedVariable variable("SYMM_SINGLE_COPY", choice);
  const test::TemporaryDirectory directory;
  test::FileStore store(directory.path());
  ForkedChild reader([&] {
    Communicator communicator(store, config_of(1, 2));
    test::deny_process_reads(true);
    call(communicator);
    communicator.run(CollectiveArgs{});
    return 0;
  });
  Communicator communicator(store, config_of(0, 2));
  const auto error = error_of([&] {
    call(communicator);
    communicator.run(CollectiveArgs{});
  });
  const int end = reader.wait();
  EXPECT_EQ(error.has_value(), end != 0);
  if (error) expect_error(error, ErrorCode::kPeerLost, {"rank 1 died"});
  return end;
}

TEST(SingleCopy, IsDoneWhereItIsAskedFor) {
  const auto message = [](Communicator& communicator) {
    std::vector<unsigned char> data(kLarge);
    transfer(communicator, data, 1 - communicator.rank(), communicator.rank() == 0);
  };
  const auto exchange = [](Communicator& communicator) { exchanges(communicator, kLarge); };
  for (const auto& call : std::vector<std::function<void(Communicator&)>>{message, exchange}) {
    EXPECT_EQ(end_of_reader("1", call), -SIGSYS);
    EXPECT_EQ(end_of_reader("auto", call), 0);
    EXPECT_EQ(end_of_reader("0", call), 0);
  }
}

// Memory that cannot be read although the probe could be: the message is streamed, an all_to_all,
// whose other ranks are past that choice, fails and names the rank.
TEST(SingleCopy, AReadThatIsRefusedLaterLosesNothingSilently) {
  const ScopedVariable variable("SYMM_SINGLE_COPY", "1");
  const test::TemporaryDirectory directory;
  test::FileStore store(directory.path());
  const auto meets_refusal = [](Communicator& communicator) {
    const bool streamed = ring(communicator, kLarge);
    // Rank 1 cannot even try its own memory, so it would say that its shares cannot be read.
    const bool staged = exchanges(communicator, kLarge);
    const auto error = error_of([&] { exchanges(communicator, kLarge, true); });
    expect_error(error, ErrorCode::kSystem,
                 {"reading ", "of the memory of rank 0 failed: Operation not permitted"});
    return streamed && staged && !testing::Test::HasFailure();
  };
  ForkedChild other([&] {
    Communicator communicator(store, config_of(1, 2));
    test::deny_process_reads();
    return meets_refusal(communicator) ? 0 : 1;
  });
  Communicator communicator(store, config_of(0, 2));
  EXPECT_TRUE(meets_refusal(communicator));
  EXPECT_EQ(other.wait(), 0);
}

// The sender has raised, so that its memory is its user's again, before the receiver reads it.
TEST(SingleCopy, WhatIsReadAfterTheOwnerGaveUpIsNotPassedOn) {
  const ScopedVariable variable("SYMM_SINGLE_COPY", "1");
  test::MemoryStore store;
  std::barrier<> meeting(2);
  test::run_ranks(2, [&](int rank) {
    Communicator communicator(store, config_of(rank, 2));
    std::vector<unsigned char> data(kLarge, 1);
    meeting.arrive_and_wait();
    if (rank == 0) {
      const auto error =
          error_of([&] { transfer(communicator, data, 1, true, milliseconds(200)); });
      expect_error(error, ErrorCode::kTimeout, {"send to rank 1"});
      std::fill(data.begin(), data.end(), 2);
      meeting.arrive_and_wait();
    } else {
      meeting.arrive_and_wait();
      const auto error = error_of([&] { transfer(communicator, data, 0, false); });
      expect_error(error, ErrorCode::kTimeout, {"rank 0 gave up"});
    }
    meeting.arrive_and_wait();
  });
}

// The sender dies while rank 0 reads from it, at a time that differs from try to try.
TEST(SingleCopy, AnOwnerThatDiesIsNamedAndNothingWrongIsPassedOn) {
  const ScopedVariable variable("SYMM_SINGLE_COPY", "1");
  constexpr int kTries = 8;
  for (int number = 0; number < kTries; ++number) {
    const bool by_messages = number % 2 == 0;
    const test::TemporaryDirectory directory;
    test::FileStore store(directory.path());
    ForkedChild other([&] {
      Communicator communicator(store, config_of(1, 2));
      std::vector<unsigned char> data = pattern(kMostRead, 1, 0);
      while (true) {
        if (by_messages) {
          transfer(communicator, data, 0, true);
        } else {
          exchanges(communicator, kMostReadShare);
        }
      }
      return 1;
    });
    Communicator communicator(store, config_of(0, 2));
    std::thread killer([&] {
      std::this_thread::sleep_for(milliseconds(20) + std::chrono::microseconds(700 * number));
      other.kill();
    });
    bool right = true;
    const auto error = error_of([&] {
      while (right) {
        right = by_messages ? receives(communicator, kMostRead, 1)
                            : exchanges(communicator, kMostReadShare);
      }
    });
    killer.join();
    EXPECT_TRUE(right);
    expect_error(error, ErrorCode::kPeerLost, {"rank 1 died"});
  }
}

}  // namespace
}  // namespace symm
