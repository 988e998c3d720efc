// Messages that lie in a tray before their recv asks for them. Ranks are threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backend/engine/communicator.hpp"
#include "backend/engine/host/mailbox_engine.hpp"
#include "test/support/environment.hpp"
#include "test/support/expect_error.hpp"
#include "test/support/memory_store.hpp"
#include "test/support/rank_threads.hpp"

namespace symm {
namespace {

using std::chrono::milliseconds;
using Bytes = std::vector<std::uint8_t>;
using TransferPtr = std::shared_ptr<Transfer>;

void run_group(int world, const std::function<void(Communicator&)>& body) {
  test::MemoryStore store;
  test::run_ranks(world, [&](int rank) {
    CommunicatorConfig config;
    config.group_name = "test";
    config.rank = rank;
    config.world_size = world;
    config.timeout = milliseconds(20'000);
    Communicator communicator(store, config);
    body(communicator);
    communicator.run(CollectiveArgs{});
  });
}

// What message `number` between two ranks holds.
Bytes content(int from, int to, std::size_t number, std::size_t bytes) {
  Bytes data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    data[i] = static_cast<std::uint8_t>(i * 31 + i / 251 + number * 7 +
                                        static_cast<std::size_t>(from * 89 + to * 53));
  }
  return data;
}

TransferPtr start(Communicator& rank, Bytes& data, std::int64_t tag, int peer, bool is_send) {
  return rank.point_to_point().start(
      {{data.data(), data.size(), tag, peer, is_send, Dtype::kUInt8}, {}}, {});
}

// Sizes at the borders of an envelope, a tray and what may be read.
std::vector<std::size_t> sizes_for(int world) {
  const std::size_t tray = MailboxLayout(world).tray_bytes();
  return {0, kInlineBytes, kInlineBytes + 1, tray - 1, tray, tray + 1, 3 * tray + 5, 700'000};
}

class TraysOfRanks : public testing::TestWithParam<std::tuple<int, const char*>> {};

// More messages than trays and clear-to-sends, each with a tag of its own, in two random orders.
TEST_P(TraysOfRanks, EveryOrderBringsTheRightData) {
  const auto [world, single_copy] = GetParam();
  const test::ScopedVariable variable("SYMM_SINGLE_COPY", single_copy);
  constexpr std::size_t kMessages = 40;
  run_group(world, [&, ranks = world](Communicator& rank) {
    const int me = rank.rank();
    const int next = (me + 1) % ranks;
    const int previous = (me + ranks - 1) % ranks;
    const std::vector<std::size_t> sizes = sizes_for(ranks);
    for (unsigned round = 0; round < 6; ++round) {
      std::vector<std::size_t> sends(kMessages);
      for (std::size_t i = 0; i < kMessages; ++i) sends[i] = i;
      std::vector<std::size_t> recvs = sends;
      std::mt19937 random(round * 2);
      std::shuffle(sends.begin(), sends.end(), random);
      std::shuffle(recvs.begin(), recvs.end(), random);
      const auto size_of = [&](std::size_t number) {
        return sizes[(number + round) % sizes.size()];
      };
      std::vector<Bytes> sent(kMessages);
      std::vector<Bytes> received(kMessages);
      std::vector<TransferPtr> transfers;
      for (const std::size_t number : sends) {
        sent[number] = content(me, next, number, size_of(number));
        transfers.push_back(
            start(rank, sent[number], static_cast<std::int64_t>(number), next, true));
      }
      for (const std::size_t number : recvs) {
        received[number].resize(size_of(number));
        transfers.push_back(
            start(rank, received[number], static_cast<std::int64_t>(number), previous, false));
      }
      for (const TransferPtr& transfer : transfers) rank.point_to_point().wait(*transfer, {});
      for (std::size_t number = 0; number < kMessages; ++number) {
        ASSERT_EQ(received[number], content(previous, me, number, size_of(number))) << number;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(MessageTrays, TraysOfRanks,
                         testing::Combine(testing::Values(2, 4), testing::Values("0", "1")),
                         [](const auto& info) {
                           return std::to_string(std::get<0>(info.param)) + "_ranks_single_copy_" +
                                  std::get<1>(info.param);
                         });

// A message that waits for its recv in a tray is not done, and keeps no other one back.
TEST(MessageTrays, AMessageInATrayIsDoneWithItsRecv) {
  run_group(2, [](Communicator& rank) {
    MailboxEngine& engine = rank.point_to_point();
    const std::size_t tray = MailboxLayout(2).tray_bytes();
    const bool sends = rank.rank() == 0;
    std::vector<Bytes> early;
    for (std::size_t i = 0; i < kTrays; ++i)
      early.push_back(sends ? content(0, 1, i, tray) : Bytes(tray));
    std::vector<TransferPtr> waiting;
    if (sends) {
      for (Bytes& data : early) waiting.push_back(start(rank, data, 1, 1, true));
    }
    for (const std::size_t bytes : sizes_for(2)) {
      Bytes data = sends ? content(0, 1, 9, bytes) : Bytes(bytes);
      engine.wait(*start(rank, data, 2, 1 - rank.rank(), sends), {});
      EXPECT_EQ(data, content(0, 1, 9, bytes));
    }
    rank.run(CollectiveArgs{});
    if (sends) {
      for (const TransferPtr& transfer : waiting) {
        test::expect_error(test::error_of([&] { engine.wait(*transfer, milliseconds(20)); }),
                           ErrorCode::kTimeout, {"not done"});
      }
    }
    rank.run(CollectiveArgs{});
    if (!sends) {
      for (Bytes& data : early) waiting.push_back(start(rank, data, 1, 0, false));
    }
    for (const TransferPtr& transfer : waiting) engine.wait(*transfer, {});
    for (std::size_t i = 0; i < kTrays; ++i) EXPECT_EQ(early[i], content(0, 1, i, tray));
  });
}

// More often than there are trays: a refused message frees its tray.
TEST(MessageTrays, ARecvOfAnotherSizeIsAnErrorOnBothSides) {
  run_group(2, [](Communicator& rank) {
    const std::size_t tray = MailboxLayout(2).tray_bytes();
    const bool sends = rank.rank() == 0;
    for (std::size_t round = 0; round < 2 * kTrays + 1; ++round) {
      const std::size_t mine = sends ? tray - round : tray + round + 1;
      Bytes data(mine);
      const TransferPtr transfer = start(rank, data, 0, 1 - rank.rank(), sends);
      test::expect_error(test::error_of([&] { rank.point_to_point().wait(*transfer, {}); }),
                         ErrorCode::kMismatch,
                         {std::to_string(tray - round), std::to_string(tray + round + 1)});
    }
    Bytes data = sends ? content(0, 1, 3, tray) : Bytes(tray);
    rank.point_to_point().wait(*start(rank, data, 0, 1 - rank.rank(), sends), {});
    EXPECT_EQ(data, content(0, 1, 3, tray));
  });
}

}  // namespace
}  // namespace symm
