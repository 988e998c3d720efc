// Messages whose sender has them in symmetric memory: read there, without tray or ring, by
// receivers that know the segment, and streamed to others. Ranks are threads.
#include <gtest/gtest.h>

#include <array>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "backend/engine/communicator.hpp"
#include "backend/engine/host/mailbox_engine.hpp"
#include "kernels/core/atomics.hpp"
#include "kernels/cpu/wait.hpp"
#include "test/support/expect_error.hpp"
#include "test/support/joined_segment.hpp"
#include "test/support/memory_store.hpp"
#include "test/support/pretended_rank.hpp"
#include "test/support/rank_threads.hpp"

namespace symm {
namespace {

using std::chrono::milliseconds;
using test::error_of;
using test::expect_error;
using Bytes = std::vector<std::byte>;
using TransferPtr = std::shared_ptr<Transfer>;

constexpr std::size_t kSegmentBytes = std::size_t{12} << 20;

CommunicatorConfig config_of(int rank, int world) {
  CommunicatorConfig config;
  config.group_name = "test";
  config.rank = rank;
  config.world_size = world;
  config.timeout = milliseconds(20'000);
  return config;
}

std::shared_ptr<LocalSegment> memory() {
  return LocalSegment::allocate(host_runtime(), kSegmentBytes);
}

// What message `number` of a rank holds.
std::byte byte_of(int sender, std::size_t number, std::size_t position) {
  return static_cast<std::byte>(position * 31 + position / 251 + number * 7 +
                                static_cast<std::size_t>(sender) * 89);
}

void fill(std::byte* data, std::size_t bytes, int sender, std::size_t number) {
  for (std::size_t i = 0; i < bytes; ++i) data[i] = byte_of(sender, number, i);
}

bool holds(const std::byte* data, std::size_t bytes, int sender, std::size_t number) {
  for (std::size_t i = 0; i < bytes; ++i) {
    if (data[i] != byte_of(sender, number, i)) return false;
  }
  return true;
}

TransferPtr start(Communicator& rank, std::byte* data, std::size_t bytes, std::int64_t tag,
                  int peer, bool is_send) {
  return rank.point_to_point().start({{data, bytes, tag, peer, is_send, Dtype::kUInt8}, {}}, {});
}

// What a rank has written for another into its outbox: bytes of the ring, and the trays.
struct Staged {
  std::uint64_t ring;
  Bytes trays;
  bool operator==(const Staged&) const = default;
};
Staged staged(Communicator& communicator, int peer) {
  const int me = communicator.rank();
  const MailboxLayout layout(communicator.world_size());
  std::byte* const own = communicator.local_group()->region(me) + sizeof(ControlRegion);
  const std::byte* const trays = layout.tray(own, me, peer, 0);
  return {load_acquire(&layout.outbox(own, me, peer).data_written),
          Bytes(trays, trays + kTrays * layout.tray_bytes())};
}

class SymmetricMessages : public testing::TestWithParam<int> {};

// Every rank sends to the next, from symmetric memory to symmetric or other memory by turns, of any
// alignment and in another order than they are received.
TEST_P(SymmetricMessages, AreReadInPlace) {
  const int world = GetParam();
  test::MemoryStore store;
  test::run_ranks(world, [&](int rank) {
    Communicator communicator(store, config_of(rank, world));
    const auto segment = test::join_segment(communicator, memory());
    const int next = (rank + 1) % world;
    const int previous = (rank + world - 1) % world;
    const std::size_t tray = MailboxLayout(world).tray_bytes();
    const std::vector<std::size_t> sizes = {
        0,    1,        kInlineBytes, kInlineBytes + 1, tray - 1,
        tray, tray + 1, 1'000'003,    1 << 20,          (1 << 20) + 1};
    const Staged before = staged(communicator, next);
    std::byte* place = segment->base(rank);
    std::vector<TransferPtr> transfers;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      fill(place, sizes[i], rank, i);
      transfers.push_back(
          start(communicator, place, sizes[i], static_cast<std::int64_t>(i), next, true));
      place += sizes[i] + i;
    }
    std::vector<Bytes> elsewhere(sizes.size());
    std::vector<std::byte*> received(sizes.size());
    for (std::size_t i = sizes.size(); i-- > 0;) {
      elsewhere[i].resize(sizes[i]);
      received[i] = i % 2 == 0 ? elsewhere[i].data() : place;
      if (i % 2 != 0) place += sizes[i] + i;
      transfers.push_back(start(communicator, received[i], sizes[i], static_cast<std::int64_t>(i),
                                previous, false));
    }
    ASSERT_LE(place, segment->base(rank) + kSegmentBytes);
    for (const TransferPtr& one : transfers) communicator.point_to_point().wait(*one, {});
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      EXPECT_TRUE(holds(received[i], sizes[i], previous, i)) << sizes[i];
    }
    EXPECT_EQ(staged(communicator, next), before);
    communicator.run(CollectiveArgs{});
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, SymmetricMessages, testing::Values(2, 4));

// The receiver still has the segment before.
TEST(SymmetricMessages, AReceiverThatDoesNotKnowTheSegmentYetGetsTheRightOne) {
  constexpr std::size_t kBytes = 3'000'000;
  test::MemoryStore store;
  test::run_ranks(2, [&](int rank) {
    Communicator communicator(store, config_of(rank, 2));
    const auto first = test::join_segment(communicator, memory());
    const auto second =
        communicator.local_group()->share(memory(), Deadline(std::chrono::seconds(20)));
    fill(first->base(rank), kBytes, rank, 1);
    communicator.run(CollectiveArgs{});
    if (rank == 0) {
      communicator.remove_segment(first);
      communicator.add_segment(second, false);
      fill(second->base(0), kBytes, 0, 2);
      const Staged before = staged(communicator, 1);
      communicator.point_to_point().wait(*start(communicator, second->base(0), kBytes, 0, 1, true),
                                         {});
      EXPECT_EQ(staged(communicator, 1).ring - before.ring, kBytes);
      communicator.run(CollectiveArgs{});
      communicator.point_to_point().wait(*start(communicator, second->base(0), kBytes, 0, 1, true),
                                         {});
      EXPECT_EQ(staged(communicator, 1).ring - before.ring, kBytes);
    } else {
      Bytes data(kBytes);
      communicator.point_to_point().wait(*start(communicator, data.data(), kBytes, 0, 0, false),
                                         {});
      EXPECT_TRUE(holds(data.data(), kBytes, 0, 2));
      communicator.remove_segment(first);
      communicator.add_segment(second, false);
      communicator.run(CollectiveArgs{});
      Bytes again(kBytes);
      communicator.point_to_point().wait(*start(communicator, again.data(), kBytes, 0, 0, false),
                                         {});
      EXPECT_TRUE(holds(again.data(), kBytes, 0, 2));
    }
    communicator.run(CollectiveArgs{});
  });
}

TEST(SymmetricMessages, ARecvOfAnotherSizeIsAnErrorOnBothSides) {
  test::MemoryStore store;
  test::run_ranks(2, [&](int rank) {
    Communicator communicator(store, config_of(rank, 2));
    const auto segment = test::join_segment(communicator, memory());
    const bool sends = rank == 0;
    for (const std::size_t bytes : {std::size_t{10'000}, std::size_t{2'000'000}}) {
      const TransferPtr one =
          start(communicator, segment->base(rank), sends ? bytes : bytes - 1, 0, 1 - rank, sends);
      expect_error(error_of([&] { communicator.point_to_point().wait(*one, {}); }),
                   ErrorCode::kMismatch, {std::to_string(bytes), std::to_string(bytes - 1)});
    }
    communicator.run(CollectiveArgs{});
  });
}

// An envelope that names bytes beyond the segment: nothing is read, and the recv waits for a
// stream.
TEST(SymmetricMessages, BytesBeyondTheSegmentAreNotRead) {
  constexpr std::size_t kBytes = 4096;
  test::MemoryStore store;
  std::barrier<> meeting(2);
  test::run_ranks(2, [&](int rank) {
    Communicator communicator(store, config_of(rank, 2));
    const auto segment = test::join_segment(communicator, memory());
    std::memset(segment->base(rank), 1, kSegmentBytes);
    communicator.run(CollectiveArgs{});
    if (rank == 0) {
      std::uint64_t posted = 0;
      for (const std::uint64_t offset :
           {kSegmentBytes - kBytes + 1, kSegmentBytes, ~std::uint64_t{0} - 100}) {
        test::pretend_to_send(communicator, posted++, kBytes, segment->number(), offset);
      }
      meeting.arrive_and_wait();
      meeting.arrive_and_wait();
    } else {
      meeting.arrive_and_wait();
      std::array<Bytes, 3> data;  // they outlive the transfers
      for (Bytes& one : data) {
        one.resize(kBytes);
        const TransferPtr recv = start(communicator, one.data(), kBytes, 0, 0, false);
        expect_error(error_of([&] { communicator.point_to_point().wait(*recv, milliseconds(30)); }),
                     ErrorCode::kTimeout, {"not done"});
        EXPECT_EQ(one, Bytes(kBytes));
      }
      communicator.abort("the test is over");
      meeting.arrive_and_wait();
    }
  });
}

// The sender has raised, so that its memory is its user's again, before the receiver reads it.
TEST(SymmetricMessages, WhatIsReadAfterTheOwnerGaveUpIsNotPassedOn) {
  constexpr std::size_t kBytes = 1'500'000;
  test::MemoryStore store;
  std::barrier<> meeting(2);
  test::run_ranks(2, [&](int rank) {
    Communicator communicator(store, config_of(rank, 2));
    const auto segment = test::join_segment(communicator, memory());
    std::memset(segment->base(rank), 1, kBytes);
    MailboxEngine& engine = communicator.point_to_point();
    meeting.arrive_and_wait();
    if (rank == 0) {
      const TransferOp op{segment->base(0), kBytes, 0, 1, true, Dtype::kUInt8};
      const TransferPtr one = engine.start({op, {}}, milliseconds(200));
      expect_error(error_of([&] { engine.wait(*one, {}); }), ErrorCode::kTimeout,
                   {"send to rank 1"});
      std::memset(segment->base(0), 2, kBytes);
      meeting.arrive_and_wait();
    } else {
      meeting.arrive_and_wait();
      const TransferPtr one = start(communicator, segment->base(1), kBytes, 0, 0, false);
      expect_error(error_of([&] { engine.wait(*one, {}); }), ErrorCode::kTimeout,
                   {"rank 0 gave up"});
    }
    meeting.arrive_and_wait();
  });
}

}  // namespace
}  // namespace symm
