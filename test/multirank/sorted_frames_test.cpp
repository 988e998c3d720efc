// Frames of peers, sorted into the queues of who waits for them: here they come through a socket of
// the test's own.
#include "symm_mem/bootstrap/frame_queues.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/error.hpp"
#include "symm_mem/bootstrap/peer_frame.hpp"
#include "symm_mem/bootstrap/unix_socket.hpp"
#include "test/support/expect_error.hpp"
#include "test/support/forked_child.hpp"

namespace symm {
namespace {

using test::error_of;
using test::expect_error;
using Bytes = std::vector<std::uint8_t>;

// Says under which topic it was posted.
Bytes post_of(std::uint64_t topic) { return {static_cast<std::uint8_t>(topic), 7}; }

class FrameQueuesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::array<int, 2> pair{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair.data()),
              0);
    far_.reset(pair[0]);
    sockets_[1] = GuardedDescriptor::open([&] { return pair[1]; });
    records_[1].process.pid = 4242;
    queues_.emplace("test: ", names_, sockets_, records_);
  }
  void send(const Bytes& frame) { ASSERT_EQ(send_frame(far_.get(), frame), SocketStatus::kDone); }
  void send_post(std::uint64_t topic) {
    send(encode_exchange(topic, false, post_of(topic), FrameKind::kPost));
  }

  const RankNames names_;
  FileDescriptor far_;
  std::vector<GuardedDescriptor> sockets_ = std::vector<GuardedDescriptor>(2);
  std::vector<PeerRecord> records_ = std::vector<PeerRecord>(2);
  std::optional<FrameQueues> queues_;
};

TEST_F(FrameQueuesTest, KeepsSixteenPostsAndRefusesMore) {
  for (std::uint64_t topic = 0; topic < FrameQueues::kMaxKept; ++topic) send_post(topic);
  EXPECT_FALSE(queues_->next_exchange(1).has_value());
  send_post(99);
  expect_error(error_of([&] { queues_->next_exchange(1); }), ErrorCode::kSecurity,
               {"rank 1", "16 frames"});
  // What came before the offence is still good.
  EXPECT_EQ(queues_->next_post(1, 15)->content.message, post_of(15));
  expect_error(error_of([&] { queues_->next_post(1, 99); }), ErrorCode::kSecurity, {"rank 1"});
}

TEST_F(FrameQueuesTest, RoomIsFreeAgainOnceTaken) {
  for (std::uint64_t topic = 0; topic < 100; ++topic) {
    send_post(topic);
    EXPECT_EQ(queues_->next_post(1, topic)->number, topic);
  }
}

TEST_F(FrameQueuesTest, KeepsSixteenFramesOfExchangesAndRefusesMore) {
  for (std::uint64_t sequence = 0; sequence <= FrameQueues::kMaxKept; ++sequence) {
    send(encode_exchange(sequence, false, Bytes{1}));
  }
  expect_error(error_of([&] { queues_->next_post(1, 1); }), ErrorCode::kSecurity,
               {"rank 1", "16 frames"});
  for (std::uint64_t sequence = 0; sequence < FrameQueues::kMaxKept; ++sequence) {
    EXPECT_EQ(queues_->next_exchange(1)->number, sequence);
  }
  expect_error(error_of([&] { queues_->next_exchange(1); }), ErrorCode::kSecurity, {"rank 1"});
}

TEST_F(FrameQueuesTest, TheSameTopicTwiceIsRefused) {
  send_post(5);
  send_post(5);
  EXPECT_FALSE(error_of([&] { queues_->next_post(1, 5); }).has_value());
  expect_error(error_of([&] { queues_->next_post(1, 6); }), ErrorCode::kSecurity,
               {"rank 1", "topic 5"});
}

TEST_F(FrameQueuesTest, MalformedFramesGoToTheExchange) {
  send(Bytes{1, 2, 3});
  send_post(2);
  EXPECT_EQ(queues_->next_post(1, 2)->content.message, post_of(2));
  EXPECT_EQ(queues_->next_exchange(1)->problem, "a malformed frame");
  // A post that says it brings a descriptor and does not is the taker's to refuse.
  send(encode_exchange(3, true, Bytes{1}, FrameKind::kPost));
  EXPECT_EQ(queues_->next_post(1, 3)->problem, "a malformed frame");
}

TEST_F(FrameQueuesTest, StreamsHaveQueuesOfTheirOwn) {
  const FrameStream memory = FrameStream::kSymmetricMemory;
  send(encode_exchange({memory, 7}, false, Bytes{1}));
  send(encode_exchange(7, false, Bytes{2}));
  send(encode_exchange({memory, 7}, false, Bytes{3}, FrameKind::kPost));
  send(encode_exchange(7, false, Bytes{4}, FrameKind::kPost));
  EXPECT_EQ(queues_->next_post(1, 7)->content.message, Bytes{4});
  EXPECT_EQ(queues_->next_exchange(1)->content.message, Bytes{2});
  EXPECT_EQ(queues_->next_exchange(1, memory)->content.message, Bytes{1});
  EXPECT_EQ(queues_->next_post(1, {memory, 7})->content.message, Bytes{3});
  EXPECT_FALSE(queues_->next_exchange(1).has_value());
  EXPECT_FALSE(queues_->next_exchange(1, memory).has_value());
}

TEST_F(FrameQueuesTest, WhatIsOverIsDroppedBeforeAndAfterItComes) {
  const FrameStream memory = FrameStream::kSymmetricMemory;
  send(encode_exchange({memory, 3}, false, Bytes{3}));
  send(encode_exchange(3, false, Bytes{30}));
  EXPECT_FALSE(queues_->next_post(1, {memory, 9}).has_value());  // sorts what has come
  queues_->drop_before({memory, 5});
  send(encode_exchange({memory, 4}, false, Bytes{4}));
  send(encode_exchange({memory, 4}, false, Bytes{4}, FrameKind::kPost));
  send(encode_exchange({memory, 5}, false, Bytes{5}));
  EXPECT_EQ(queues_->next_exchange(1, memory)->content.message, Bytes{5});
  EXPECT_FALSE(queues_->next_post(1, {memory, 4}).has_value());
  EXPECT_EQ(queues_->next_exchange(1)->content.message, Bytes{30});
}

TEST_F(FrameQueuesTest, DescriptorsOfWhatIsOverAreClosedAtOnce) {
  const FrameStream memory = FrameStream::kSymmetricMemory;
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe2(pipe.data(), O_NONBLOCK | O_CLOEXEC), 0);
  const FileDescriptor out(pipe[0]);
  FileDescriptor in(pipe[1]);
  const Bytes post = encode_exchange({memory, 3}, true, Bytes{3}, FrameKind::kPost);
  ASSERT_EQ(send_frame(far_.get(), post, in.get()), SocketStatus::kDone);
  send(encode_exchange({memory, 5}, false, Bytes{5}));
  in.reset();
  char byte = 0;
  EXPECT_EQ(::read(out.get(), &byte, 1), -1);
  queues_->drop_before({memory, 5});
  EXPECT_EQ(::read(out.get(), &byte, 1), 0) << "nobody can write any more";
  EXPECT_EQ(queues_->next_exchange(1, memory)->content.message, Bytes{5});
}

TEST_F(FrameQueuesTest, WhatItsSenderHasGivenUpIsNoOffence) {
  std::uint64_t gave_up = 0;
  queues_->set_given_up([&](std::size_t peer, FramePosition position) {
    return peer == 1 && position.number <= gave_up;
  });
  constexpr std::uint64_t kTries = 3 * FrameQueues::kMaxKept;
  for (std::uint64_t topic = 1; topic <= kTries; ++topic) {
    send_post(topic);
    EXPECT_FALSE(queues_->next_exchange(1).has_value());
    if (topic < kTries) gave_up = topic;
  }
  EXPECT_EQ(queues_->next_post(1, kTries)->content.message, post_of(kTries));
  for (std::uint64_t more = 1; more <= FrameQueues::kMaxKept; ++more) send_post(kTries + more);
  EXPECT_FALSE(queues_->next_exchange(1).has_value());
  send_post(2 * kTries);
  expect_error(error_of([&] { queues_->next_exchange(1); }), ErrorCode::kSecurity,
               {"rank 1", "16 frames"});
}

TEST_F(FrameQueuesTest, AClosedPeerIsLostOnceAllIsHandedOut) {
  send(encode_exchange(1, false, Bytes{1}));
  send_post(2);
  far_.reset();
  expect_error(error_of([&] { queues_->next_post(1, 3); }), ErrorCode::kPeerLost,
               {"rank 1", "4242"});
  EXPECT_EQ(queues_->next_exchange(1)->number, 1u);
  EXPECT_EQ(queues_->next_post(1, 2)->number, 2u);
  expect_error(error_of([&] { queues_->next_exchange(1); }), ErrorCode::kPeerLost, {"rank 1"});
}

// The one that is asked for may have gone because of the other one.
TEST(FrameQueues, AllThatAreGoneAreNamed) {
  std::vector<GuardedDescriptor> sockets(4);
  std::vector<PeerRecord> records(4);
  std::vector<FileDescriptor> far(4);
  for (const std::size_t peer : {0u, 1u, 3u}) {
    std::array<int, 2> pair{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair.data()),
              0);
    far[peer].reset(pair[0]);
    sockets[peer] = GuardedDescriptor::open([&] { return pair[1]; });
    records[peer].process.pid = 1000 + static_cast<std::int64_t>(peer);
  }
  const RankNames names;
  FrameQueues queues("test: ", names, sockets, records);
  far[1].reset();
  far[0].reset();
  const auto error = error_of([&] { queues.next_exchange(0); });
  expect_error(error, ErrorCode::kPeerLost, {"rank 0 (pid 1000), rank 1 (pid 1001) ended"});
  EXPECT_EQ(std::string(error->what()).find("rank 3"), std::string::npos);
}

}  // namespace
}  // namespace symm
