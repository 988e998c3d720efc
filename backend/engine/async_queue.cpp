#include "backend/engine/async_queue.hpp"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "symm_mem/process/deadline.hpp"
#include "symm_mem/process/system_error.hpp"

namespace symm {

namespace {

using std::chrono::milliseconds;
using QueueClock = std::chrono::steady_clock;

constexpr milliseconds kDestructorLimit{5'000};

}  // namespace

// Shared with the threads, so that the queue may be destroyed while one is still inside a callback.
struct AsyncQueue::State : std::enable_shared_from_this<State> {
  State(Callbacks policy, Overdue on_overdue) : callbacks(policy), overdue(std::move(on_overdue)) {}

  struct QueuedTask {
    Task run;
    const void* name;
    milliseconds limit;
    QueueClock::time_point posted;
  };

  // A task that a thread is inside. They nest: a callback may run further tasks.
  enum class Run { kInTurn, kByCallback, kCancelled };
  struct Frame {
    State* queue;
    Frame* outer;
    Run how;
    bool in_callbacks = false;
  };
  static thread_local Frame* innermost;

  const Callbacks callbacks;
  std::atomic<std::size_t> unfinished{0};

  std::mutex mutex;  // guards what follows
  std::condition_variable work_arrived;
  std::condition_variable settled;  // idle, or the threads have ended
  std::deque<QueuedTask> waiting;
  bool stopping = false;
  bool taken = false;                 // a task has its turn; with kRunNext only until its callbacks
  bool in_callbacks = false;          // that task runs callbacks, and the next one is held
  std::size_t run_by_callbacks = 0;   // tasks that such callbacks run, up to their own callbacks
  QueueClock::time_point held_since;  // by callbacks that run no task
  std::vector<std::thread> threads;
  std::size_t alive = 0;
  std::size_t workers = 0;       // of these, the ones that take tasks
  std::size_t without_task = 0;  // of these, waiting for one
  std::size_t calling_back = 0;  // of these, inside callbacks after which no task waits for them

  Overdue overdue;
  std::condition_variable watch_changed;
  bool watching = false;  // the thread that watches the limits exists
  QueueClock::time_point watched_until = QueueClock::time_point::max();

  void start(void (State::*body)());
  void work();
  void watch();
  void wake_or_start();
  void look_at_limits();
  QueueClock::time_point deadline() const;
  void begin_callbacks(Run how);
  void hold();
  bool run(Task task, Run how);
  void run_by_callback(Task task);
  void end_turn(bool called_back);
  static bool inside(const State* queue);
  void cancel(std::unique_lock<std::mutex>& lock, const Error& reason);

  void finish_tasks(std::size_t count) {
    if (count == 0 || unfinished.fetch_sub(count, std::memory_order_acq_rel) != count) return;
    // The lock orders this against a waiter that has tested the count but does not sleep yet.
    std::lock_guard lock(mutex);
    settled.notify_all();
  }
};

thread_local AsyncQueue::State::Frame* AsyncQueue::State::innermost = nullptr;

// With the lock held, as all that touches `threads`.
void AsyncQueue::State::start(void (State::*body)()) {
  threads.emplace_back([state = shared_from_this(), body] {
    pthread_setname_np(pthread_self(), "symm_async");
    ((*state).*body)();
    std::lock_guard lock(state->mutex);
    --state->alive;
    state->settled.notify_all();
  });
  ++alive;
}

void AsyncQueue::State::wake_or_start() {
  if (without_task > 0) {
    work_arrived.notify_one();
  } else if (calling_back == workers) {
    start(&State::work);
    ++workers;
  }
}

bool AsyncQueue::State::inside(const State* queue) {
  for (const Frame* frame = innermost; frame != nullptr; frame = frame->outer) {
    if (frame->queue == queue) return true;
  }
  return false;
}

// True where the task ran callbacks.
bool AsyncQueue::State::run(Task task, Run how) {
  Frame frame{this, innermost, how};
  innermost = &frame;
  task(nullptr);
  task = nullptr;
  innermost = frame.outer;
  return frame.in_callbacks;
}

void AsyncQueue::State::run_by_callback(Task task) {
  {
    std::lock_guard lock(mutex);
    ++run_by_callbacks;
  }
  if (run(std::move(task), Run::kByCallback)) return;
  std::lock_guard lock(mutex);
  --run_by_callbacks;
  hold();
}

void AsyncQueue::State::work() {
  std::unique_lock lock(mutex);
  for (;;) {
    ++without_task;
    work_arrived.wait(lock, [&] { return stopping || (!taken && !waiting.empty()); });
    --without_task;
    if (waiting.empty()) break;
    Task task = std::move(waiting.front().run);
    waiting.pop_front();
    taken = true;
    lock.unlock();
    const bool called_back = run(std::move(task), Run::kInTurn);
    finish_tasks(1);
    lock.lock();
    end_turn(called_back);
  }
}

void AsyncQueue::State::end_turn(bool called_back) {
  if (called_back && callbacks == Callbacks::kRunNext) {
    --calling_back;  // the turn ended when they began
  } else {
    taken = false;
    in_callbacks = false;
  }
}

void AsyncQueue::State::begin_callbacks(Run how) {
  std::lock_guard lock(mutex);
  try {
    if (how == Run::kByCallback) {
      --run_by_callbacks;
      hold();
    } else if (callbacks == Callbacks::kRunNext) {
      taken = false;
      ++calling_back;
      if (!waiting.empty()) wake_or_start();
    } else {
      in_callbacks = true;
      hold();
    }
  } catch (const std::system_error&) {
    // No thread can be made: the next task comes when the callbacks have returned.
  }
}

void AsyncQueue::State::hold() {
  held_since = QueueClock::now();
  look_at_limits();
}

// When the next task will have been held for longer than its limit.
QueueClock::time_point AsyncQueue::State::deadline() const {
  constexpr auto kNever = QueueClock::time_point::max();
  if (!in_callbacks || run_by_callbacks > 0 || waiting.empty() || !overdue) return kNever;
  const QueuedTask& next = waiting.front();
  if (next.limit.count() <= 0) return kNever;
  return std::max(held_since, next.posted) + within_longest(next.limit);
}

void AsyncQueue::State::look_at_limits() {
  if (deadline() >= watched_until) return;
  try {
    if (!watching) start(&State::watch);
    watching = true;
    watch_changed.notify_one();
  } catch (const std::system_error&) {
    // No thread can be made: the next task waits for as long as the callbacks take.
  }
}

void AsyncQueue::State::watch() {
  std::unique_lock lock(mutex);
  while (!stopping) {
    watched_until = deadline();
    if (watched_until == QueueClock::time_point::max()) {
      watch_changed.wait(lock);
    } else if (QueueClock::now() < watched_until) {
      watch_changed.wait_until(lock, watched_until);
    } else {
      const milliseconds limit = waiting.front().limit;
      const Overdue report = overdue;
      lock.unlock();
      const Error reason = report(limit);
      lock.lock();
      cancel(lock, reason);
    }
  }
}

// Lets go of the lock meanwhile. Callbacks are as inside a task: they may not wait for the queue.
void AsyncQueue::State::cancel(std::unique_lock<std::mutex>& lock, const Error& reason) {
  std::deque<QueuedTask> cancelled;
  cancelled.swap(waiting);
  lock.unlock();
  const std::size_t count = cancelled.size();
  Frame frame{this, innermost, Run::kCancelled};
  innermost = &frame;
  for (const QueuedTask& task : cancelled) task.run(&reason);
  cancelled.clear();
  innermost = frame.outer;
  finish_tasks(count);
  lock.lock();
}

AsyncQueue::AsyncQueue(Callbacks callbacks, Overdue overdue)
    : state_(std::make_shared<State>(callbacks, std::move(overdue))) {}

AsyncQueue::~AsyncQueue() {
  if (!state_) return;
  stop(Error(ErrorCode::kAborted, "the process group was destroyed while the operation waited"),
       kDestructorLimit);
}

std::size_t AsyncQueue::unfinished() const noexcept {
  return state_->unfinished.load(std::memory_order_acquire);
}

bool AsyncQueue::on_worker_thread() const noexcept { return State::inside(state_.get()); }

void AsyncQueue::post(Task task, const void* name, milliseconds limit) {
  std::lock_guard lock(state_->mutex);
  if (state_->stopping) {
    throw Error(ErrorCode::kAborted, "the process group was destroyed; it takes no operations");
  }
  state_->waiting.push_back({std::move(task), name, limit, QueueClock::now()});
  try {
    state_->wake_or_start();
    state_->look_at_limits();
  } catch (const std::system_error& error) {
    state_->waiting.pop_back();
    throw_no_thread("asynchronous operations", error);
  }
  state_->unfinished.fetch_add(1, std::memory_order_acq_rel);
}

bool AsyncQueue::run_here(const Task& task) {
  if (State::innermost == nullptr || !State::innermost->in_callbacks) return false;
  const std::shared_ptr<State> state = state_;
  if (!State::inside(state.get())) {
    std::lock_guard lock(state->mutex);
    if (!state->in_callbacks) return false;
  }
  state->run_by_callback(task);
  return true;
}

void AsyncQueue::run_up_to(const void* name) {
  for (State::Frame* frame = State::innermost; frame != nullptr; frame = frame->outer) {
    if (!frame->in_callbacks) continue;
    State& state = *frame->queue;
    std::unique_lock lock(state.mutex);
    while (std::any_of(state.waiting.begin(), state.waiting.end(),
                       [&](const State::QueuedTask& task) { return task.name == name; })) {
      Task task = std::move(state.waiting.front().run);
      state.waiting.pop_front();
      lock.unlock();
      state.run_by_callback(std::move(task));
      state.finish_tasks(1);
      lock.lock();
    }
  }
}

void AsyncQueue::callbacks_begin() noexcept {
  State::Frame* const frame = State::innermost;
  if (frame == nullptr || std::exchange(frame->in_callbacks, true)) return;
  if (frame->how != State::Run::kCancelled) frame->queue->begin_callbacks(frame->how);
}

void AsyncQueue::drain() {
  if (on_worker_thread()) return;
  std::unique_lock lock(state_->mutex);
  state_->settled.wait(lock, [&] { return idle(); });
}

void AsyncQueue::stop(const Error& reason, milliseconds limit) {
  // The destructor of a task may drop the last reference to this queue.
  const std::shared_ptr<State> state = state_;
  const bool own_thread = on_worker_thread();
  std::vector<std::thread> threads;
  bool ended = false;
  {
    std::unique_lock lock(state->mutex);
    state->stopping = true;
    threads.swap(state->threads);
    state->work_arrived.notify_all();
    state->watch_changed.notify_all();
    state->cancel(lock, reason);
    if (threads.empty()) return;
    if (!own_thread) {
      ended = state->settled.wait_for(lock, limit, [&] { return state->alive == 0; });
    }
  }
  for (std::thread& thread : threads) {
    if (ended) {
      thread.join();
    } else {
      thread.detach();
    }
  }
}

void AsyncQueue::abandon() noexcept {
  // The thread objects refer to threads of another process: never join, detach or destroy them.
  [[maybe_unused]] const auto* leaked = new std::shared_ptr<State>(std::move(state_));
}

}  // namespace symm
