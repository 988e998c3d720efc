// The queue that asynchronous operations run on.
#include "backend/engine/async_queue.hpp"

#include <gtest/gtest.h>

#include <condition_variable>
#include <functional>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace symm {
namespace {

using std::chrono::milliseconds;

// What happened to the tasks of one test, in order: "3" for a run of task 3, "x3" for its
// cancellation.
class Journal {
 public:
  void write(const std::string& entry) {
    std::lock_guard lock(mutex_);
    entries_.push_back(entry);
  }
  std::vector<std::string> entries() const {
    std::lock_guard lock(mutex_);
    return entries_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> entries_;
};

AsyncQueue::Task journal_task(Journal& journal, int number, std::function<void()> body = {}) {
  return [&journal, number, body = std::move(body)](const Error* stopped) {
    if (stopped != nullptr) {
      journal.write("x" + std::to_string(number) + " " + stopped->what());
      return;
    }
    if (body) body();
    journal.write(std::to_string(number));
  };
}

using Entries = std::vector<std::string>;

TEST(AsyncQueue, RunsTasksInTheOrderOfPosting) {
  Journal journal;
  Entries expected;
  AsyncQueue queue;
  EXPECT_TRUE(queue.idle());
  for (int i = 0; i < 200; ++i) {
    queue.post(journal_task(journal, i));
    expected.push_back(std::to_string(i));
  }
  queue.drain();
  EXPECT_TRUE(queue.idle());
  EXPECT_EQ(journal.entries(), expected);
}

TEST(AsyncQueue, IsBusyUntilATaskHasReturned) {
  Journal journal;
  AsyncQueue queue;
  std::promise<void> started;
  std::promise<void> release;
  queue.post(journal_task(journal, 1, [&] {
    started.set_value();
    release.get_future().wait();
  }));
  queue.post(journal_task(journal, 2));
  started.get_future().wait();
  EXPECT_FALSE(queue.idle());
  EXPECT_EQ(queue.unfinished(), 2u);
  release.set_value();
  queue.drain();
  EXPECT_EQ(queue.unfinished(), 0u);
}

TEST(AsyncQueue, KnowsItsOwnThread) {
  Journal journal;
  AsyncQueue queue;
  EXPECT_FALSE(queue.on_worker_thread());
  bool inside = false;
  queue.post(journal_task(journal, 1, [&] {
    inside = queue.on_worker_thread();
    queue.drain();  // would wait for itself if it did not know
    queue.post(journal_task(journal, 2));
  }));
  queue.drain();
  EXPECT_TRUE(inside);
  EXPECT_FALSE(queue.on_worker_thread());
  EXPECT_EQ(journal.entries(), (Entries{"1", "2"}));
}

TEST(AsyncQueue, StopCancelsWhatHasNotBegunAndWaitsForTheRest) {
  Journal journal;
  AsyncQueue queue;
  std::promise<void> started;
  std::promise<void> release;
  queue.post(journal_task(journal, 1, [&] {
    started.set_value();
    release.get_future().wait();
  }));
  queue.post(journal_task(journal, 2));
  queue.post(journal_task(journal, 3));
  started.get_future().wait();
  std::thread stopper(
      [&] { queue.stop(Error(ErrorCode::kAborted, "over"), milliseconds(20'000)); });
  while (journal.entries().size() < 2) std::this_thread::yield();
  release.set_value();
  stopper.join();
  EXPECT_EQ(journal.entries(), (Entries{"x2 over", "x3 over", "1"}));
  EXPECT_TRUE(queue.idle());
  queue.stop(Error(ErrorCode::kAborted, "again"), milliseconds(20'000));
  try {
    queue.post(journal_task(journal, 4));
    FAIL() << "a stopped queue took a task";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kAborted);
  }
  EXPECT_EQ(journal.entries().size(), 3u);
}

TEST(AsyncQueue, StopLeavesATaskThatDoesNotReturn) {
  static Journal journal;  // outlives the thread that is left behind
  std::promise<void> started;
  const auto release = std::make_shared<std::promise<void>>();
  {
    AsyncQueue queue;
    queue.post(journal_task(journal, 1, [&started, release] {
      started.set_value();
      release->get_future().wait();
    }));
    started.get_future().wait();
    queue.stop(Error(ErrorCode::kAborted, "over"), milliseconds(50));
    EXPECT_TRUE(journal.entries().empty());
  }
  release->set_value();
  while (journal.entries().empty()) std::this_thread::yield();
}

TEST(AsyncQueue, MayBeDestroyedByItsOwnTask) {
  Journal journal;
  auto queue = std::make_unique<AsyncQueue>();
  AsyncQueue& posted_to = *queue;
  std::promise<void> destroyed;
  std::promise<void> posted;
  posted_to.post(journal_task(journal, 1, [&] {
    posted.get_future().wait();
    queue.reset();
    destroyed.set_value();
  }));
  posted.set_value();
  destroyed.get_future().wait();
  EXPECT_EQ(queue, nullptr);
  while (journal.entries().empty()) std::this_thread::yield();
}

TEST(AsyncQueue, TakesTasksFromManyThreads) {
  constexpr int kThreads = 4;
  constexpr int kTasks = 250;
  int sum = 0;  // written by the queue's one thread only
  Journal journal;
  AsyncQueue queue;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kTasks; ++i) {
        const int number = t * kTasks + i;
        queue.post(journal_task(journal, i, [&sum, number] { sum += number; }));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  queue.drain();
  EXPECT_EQ(sum, kThreads * kTasks * (kThreads * kTasks - 1) / 2);
}

// NOTE [Callbacks]
TEST(AsyncQueue, WhatACallbackRunsComesBeforeWhatIsQueued) {
  Journal journal;
  AsyncQueue queue;
  std::promise<void> posted;
  queue.post(journal_task(journal, 1, [&] {
    posted.get_future().wait();
    EXPECT_FALSE(queue.run_here(journal_task(journal, 0)));  // before its callbacks
    AsyncQueue::callbacks_begin();
    EXPECT_TRUE(queue.run_here(journal_task(journal, 11, [&] {
      AsyncQueue::callbacks_begin();
      EXPECT_TRUE(queue.run_here(journal_task(journal, 111)));
    })));
    EXPECT_TRUE(queue.run_here(journal_task(journal, 12)));
  }));
  queue.post(journal_task(journal, 2));
  posted.set_value();
  queue.drain();
  EXPECT_FALSE(queue.run_here(journal_task(journal, 3)));
  EXPECT_EQ(journal.entries(), (Entries{"111", "11", "12", "1", "2"}));
}

TEST(AsyncQueue, ACallbackRunsTheTasksUpToTheOneItWaitsFor) {
  Journal journal;
  AsyncQueue queue;
  std::promise<void> posted;
  const int name = 0;
  queue.post(journal_task(journal, 1, [&] {
    posted.get_future().wait();
    AsyncQueue::run_up_to(&name);  // not yet in a callback
    EXPECT_TRUE(journal.entries().empty());
    AsyncQueue::callbacks_begin();
    AsyncQueue::run_up_to(&name);
    AsyncQueue::run_up_to(&name);  // it has run
    EXPECT_EQ(journal.entries(), (Entries{"2", "3"}));
  }));
  queue.post(journal_task(journal, 2));
  queue.post(journal_task(journal, 3), &name);
  queue.post(journal_task(journal, 4));
  posted.set_value();
  queue.drain();
  EXPECT_EQ(journal.entries(), (Entries{"2", "3", "1", "4"}));
}

TEST(AsyncQueue, ACallbackOfAnotherQueueRunsWhereOneIsWaitingForIt) {
  Journal journal;
  AsyncQueue queue;
  AsyncQueue other;
  std::promise<void> posted;
  queue.post(journal_task(journal, 1, [&] {
    posted.get_future().wait();
    AsyncQueue::callbacks_begin();
    std::promise<void> ended;
    other.post(journal_task(journal, 2, [&] {
      AsyncQueue::callbacks_begin();
      EXPECT_TRUE(queue.run_here(journal_task(journal, 3)));
      ended.set_value();
    }));
    ended.get_future().wait();
    other.drain();
  }));
  queue.post(journal_task(journal, 4));
  posted.set_value();
  queue.drain();
  EXPECT_EQ(journal.entries(), (Entries{"3", "2", "1", "4"}));
}

TEST(AsyncQueue, ATaskThatIsHeldEndsAtItsLimit) {
  Journal journal;
  AsyncQueue queue(AsyncQueue::Callbacks::kHoldNext, [](milliseconds limit) {
    return Error(ErrorCode::kTimeout, std::to_string(limit.count()));
  });
  for (int turn = 0; turn < 2; ++turn) {
    std::promise<void> posted;
    std::promise<void> ended;
    queue.post(journal_task(journal, 1, [&] {
      posted.get_future().wait();
      AsyncQueue::callbacks_begin();
      ended.get_future().wait();
    }));
    queue.post(
        [&](const Error* stopped) {
          journal.write(stopped != nullptr ? stopped->what() : "not stopped");
          ended.set_value();
        },
        nullptr, milliseconds(30));
    posted.set_value();
    queue.drain();
  }
  const std::string reason = Error(ErrorCode::kTimeout, "30").what();
  EXPECT_EQ(journal.entries(), (Entries{reason, "1", reason, "1"}));
}

TEST(AsyncQueue, CallbacksWithoutAnOrderWaitForEachOther) {
  constexpr int kDepth = 8;
  Journal journal;
  AsyncQueue queue(AsyncQueue::Callbacks::kRunNext);
  std::function<void(int)> post_next = [&](int level) {
    std::promise<void> ended;
    queue.post(journal_task(journal, level, [&, level] {
      AsyncQueue::callbacks_begin();
      if (level + 1 < kDepth) post_next(level + 1);
      ended.set_value();
    }));
    ended.get_future().wait();
  };
  for (int turn = 0; turn < 20; ++turn) post_next(0);
  queue.drain();
  EXPECT_EQ(journal.entries().size(), 20u * kDepth);
  EXPECT_TRUE(queue.idle());
}

}  // namespace
}  // namespace symm
