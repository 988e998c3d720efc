// What a rank knows of the messages that others have put on their GPUs for it.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
#include <vector>

#include "backend/engine/host/point_to_point.hpp"
#include "kernels/protocol/mailbox.hpp"
#include "test/support/call_cost.hpp"
#include "test/support/device_ranks.hpp"
#include "test/support/expect_error.hpp"

namespace symm {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using test::DeviceRank;
using test::error_of;
using test::expect_error;
using test::FakeGpu;

constexpr milliseconds kDefault{0};

void put(DeviceRank& rank, const TransferOp& op, bool captured = false) {
  rank.engine().transfer({&op, 1}, {FakeGpu::plain_stream(), kDefault, captured});
}
void send(DeviceRank& rank, int peer, std::int64_t tag, bool captured = false) {
  put(rank, {.tag = tag, .peer = peer, .is_send = true}, captured);
}
void receive(DeviceRank& rank, int peer, std::int64_t tag, bool captured = false) {
  put(rank, {.tag = tag, .peer = peer, .is_send = false}, captured);
}
AwaitedRecv awaited(std::int64_t tag, int peer = kAnySource, milliseconds timeout = kDefault) {
  return {{.tag = tag, .peer = peer}, steady_clock::now(), timeout};
}
std::optional<int> sender(DeviceRank& rank, std::int64_t tag, int peer = kAnySource) {
  return rank.engine().find_sender(awaited(tag, peer));
}

class AnySourceTest : public test::DeviceRanksTest {
 protected:
  // `others` on every rank but 0, and then `body` on rank 0.
  void run(int world, const std::function<void(DeviceRank&)>& others,
           const std::function<void(DeviceRank&)>& body) {
    run_group(world, [&](DeviceRank& rank) {
      rank.launch(CollectiveArgs{});
      if (rank.number() != 0) others(rank);
      rank.meet();
      if (rank.number() == 0) body(rank);
      rank.meet();
    });
  }
};

TEST_F(AnySourceTest, AMessageIsKnownUntilARecvIsForIt) {
  run(
      3,
      [](DeviceRank& rank) {
        if (rank.number() == 2) send(rank, 0, 7);
        if (rank.number() == 2) send(rank, 0, 7);
        if (rank.number() == 1) send(rank, 2, 7);
      },
      [](DeviceRank& rank) {
        EXPECT_EQ(sender(rank, 8), std::nullopt);
        EXPECT_EQ(sender(rank, 7, 1), std::nullopt);
        for (int message = 0; message < 2; ++message) {
          EXPECT_EQ(sender(rank, 7), 2);
          EXPECT_EQ(sender(rank, 7, 2), 2);
          receive(rank, 2, 7);
        }
        EXPECT_EQ(sender(rank, 7), std::nullopt);
      });
}

TEST_F(AnySourceTest, OfAChannelTheNextMessageAloneCounts) {
  run(
      2,
      [](DeviceRank& rank) {
        for (const std::int64_t tag : {1, 5, 1, 2}) send(rank, 0, tag);
      },
      [](DeviceRank& rank) {
        EXPECT_EQ(sender(rank, 2), 1);
        for (const std::int64_t tag : {1, 5, 1}) {
          EXPECT_EQ(sender(rank, tag == 1 ? 5 : 1), std::nullopt);
          EXPECT_EQ(sender(rank, tag), 1);
          receive(rank, 1, tag);
        }
        EXPECT_EQ(sender(rank, 1), std::nullopt);
        EXPECT_EQ(sender(rank, 2), 1);
      });
}

TEST_F(AnySourceTest, NoSenderIsForgotten) {
  run(
      4,
      [](DeviceRank& rank) {
        for (int message = 0; message < 3; ++message) send(rank, 0, 0);
      },
      [](DeviceRank& rank) {
        std::vector<int> senders;
        for (int message = 0; message < 9; ++message) {
          senders.push_back(sender(rank, 0).value_or(-1));
          receive(rank, senders.back(), 0);
        }
        EXPECT_EQ(senders, (std::vector<int>{1, 2, 3, 1, 2, 3, 1, 2, 3}));
      });
}

TEST_F(AnySourceTest, TagsThatAreNotKnownAnyMoreAreRefused) {
  constexpr auto kKnown = static_cast<int>(kAnnouncedRuns) - 1;
  run_group(2, [](DeviceRank& rank) {
    rank.launch(CollectiveArgs{});
    const bool sends = rank.number() == 1;
    for (int message = 0; sends && message < 2 * kKnown; ++message) {
      send(rank, 0, 4 * (message / 2));
    }
    rank.meet();
    if (!sends) {
      EXPECT_EQ(sender(rank, 0), 1);
    }
    rank.meet();
    if (sends) send(rank, 0, 4 * kKnown);
    rank.meet();
    if (sends) return;
    expect_error(error_of([&] { sender(rank, 0); }), ErrorCode::kUnsupported,
                 {"recv from any rank with tag 0", "rank 1", "different tags", "name the rank"});
    // It goes on where the rank is named.
    for (const std::int64_t tag : {0, 0, 4}) receive(rank, 1, tag);
    EXPECT_EQ(sender(rank, 4), 1);
  });
}

TEST_F(AnySourceTest, ChannelsWithCapturedMessagesAreRefused) {
  run(
      3,
      [](DeviceRank& rank) {
        receive(rank, 0, 3);
        send(rank, 0, 3);
        send(rank, 0, 2);
        if (rank.number() == 2) send(rank, 0, 6, true);
      },
      [](DeviceRank& rank) {
        // Another rank has what is asked for.
        EXPECT_EQ(sender(rank, 2), 1);
        receive(rank, 1, 2);
        expect_error(error_of([&] { sender(rank, 2); }), ErrorCode::kUnsupported,
                     {"rank 2", "captured", "modulo 4"});
        send(rank, 1, 3, true);  // a send does not matter
        EXPECT_EQ(sender(rank, 3, 1), 1);
        receive(rank, 1, 3, true);
        expect_error(error_of([&] { sender(rank, 3, 1); }), ErrorCode::kUnsupported, {"rank 1"});
      });
}

TEST_F(AnySourceTest, ATimeOutAndTheEndOfAllSendersFailTheGroup) {
  run_group(3, [](DeviceRank& rank) {
    rank.launch(CollectiveArgs{});
    if (rank.number() == 1) rank.communicator.shutdown();
    rank.meet();
    if (rank.number() == 0) {
      rank.engine().look_for_trouble(awaited(0));
      EXPECT_FALSE(rank.communicator.failure()) << "rank 2 may send yet";
      rank.engine().look_for_trouble(awaited(0, 2));
      EXPECT_FALSE(rank.communicator.failure());
    }
    rank.meet();
    if (rank.number() == 2) {
      send(rank, 0, 1);
      rank.communicator.shutdown();
    }
    rank.meet();
    if (rank.number() != 0) return;
    rank.engine().look_for_trouble(awaited(1));
    EXPECT_FALSE(rank.communicator.failure()) << "the message is there";
    rank.engine().look_for_trouble(awaited(4));
    expect_error(rank.communicator.failure(), ErrorCode::kPeerLeft,
                 {"recv from any rank (tag 4, 0 bytes)", "has left"});
    expect_error(error_of([&] { sender(rank, 1); }), ErrorCode::kPeerLeft, {"recv from any rank"});
  });
  run_group(2, [](DeviceRank& rank) {
    rank.launch(CollectiveArgs{});
    if (rank.number() == 0) {
      AwaitedRecv recv = awaited(9, 1, milliseconds(50'000));
      rank.engine().look_for_trouble(recv);
      EXPECT_FALSE(rank.communicator.failure());
      recv.since -= milliseconds(60'000);
      rank.engine().look_for_trouble(recv);
      expect_error(rank.communicator.failure(), ErrorCode::kTimeout,
                   {"recv from rank 1 (tag 9", "Timed out after 6"});
    }
    rank.meet();
  });
}

TEST_F(AnySourceTest, ATimeOutNamesWhoIsGone) {
  run_group(3, [](DeviceRank& rank) {
    rank.launch(CollectiveArgs{});
    if (rank.number() == 1) rank.communicator.shutdown();
    rank.meet();
    if (rank.number() == 0) {
      AwaitedRecv recv = awaited(9);
      recv.since -= milliseconds(21'000);
      rank.engine().look_for_trouble(recv);
      expect_error(rank.communicator.failure(), ErrorCode::kTimeout,
                   {"recv from any rank (tag 9", "Timed out after 21", "rank 1 has left"});
    }
    rank.meet();
  });
}

// What every send pays, of some thousand instructions. Those of a new tag are a few more.
TEST_F(AnySourceTest, AnAnnouncementTakesFewInstructions) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
  GTEST_SKIP() << "instrumented, or not optimised";
#endif
  run_group(2, [](DeviceRank& rank) {
    constexpr std::uint64_t kMessages = 100;
    LocalGroup& group = *rank.communicator.local_group();
    GroupMemory memory(group, kSmallSlotBytes, {});
    SendAnnouncements announcements(group, &memory);
    const TransferOp op{.tag = 3, .peer = 1 - rank.number(), .is_send = true};
    announcements.note(op, false);
    if (rank.number() != 0) return;
    const auto instructions = test::instructions_of([&] {
      for (std::uint64_t i = 0; i < kMessages; ++i) announcements.note(op, false);
    });
    if (!instructions) return;  // processes may not be traced here
    std::printf("an announcement: %llu instructions\n",
                static_cast<unsigned long long>(*instructions / kMessages));
    EXPECT_LE(*instructions / kMessages, 80u);
  });
}

}  // namespace
}  // namespace symm
