#include "backend/engine/async_queue.hpp"

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

namespace symm {

namespace {

constexpr std::chrono::milliseconds kDestructorLimit{5'000};

}  // namespace

// Shared with the thread, so that the queue may be destroyed while the thread is still inside a
// callback.
struct AsyncQueue::State {
  std::mutex mutex;
  std::condition_variable work_arrived;
  std::condition_variable settled;  // idle, or the thread has ended
  std::deque<Task> waiting;
  bool stopping = false;
  bool thread_ended = true;
  std::thread thread;
  std::atomic<std::size_t> unfinished{0};
  std::atomic<std::thread::id> worker{};

  void finish_tasks(std::size_t count) {
    if (count == 0 || unfinished.fetch_sub(count, std::memory_order_acq_rel) != count) return;
    // The lock orders this against a waiter that has tested the count but does not sleep yet.
    std::lock_guard lock(mutex);
    settled.notify_all();
  }
};

AsyncQueue::AsyncQueue() : state_(std::make_shared<State>()) {}

AsyncQueue::~AsyncQueue() {
  if (!state_) return;
  stop(Error(ErrorCode::kAborted, "the process group was destroyed while the operation waited"),
       kDestructorLimit);
}

std::size_t AsyncQueue::unfinished() const noexcept {
  return state_->unfinished.load(std::memory_order_acquire);
}

bool AsyncQueue::on_worker_thread() const noexcept {
  return state_->worker.load(std::memory_order_relaxed) == std::this_thread::get_id();
}

void AsyncQueue::work(const std::shared_ptr<State>& state) {
  pthread_setname_np(pthread_self(), "symm_async");
  state->worker.store(std::this_thread::get_id(), std::memory_order_relaxed);
  std::unique_lock lock(state->mutex);
  for (;;) {
    state->work_arrived.wait(lock, [&] { return state->stopping || !state->waiting.empty(); });
    if (state->waiting.empty()) break;
    Task task = std::move(state->waiting.front());
    state->waiting.pop_front();
    lock.unlock();
    task(nullptr);
    task = nullptr;
    state->finish_tasks(1);
    lock.lock();
  }
  state->thread_ended = true;
  state->settled.notify_all();
}

void AsyncQueue::post(Task task) {
  std::lock_guard lock(state_->mutex);
  if (state_->stopping) {
    throw Error(ErrorCode::kAborted, "the process group was destroyed; it takes no operations");
  }
  if (!state_->thread.joinable()) {
    try {
      state_->thread = std::thread([state = state_] { work(state); });
      state_->thread_ended = false;
    } catch (const std::system_error& error) {
      throw Error(ErrorCode::kSystem, std::string("cannot start the thread that asynchronous "
                                                  "operations need: ") +
                                          error.what());
    }
  }
  state_->waiting.push_back(std::move(task));
  state_->unfinished.fetch_add(1, std::memory_order_acq_rel);
  state_->work_arrived.notify_one();
}

void AsyncQueue::drain() {
  if (on_worker_thread()) return;
  std::unique_lock lock(state_->mutex);
  state_->settled.wait(lock, [&] { return idle(); });
}

void AsyncQueue::stop(const Error& reason, std::chrono::milliseconds limit) {
  // The destructor of a task may drop the last reference to this queue.
  const std::shared_ptr<State> state = state_;
  std::deque<Task> cancelled;
  std::thread thread;
  {
    std::lock_guard lock(state->mutex);
    state->stopping = true;
    cancelled.swap(state->waiting);
    thread.swap(state->thread);
    state->work_arrived.notify_all();
  }
  const std::size_t count = cancelled.size();
  for (const Task& task : cancelled) task(&reason);
  cancelled.clear();
  state->finish_tasks(count);

  if (!thread.joinable()) return;
  bool ended = false;
  if (thread.get_id() != std::this_thread::get_id()) {
    std::unique_lock lock(state->mutex);
    ended = state->settled.wait_for(lock, limit, [&] { return state->thread_ended; });
  }
  if (ended) {
    thread.join();
  } else {
    thread.detach();
  }
}

void AsyncQueue::abandon() noexcept {
  // The thread object refers to a thread of another process: never join, detach or destroy it.
  [[maybe_unused]] const auto* leaked = new std::shared_ptr<State>(std::move(state_));
}

}  // namespace symm
