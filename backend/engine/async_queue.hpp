// A first-in first-out executor with one thread, which exists only once something was posted.
//
// NOTE [Idle queue]
// idle() is what lets a synchronous call run on its caller's thread: it is one atomic load. A task
// counts as unfinished until it has returned and is destroyed, so whatever a completion
// callback posts or runs from the queue's own thread comes before the next call of another thread
// that finds the queue idle.
//
// Thread safety: every member may be called from any thread. The queue keeps nothing of a task
// after it ran. It must not be used in a forked child, where its thread does not exist; the owner
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
  // Called once and must not throw: with null on the queue's thread; or, where the queue is stopped
  // before that, with the reason on the thread that stops it.
  using Task = std::function<void(const Error* stopped)>;

  AsyncQueue();
  // Stops as stop() does, with a reason that says that the queue was destroyed.
  ~AsyncQueue();
  AsyncQueue(const AsyncQueue&) = delete;
  AsyncQueue& operator=(const AsyncQueue&) = delete;

  // True when nothing is queued or running.
  bool idle() const noexcept { return unfinished() == 0; }
  // True on the thread that runs the tasks.
  bool on_worker_thread() const noexcept;

  // Number of tasks that are queued or running.
  std::size_t unfinished() const noexcept;

  // Throws Error(kAborted) once stopped, Error(kSystem) when no thread can be made; the task is
  // then destroyed without being called.
  void post(Task task);

  // Blocks until the queue is idle. Returns at once on the worker thread.
  void drain();

  // Refuses new tasks, cancels those that have not begun, and waits at most `limit` for the
  // running one. A thread that does not come back in time (it may be inside a user's callback) is
  // left to end by itself: it owns all that it touches. Idempotent.
  void stop(const Error& reason, std::chrono::milliseconds limit);

  // Forgets the thread without touching it: for a forked child.
  void abandon() noexcept;

 private:
  struct State;
  static void work(const std::shared_ptr<State>& state);

  std::shared_ptr<State> state_;
};

}  // namespace symm
