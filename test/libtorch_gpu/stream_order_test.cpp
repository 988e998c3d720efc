// Which events a group's calls on several streams record and wait for.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "test/support/gpu_pair_test.hpp"

namespace symm::test {
namespace {

class StreamOrderTest : public GpuPairTest {
 protected:
  using Notes = std::vector<std::string>;

  void TearDown() override {
    FakeGuard::notes = nullptr;
    FakeGuard::current_stream = 1;
    GpuPairTest::TearDown();
  }

  // What `call` on stream `number` has streams record and wait for.
  Notes notes_of(int number, const std::function<void()>& call) {
    Notes notes;
    FakeGuard::current_stream = number;
    FakeGuard::notes = &notes;
    call();
    FakeGuard::notes = nullptr;
    return notes;
  }
  Notes all_reduce_on(int number) {
    return notes_of(number, [this] { group_->allreduce(tensors_, reduce_options()); });
  }
  Notes batch_on(int number, int tag) {
    return notes_of(number, [this, tag] {
      group_->startCoalescing();
      group_->send(tensors_, 1, tag);
      works_.push_back(group_->endCoalescing());
    });
  }
  Notes send_on(int number, int tag) {
    return notes_of(number, [this, tag] { works_.push_back(group_->send(tensors_, 1, tag)); });
  }
  // "record 12.3" or "4 behind 12.3" without the event's number.
  static std::string without_number(const std::string& note) {
    return note.substr(0, note.rfind('.'));
  }
  // Of the event of "record 12.3", "12.3".
  static std::string event_of(const std::string& note) { return note.substr(note.rfind(' ') + 1); }

  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

TEST_F(StreamOrderTest, OneStreamNeedsNoEvent) {
  EXPECT_EQ(all_reduce_on(1), Notes());
  EXPECT_EQ(all_reduce_on(1), Notes());
}

// From the first change of streams on there is an event behind each call, and what came on the
// first stream later is not waited for.
TEST_F(StreamOrderTest, ACallFollowsTheEventRightBehindTheLastOne) {
  const Notes first = all_reduce_on(11);  // behind the test's first call, on stream 1
  ASSERT_EQ(first.size(), 3u);
  EXPECT_EQ(first[1], "11 behind " + event_of(first[0]));
  EXPECT_EQ(without_number(first[2]), "record 11");
  const Notes second = all_reduce_on(12);
  ASSERT_EQ(second.size(), 2u);
  EXPECT_EQ(second[0], "12 behind " + event_of(first[2]));
  EXPECT_EQ(without_number(second[1]), "record 12");
  const Notes third = all_reduce_on(11);
  ASSERT_EQ(third.size(), 2u);
  EXPECT_EQ(third[0], "11 behind " + event_of(second[1]));
}

// At the first change of streams already, where the last call's stream waits for a message since.
TEST_F(StreamOrderTest, AWaitForAMessageIsNotWaitedFor) {
  const auto receive = [this] { works_.push_back(group_->recv(tensors_, 1, 0)); };
  notes_of(1, receive);
  const Notes wait = notes_of(1, [this] { works_.back()->wait(); });
  ASSERT_EQ(wait.size(), 2u);
  EXPECT_EQ(without_number(wait[0]), "record 1");
  EXPECT_TRUE(wait[1].starts_with("1 behind ")) << wait[1];
  EXPECT_NE(event_of(wait[1]), event_of(wait[0]));
  const Notes next = all_reduce_on(12);
  ASSERT_GE(next.size(), 1u);
  EXPECT_EQ(next[0], "12 behind " + event_of(wait[0]));
  // One point is enough.
  notes_of(12, receive);
  EXPECT_EQ(notes_of(12, [this] { works_.back()->wait(); }).size(), 1u);
}

// Nor by a block in which messages came behind a collective.
TEST_F(StreamOrderTest, TheMessagesOfABlockAreNotWaitedFor) {
  const Notes block = notes_of(1, [this] {
    group_->startCoalescing();
    group_->allreduce(tensors_, reduce_options());
    group_->recv(tensors_, 1, 0);
    works_.push_back(group_->endCoalescing());
  });
  ASSERT_GE(block.size(), 2u);
  const Notes next = all_reduce_on(12);
  ASSERT_GE(next.size(), 1u);
  const auto point = std::ranges::find(block, "record " + event_of(next[0]));
  ASSERT_NE(point, block.end()) << next[0];
  EXPECT_NE(std::find_if(point, block.end(),
                         [](const std::string& note) { return note.starts_with("1 behind "); }),
            block.end());
}

// An asynchronous call that is waited for has its own stream, on which nothing else comes.
TEST_F(StreamOrderTest, AsynchronousCallsNeedNoEventsBesideThoseOfTheirWorks) {
  for (int i = 0; i < 2; ++i) {
    const Notes notes =
        notes_of(1, [this] { group_->allreduce(tensors_, reduce_options(true))->wait(); });
    EXPECT_EQ(notes.size(), 4u);  // behind the current stream, and that behind the operation
  }
  EXPECT_EQ(all_reduce_on(1).size(), 2u);  // behind the group's stream
  EXPECT_EQ(all_reduce_on(1).size(), 0u);
}

// A single message is on a stream of its own and follows the batch that had its order before, and
// no later batch.
TEST_F(StreamOrderTest, AMessageFollowsTheBatchOfItsOrder) {
  constexpr int kTag = 0;
  constexpr int kOther = 1;
  const Notes batch = batch_on(1, kTag);
  std::vector<std::string> recorded;  // on the stream of batches
  for (const std::string& note : batch) {
    if (note.starts_with("record ") && without_number(note) != "record 1") {
      recorded.push_back(event_of(note));
    }
  }
  ASSERT_FALSE(recorded.empty());
  batch_on(1, kOther);
  const Notes single = send_on(1, kTag);
  bool follows = false;
  for (const std::string& note : single) {
    follows =
        follows || (note.find(" behind ") != std::string::npos && event_of(note) == recorded[0]);
    EXPECT_NE(without_number(note), without_number("record " + recorded[0])) << "a later point";
  }
  EXPECT_TRUE(follows);
}

}  // namespace
}  // namespace symm::test
