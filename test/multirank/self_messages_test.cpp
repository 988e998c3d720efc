// Batches of messages on the host, among them those of a rank to itself. Ranks are threads.
#include "backend/engine/group/self_messages.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <vector>

#include "backend/engine/communicator.hpp"
#include "backend/engine/host/mailbox_engine.hpp"
#include "test/support/expect_error.hpp"
#include "test/support/memory_store.hpp"
#include "test/support/rank_threads.hpp"

namespace symm {
namespace {

using Bytes = std::vector<std::uint8_t>;

void run_group(int world, const std::function<void(Communicator&)>& body) {
  test::MemoryStore store;
  test::run_ranks(world, [&](int rank) {
    CommunicatorConfig config;
    config.group_name = "test";
    config.rank = rank;
    config.world_size = world;
    config.timeout = std::chrono::milliseconds(20'000);
    Communicator communicator(store, config);
    body(communicator);
  });
}

// What message `number` from `from` to `to` holds.
Bytes content(int from, int to, std::size_t number, std::size_t bytes) {
  Bytes data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    data[i] = static_cast<std::uint8_t>(i * 31 + i / 251 + number * 7 +
                                        static_cast<std::size_t>(from * 89 + to * 53));
  }
  return data;
}

struct Ends {
  std::vector<Bytes> sent;
  std::vector<Bytes> received;
};

// Every rank to every rank, itself included, in one batch: the sends in the order of `numbers`,
// the recvs, which stand between them, in the opposite order of tags. Messages 0 and 1 share a tag.
std::vector<Message> everybody(Ends& ends, int me, int world, const std::vector<std::size_t>& sizes,
                               std::atomic<int>& done) {
  std::vector<Message> messages;
  const auto add = [&](Bytes& data, int peer, std::size_t number, bool is_send) {
    const auto tag = static_cast<std::int64_t>(number < 2 ? 1 : number);
    messages.push_back({{data.data(), data.size(), tag, peer, is_send}, [&done] { ++done; }});
  };
  const auto ranks = static_cast<std::size_t>(world);
  ends.sent.resize(ranks * sizes.size());
  ends.received.resize(ranks * sizes.size());
  for (std::size_t k = 0; k < sizes.size(); ++k) {
    // 0 and 1 keep their order.
    const std::size_t other = k < 2 ? k : sizes.size() + 1 - k;
    for (int peer = 0; peer < world; ++peer) {
      const std::size_t at = static_cast<std::size_t>(peer) * sizes.size();
      ends.received[at + other].assign(sizes[other], 0xee);
      add(ends.received[at + other], peer, other, false);
      ends.sent[at + k] = content(me, peer, k, sizes[k]);
      add(ends.sent[at + k], peer, k, true);
    }
  }
  return messages;
}

class SelfMessagesTest : public testing::TestWithParam<int> {};

TEST_P(SelfMessagesTest, TravelInABatchWithThoseOfOthers) {
  const int world = GetParam();
  run_group(world, [world](Communicator& communicator) {
    const std::vector<std::size_t> sizes = {5, 480, 0, 1, 481, 3u << 20};
    const int me = communicator.rank();
    Ends ends;
    std::atomic<int> done{0};
    MailboxEngine& p2p = communicator.point_to_point();
    const auto transfers = p2p.start_batch(everybody(ends, me, world, sizes, done), {});
    ASSERT_EQ(transfers.size(), 2 * sizes.size() * static_cast<std::size_t>(world));
    for (const auto& transfer : transfers) {
      if (transfer->peer() == me) {
        EXPECT_TRUE(transfer->done());
        EXPECT_FALSE(transfer->error().has_value());
      } else {
        p2p.wait(*transfer, {});
      }
    }
    for (int peer = 0; peer < world; ++peer) {
      for (std::size_t k = 0; k < sizes.size(); ++k) {
        const std::size_t at = static_cast<std::size_t>(peer) * sizes.size() + k;
        ASSERT_EQ(ends.received[at], content(peer, me, k, sizes[k])) << k << " from " << peer;
        ASSERT_EQ(ends.sent[at], content(me, peer, k, sizes[k]));
      }
    }
    while (done < static_cast<int>(transfers.size())) std::this_thread::yield();
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, SelfMessagesTest, testing::Values(1, 2, 3));

TEST(SelfMessages, OneTagKeepsItsOrderWhicheverEndComesFirst) {
  run_group(1, [](Communicator& communicator) {
    const std::uint8_t out[] = {1, 2, 3};
    std::uint8_t in[] = {9, 9, 9};
    const auto message = [](const std::uint8_t* data, bool is_send) {
      return Message{{const_cast<std::uint8_t*>(data), 1, 4, 0, is_send}, {}};
    };
    communicator.point_to_point().start_batch(
        {message(in, false), message(in + 1, false), message(out, true), message(out + 1, true),
         message(out + 2, true), message(in + 2, false)},
        {});
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(in[i], out[i]);
  });
}

TEST(SelfMessages, WhatCouldNeverEndIsRefusedBeforeAnythingIsSent) {
  run_group(2, [](Communicator& communicator) {
    MailboxEngine& p2p = communicator.point_to_point();
    const int me = communicator.rank();
    const std::string self = "rank " + std::to_string(me);
    Bytes data(64, static_cast<std::uint8_t>(me + 1));
    Bytes wrong(8, 0xdd);
    const auto refused = [&](std::vector<Message> messages) {
      messages.insert(messages.begin(), Message{{wrong.data(), 8, 3, 1 - me, true}, {}});
      return test::error_of([&] { p2p.start_batch(std::move(messages), {}); });
    };
    test::expect_error(refused({{{data.data(), 16, 7, me, true}, {}}}), ErrorCode::kInvalidArgument,
                       {"group \"test\": " + self, "send to this rank itself", "tag 7", "16 bytes",
                        "expected its recv in the same batch"});
    test::expect_error(
        refused({{{data.data(), 16, 7, me, false}, {}}, {{data.data(), 16, 8, me, true}, {}}}),
        ErrorCode::kInvalidArgument,
        {"recv from this rank itself", "tag 7", "expected its send in the same batch"});
    test::expect_error(
        refused({{{data.data(), 17, 7, me, false}, {}}, {{data.data(), 16, 7, me, true}, {}}}),
        ErrorCode::kMismatch, {"tag 7", self + " sends 16 bytes", self + " receives 17"});
    test::expect_error(refused({{{data.data(), 16, 7, 2, true}, {}}}), ErrorCode::kInvalidArgument,
                       {"got 2"});
    for (const bool sends : {true, false}) {
      test::expect_error(test::error_of([&] {
                           p2p.start({{data.data(), 8, 7, me, sends}, {}}, {});
                         }),
                         ErrorCode::kInvalidArgument, {"another group rank"});
    }
    // Had anything been sent, it would come first.
    Bytes in(8);
    const auto transfers = p2p.start_batch(
        {{{data.data(), 8, 3, 1 - me, true}, {}}, {{in.data(), 8, 3, 1 - me, false}, {}}}, {});
    for (const auto& transfer : transfers) p2p.wait(*transfer, {});
    EXPECT_EQ(in, Bytes(8, static_cast<std::uint8_t>(2 - me)));
  });
}

}  // namespace
}  // namespace symm
