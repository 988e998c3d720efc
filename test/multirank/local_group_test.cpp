// The ranks of a group on one host: metadata exchanges, and what ends them.
#include "symm_mem/group/local_group.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/core/error.hpp"
#include "symm_mem/process/file_descriptor.hpp"
#include "test/support/expect_error.hpp"
#include "test/support/local_groups.hpp"
#include "test/support/memory_store.hpp"
#include "test/support/mesh_ranks.hpp"
#include "test/support/rank_threads.hpp"

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
using Bytes = std::vector<std::uint8_t>;
using Purpose = LocalGroup::Purpose;

TEST(LocalGroup, EveryMetadataExchangeGivesEverybodysMessage) {
  constexpr int kWorld = 4;
  constexpr int kExchanges = 300;
  const Groups groups = connect_groups(kWorld);
  run_ranks(kWorld, [&](int rank) {
    for (int number = 1; number <= kExchanges; ++number) {
      const auto got = exchange(of(groups, rank), number);
      ASSERT_EQ(got.number, static_cast<std::uint64_t>(number));
      for (int peer = 0; peer < kWorld; ++peer) {
        ASSERT_EQ(got.messages[static_cast<std::size_t>(peer)], message_of(peer, number));
      }
    }
  });
}

TEST(LocalGroup, AMessageHasALargestSize) {
  const Groups groups = connect_groups(2);
  run_ranks(2, [&](int rank) {
    expect_error(
        test::error_of([&] {
          of(groups, rank).exchange_metadata(Purpose::kMessage, Bytes(4097), Deadline(kTimeout));
        }),
        ErrorCode::kInvalidArgument, {"4096", "4097"});
    const Bytes largest(4096, static_cast<std::uint8_t>(rank));
    const auto got =
        of(groups, rank).exchange_metadata(Purpose::kMessage, largest, Deadline(kTimeout));
    EXPECT_EQ(got.messages[1], Bytes(4096, 1));
  });
}

TEST(LocalGroup, RegionsAreSharedAndZeroAtTheStart) {
  MemoryStore store;
  Groups groups(2);
  run_ranks(2, [&](int rank) {
    LocalGroupConfig config = config_of(rank, 2);
    config.region_bytes = 10'000;
    config.payload = {static_cast<std::uint8_t>(7 + rank)};
    auto& group = groups[static_cast<std::size_t>(rank)];
    group = LocalGroup::connect(store, config);
    EXPECT_EQ(group->payload(1 - rank).front(), 8 - rank);
    for (std::size_t i = 0; i < config.region_bytes; ++i) {
      ASSERT_EQ(group->region(1 - rank)[i], std::byte{0});
    }
    exchange(*group, 1);
    group->region(rank)[9'999] = static_cast<std::byte>(1 + rank);
    exchange(*group, 2);
    EXPECT_EQ(group->region(1 - rank)[9'999], static_cast<std::byte>(2 - rank));
  });
}

TEST(LocalGroup, KnowsGlobalRanks) {
  const Groups groups = connect_groups(3);
  EXPECT_EQ(of(groups, 1).global_ranks(), (std::vector<int>{10, 11, 12}));
  EXPECT_EQ(of(groups, 1).rank_name(2), "rank 2 (global rank 12)");
}

TEST(LocalGroup, AGroupOfOneNeedsNobody) {
  MemoryStore store;
  const auto group = LocalGroup::connect(store, config_of(0, 1));
  EXPECT_EQ(exchange(*group, 1).messages[0], message_of(0, 1));
  EXPECT_EQ(group->share(LocalSegment::allocate(host_runtime(), 1), Deadline(1ms))->world_size(),
            1);
  EXPECT_EQ(group->region(0), nullptr);
}

TEST(LocalGroup, DifferentPurposesAreAnErrorOfAllAndTheGroupGoesOn) {
  const Groups groups = connect_groups(3);
  const auto errors = errors_of_ranks(3, [&](int rank) {
    exchange(of(groups, rank), 1, rank == 1 ? Purpose::kView : Purpose::kRendezvous);
  });
  for (const auto& error : errors) {
    expect_error(error, ErrorCode::kMismatch,
                 {"rank 0 (global rank 10) called rendezvous",
                  "rank 1 (global rank 11) called contiguous_view"});
  }
  run_ranks(3, [&](int rank) { exchange(of(groups, rank), 2); });
}

std::shared_ptr<Segment> share(LocalGroup& group, std::chrono::milliseconds timeout = kTimeout) {
  const auto local = LocalSegment::allocate(host_runtime(), 100);
  local->base()[0] = static_cast<std::byte>(group.rank() + 1);
  return group.share(local, Deadline(timeout));
}

void expect_sharing_works(const Groups& groups) {
  const int world = static_cast<int>(groups.size());
  run_ranks(world, [&](int rank) {
    const auto segment = share(of(groups, rank));
    for (int peer = 0; peer < world; ++peer) {
      EXPECT_EQ(segment->base(peer)[0], static_cast<std::byte>(peer + 1));
    }
    exchange(of(groups, rank), 1);  // before anybody lets go
  });
}

// A rendezvous that a rank does not come to ends for those that wait, and for the late one as soon
// as it comes; collectives are not concerned, and the next rendezvous works.
TEST(LocalGroup, ARankThatDoesNotComeIsNamedAndTheNextRendezvousWorks) {
  const Groups groups = connect_groups(3);
  for (int again = 0; again < 3; ++again) {
    const auto start = Clock::now();
    const auto errors = errors_of_ranks(3, [&](int rank) {
      if (rank != 2) share(of(groups, rank), 200ms);
    });
    EXPECT_LT(Clock::now() - start, 5s);
    // The second rank to give up may see that the first has.
    for (const int rank : {0, 1}) {
      const auto& error = errors[static_cast<std::size_t>(rank)];
      ASSERT_TRUE(error.has_value());
      if (error->code() == ErrorCode::kTimeout) {
        expect_error(error, ErrorCode::kTimeout, {"rank 2 (global rank 12)", "200 ms"});
      } else {
        expect_error(error, ErrorCode::kPeerLost, {"has given up waiting for rank 2"});
      }
    }
    const auto late = Clock::now();
    expect_error(test::error_of([&] { share(of(groups, 2)); }), ErrorCode::kPeerLost,
                 {"has given up waiting for rank 2 (global rank 12)"});
    EXPECT_LT(Clock::now() - late, 5s);
    for (const auto& group : groups) EXPECT_FALSE(group->failed());
    expect_sharing_works(groups);
  }
}

// Whatever a rank throws before it has entered the exchange, its peers learn of it at once.
TEST(LocalGroup, ARankThatFailsBeforeTheExchangeEndsTheWaitOfTheOthers) {
  const Groups groups = connect_groups(3);
  for (int again = 0; again < 3; ++again) {
    const auto start = Clock::now();
    const auto errors = errors_of_ranks(3, [&](int rank) {
      of(groups, rank).run_rendezvous(Deadline(kTimeout), [&](const MeshRound& round) -> bool {
        round.post(Bytes{1}, -1);
        if (rank == 1) throw Error(ErrorCode::kSystem, "no room");
        exchange(of(groups, rank), 1);
        return true;
      });
    });
    EXPECT_LT(Clock::now() - start, 5s);
    expect_error(errors[1], ErrorCode::kSystem, {"no room"});
    for (const std::size_t rank : {0, 2}) {
      expect_error(errors[rank], ErrorCode::kPeerLost, {"has given up"});
    }
    expect_sharing_works(groups);
  }
}

// The exchanges that a rendezvous has made count, wherever it fails: the ranks stay side by side.
TEST(LocalGroup, GivingUpBehindAnotherExchangeTurnsNoNumberBack) {
  for (const std::uint64_t first : {std::uint64_t{0}, (std::uint64_t{1} << 32) - 2}) {
    const Groups groups = connect_groups(2, first);
    const auto errors = errors_of_ranks(2, [&](int rank) {
      of(groups, rank).run_rendezvous(Deadline(kTimeout), [&](const MeshRound&) {
        exchange(of(groups, rank), 1);
        exchange(of(groups, rank), 2);
        if (rank == 0) throw Error(ErrorCode::kTimeout, "too late");
        return true;
      });
    });
    expect_error(errors[0], ErrorCode::kTimeout, {"too late"});
    EXPECT_FALSE(errors[1].has_value());
    run_ranks(2, [&](int rank) {
      const auto got = exchange(of(groups, rank), 3, Purpose::kView, 1s);
      EXPECT_EQ(got.number, first + 3);
      EXPECT_EQ(got.messages[static_cast<std::size_t>(1 - rank)], message_of(1 - rank, 3));
    });
    expect_sharing_works(groups);
  }
}

// What it has sent each time is no offence to those who read the sockets meanwhile.
TEST(LocalGroup, ARankMayTryARendezvousAloneAnyNumberOfTimes) {
  const Groups groups = connect_groups(2);
  for (int tries = 0; tries < 40; ++tries) {
    expect_error(test::error_of([&] { share(of(groups, 0), 1ms); }), ErrorCode::kTimeout,
                 {"rank 1"});
  }
  run_ranks(
      2, [&](int rank) { of(groups, rank).mesh().exchange(1, Bytes{1}, -1, kTimeout, nullptr); });
  expect_error(test::error_of([&] { share(of(groups, 1)); }), ErrorCode::kPeerLost,
               {"rank 0 (global rank 10) has given up"});
  expect_sharing_works(groups);
}

// Posts hold what their descriptors are of, which may be much memory.
TEST(LocalGroup, DifferentCallsLeaveNoPostsOnTheSockets) {
  const Groups groups = connect_groups(3);
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe2(pipe.data(), O_NONBLOCK | O_CLOEXEC), 0);
  const FileDescriptor out(pipe[0]);
  FileDescriptor in(pipe[1]);
  const auto errors = errors_of_ranks(3, [&](int rank) {
    of(groups, rank).run_rendezvous(Deadline(kTimeout), [&](const MeshRound& round) {
      round.post(Bytes{1}, in.get());
      exchange(of(groups, rank), 1, rank == 0 ? Purpose::kView : Purpose::kRendezvous);
      return true;
    });
  });
  for (const auto& error : errors) expect_error(error, ErrorCode::kMismatch, {"different calls"});
  in.reset();
  char byte = 0;
  EXPECT_EQ(::read(out.get(), &byte, 1), 0) << "nobody can write any more";
  expect_sharing_works(groups);
}

// Posts of rank 0, which rank 1 drops, until one does not fit.
void fill_socket(const Groups& groups) {
  constexpr std::uint64_t kEnd = 10'000;
  of(groups, 1).mesh().restart(kEnd);
  std::optional<Error> full;
  for (std::uint64_t topic = 100; !full && topic < kEnd; ++topic) {
    full = test::error_of([&] { of(groups, 0).mesh().post(topic, Bytes(4096), -1); });
  }
  expect_error(full, ErrorCode::kSystem, {"rank 1 (global rank 11) is full"});
}

// A socket that is full ends a rendezvous before its exchange, where nobody reads it in time.
TEST(LocalGroup, ARankThatCannotPostIsNoHindranceLater) {
  const Groups groups = connect_groups(2);
  fill_socket(groups);
  expect_error(test::error_of([&] { share(of(groups, 0), 50ms); }), ErrorCode::kSystem,
               {"rank 1 (global rank 11) is full"});
  const auto start = Clock::now();
  expect_error(test::error_of([&] { share(of(groups, 1)); }), ErrorCode::kPeerLost,
               {"rank 0 (global rank 10) has given up"});
  EXPECT_LT(Clock::now() - start, 5s);
  expect_sharing_works(groups);
}

// It is no hindrance where its peer waits on the pages, and has posted nothing.
TEST(LocalGroup, WhoWaitsForAnExchangeMakesRoomOnTheSockets) {
  const Groups groups = connect_groups(2);
  fill_socket(groups);
  run_ranks(2, [&](int rank) {
    of(groups, rank).run_rendezvous(Deadline(kTimeout), [&](const MeshRound& round) {
      if (rank == 0) round.post(Bytes{1}, -1);
      EXPECT_EQ(exchange(of(groups, rank), 1).messages[0], message_of(0, 1));
      return true;
    });
  });
  expect_sharing_works(groups);
}

// One rank's time-out ends the wait of all, and each names the rank that did not come.
TEST(LocalGroup, WhoHearsThatAPeerHasGivenUpLearnsWhomItMissed) {
  const Groups groups = connect_groups(4);
  const auto errors = errors_of_ranks(4, [&](int rank) {
    if (rank != 2) exchange(of(groups, rank), 1, Purpose::kView, rank == 1 ? 500ms : kTimeout);
  });
  expect_error(errors[1], ErrorCode::kTimeout, {"rank 2 (global rank 12) did not come"});
  for (const std::size_t rank : {0, 3}) {
    expect_error(errors[rank], ErrorCode::kPeerLost,
                 {"rank ", "has given up waiting for rank 2 (global rank 12)"});
  }
  expect_error(test::error_of([&] { exchange(of(groups, 2), 1); }), ErrorCode::kPeerLost,
               {"has given up waiting for rank 2 (global rank 12)"});
}

// A rank that is only late is not missed by one that gives up because another is gone.
TEST(LocalGroup, WhoGivesUpBecauseARankIsGoneMissesThatOneAlone) {
  const Groups groups = connect_groups(3);
  of(groups, 1).leave();
  expect_error(test::error_of([&] { exchange(of(groups, 0), 1); }), ErrorCode::kPeerLost,
               {"rank 1 (global rank 11) has ended or left the group"});
  expect_error(test::error_of([&] { exchange(of(groups, 2), 1); }), ErrorCode::kPeerLost,
               {"rank 0 (global rank 10) has given up waiting for rank 1 (global rank 11)"});
}

// The ranks that try again meet one that still tries for the first time.
TEST(LocalGroup, ALateRankMeetsOthersThatHaveTriedMoreOften) {
  const Groups groups = connect_groups(2);
  for (int tries = 0; tries < 3; ++tries) {
    expect_error(test::error_of([&] { share(of(groups, 0), 20ms); }), ErrorCode::kTimeout,
                 {"rank 1"});
  }
  expect_error(test::error_of([&] { share(of(groups, 1)); }), ErrorCode::kPeerLost,
               {"rank 0 (global rank 10) has given up"});
  expect_sharing_works(groups);
}

// The number of an exchange that a rank has given up stands still, at 0 where it never did.
TEST(LocalGroup, ExchangesGoOnPastTheWidthsOfWords) {
  for (const std::uint64_t width : {std::uint64_t{1} << 31, std::uint64_t{1} << 32}) {
    for (const std::uint64_t first : {width - 3, width - 1, width, width + width / 4}) {
      const Groups groups = connect_groups(2, first);
      run_ranks(2, [&](int rank) {
        for (int number = 1; number <= 5; ++number) {
          const auto got = exchange(of(groups, rank), number);
          ASSERT_EQ(got.number, first + static_cast<std::uint64_t>(number));
          ASSERT_EQ(got.messages[1], message_of(1, number));
        }
      });
      expect_error(test::error_of([&] { share(of(groups, 0), 50ms); }), ErrorCode::kTimeout,
                   {"rank 1"});
      expect_error(test::error_of([&] { share(of(groups, 1)); }), ErrorCode::kPeerLost,
                   {"has given up"});
      expect_sharing_works(groups);
    }
  }
}

TEST(LocalGroup, RefusalsThatAllRanksShareLeaveTheGroupUsable) {
  const Groups groups = connect_groups(2);
  const auto errors = errors_of_ranks(2, [&](int rank) {
    of(groups, rank)
        .share(LocalSegment::allocate(host_runtime(), rank == 0 ? 100 : 100'000),
               Deadline(kTimeout));
  });
  for (const auto& error : errors) expect_error(error, ErrorCode::kMismatch, {"same size"});
  expect_sharing_works(groups);
}

}  // namespace
}  // namespace symm
