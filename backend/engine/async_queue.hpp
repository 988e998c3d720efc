// A first-in first-out executor, which has no thread before something was posted.
//
// NOTE [Idle queue]
// idle() is what lets a synchronous call run on its caller's thread: it is one atomic load. A task
// counts as unfinished until it has returned and is destroyed, so whatever a completion callback
// runs comes before the next call of another thread that finds the queue idle.
//
// NOTE [Callbacks]
// A task that is about to run callbacks of a user says so (callbacks_begin). A callback may wait
// for what only this queue can do, and a wait for a future cannot be intercepted. Two ways to keep
// such a wait from lasting for ever:
//
//   kHoldNext  for tasks whose order all ranks must share. The next task is held until the
//              callbacks have returned. What a callback issues runs on the callback's thread
//              before it returns to the callback (run_here), at any depth; so calls made in
//              callbacks come right behind the call that they belong to, on every rank, however
//              far the other threads of each rank are. A Work that a callback waits for is
//              carried out by that thread too, with all that was posted before it (run_up_to).
//              What remains, a future of a task that is held, ends at that task's limit.
//   kRunNext   for tasks without an order. Another thread takes the next task at once; it is
//              started only where a task arrives while all others are inside callbacks.
//
// Thread safety: every member may be called from any thread. The queue keeps nothing of a task
// after it ran. It must not be used in a forked child, where its threads do not exist; the owner
// checks that (GroupEngine).
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>

#include "kernels/core/error.hpp"

namespace symm {

class AsyncQueue {
 public:
  // Called once and must not throw: with null when its turn comes; or, where the queue is stopped
  // or the task's limit passes before that, with the reason on another thread.
  using Task = std::function<void(const Error* stopped)>;

  enum class Callbacks { kHoldNext, kRunNext };

  // Called when a task was held for longer than its limit; every task that is queued gets the
  // result as its reason.
  using Overdue = std::function<Error(std::chrono::milliseconds limit)>;

  explicit AsyncQueue(Callbacks callbacks = Callbacks::kHoldNext, Overdue overdue = {});
  // Stops as stop() does, with a reason that says that the queue was destroyed.
  ~AsyncQueue();
  AsyncQueue(const AsyncQueue&) = delete;
  AsyncQueue& operator=(const AsyncQueue&) = delete;

  // True when nothing is queued or running.
  bool idle() const noexcept { return unfinished() == 0; }
  // True inside a task of this queue and its callbacks.
  bool on_worker_thread() const noexcept;

  // Number of tasks that are queued or running.
  std::size_t unfinished() const noexcept;

  // Throws Error(kAborted) once stopped, Error(kSystem) when no thread can be made; the task is
  // then destroyed without being called. `name` is what run_up_to() finds the task by; a callback
  // may hold it for `limit`, 0 for ever.
  void post(Task task, const void* name = nullptr, std::chrono::milliseconds limit = {});

  // Inside a callback of this queue: runs `task` on this thread before all that is queued. Also
  // inside a callback of another queue, as long as one of this queue is running, which may be
  // waiting for it. False, having done nothing, elsewhere.
  bool run_here(const Task& task);

  // Inside a callback: runs the tasks of its queue up to the one with this name, if that is queued.
  static void run_up_to(const void* name);

  // From a task: from now on, until it returns, callbacks run. Does nothing elsewhere.
  static void callbacks_begin() noexcept;

  // Blocks until the queue is idle. Returns at once on the worker thread.
  void drain();

  // Refuses new tasks, cancels those that have not begun, and waits at most `limit` for the
  // others. A thread that does not come back in time (it may be inside a user's callback) is
  // left to end by itself: it owns all that it touches. Idempotent.
  void stop(const Error& reason, std::chrono::milliseconds limit);

  // Forgets the threads without touching them: for a forked child.
  void abandon() noexcept;

 private:
  struct State;

  std::shared_ptr<State> state_;
};

}  // namespace symm
