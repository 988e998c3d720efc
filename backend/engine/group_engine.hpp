// One process group's communicator together with its queue, and how the two end.
//
// NOTE [How a group ends]
//   shutdown()   what destroy_process_group does: takes no new call, lets the queued ones finish
//                (each is bounded by its own time-out), then leaves in good order.
//   interrupt()  the process ends or the group is dropped: queued operations are cancelled, running
//                ones are interrupted, peers see that this rank has left.
//   abort()      the group has failed: that is published at once; later calls throw the failure.
// None of them blocks for ever, and each may be called more than once and from any thread.
//
// NOTE [End of the process]
// A program may return from main, call exit() or end by an exception without destroying its groups,
// with operations in flight. Threads that then still run would touch destroyed objects, or keep the
// process from ending. interrupt_live_groups() ends all of them first. It is registered with
// std::atexit when the first group is made; a host with an earlier end of its own (Python's
// interpreter is gone by then, and callbacks may need it) calls it before that.
//
// In a forked child every member throws or does nothing: the parent's memory and sockets are not
// the child's to use, and its threads are not there.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "backend/engine/async_queue.hpp"
#include "backend/engine/communicator.hpp"
#include "symm_mem/bootstrap/store.hpp"

namespace symm {

// The error of a use, in a forked child, of what its parent's group has made.
inline Error made_by_parent() {
  return {ErrorCode::kAborted,
          "this process group was made before fork() and belongs to the parent process; a child "
          "must make its own"};
}

class GroupEngine {
 public:
  // Collective, as the constructor of Communicator; registers the group for the end of the process.
  static std::shared_ptr<GroupEngine> create(KeyValueStore& store, CommunicatorConfig config);
  // Interrupts, and releases the communicator. Blocks briefly (blocking_section).
  ~GroupEngine();
  GroupEngine(const GroupEngine&) = delete;
  GroupEngine& operator=(const GroupEngine&) = delete;

  // Throws Error(kAborted) for a destroyed group and in a forked child.
  void check_exists() const {
    if (closed_.load(std::memory_order_acquire) || is_forked_child()) [[unlikely]] {
      throw_unusable();
    }
  }
  // The same for a suspended group too. Three loads.
  void check_usable() const {
    check_exists();
    if (communicator_->is_suspended()) [[unlikely]] {
      communicator_->check_usable();
    }
  }

  Communicator& communicator() { return *communicator_; }
  // For whoever may outlive the group: a queued operation, a transfer.
  const std::shared_ptr<Communicator>& shared_communicator() const { return communicator_; }
  AsyncQueue& queue() { return queue_; }
  // Where the callbacks of transfers run, which must not keep the others from progress. Shared
  // with the transfers.
  const std::shared_ptr<AsyncQueue>& transfer_callbacks() const { return transfer_callbacks_; }
  // Where the program's hook of ended operations runs, and nothing else. Shared as well.
  const std::shared_ptr<AsyncQueue>& completion_hooks() const { return completion_hooks_; }

  // True when a synchronous call may run on the calling thread without overtaking another.
  bool may_run_inline() const { return queue_.idle(); }

  // The time-out of a call that asked for `requested`; values of 0 and less mean the group's.
  std::chrono::milliseconds timeout(std::chrono::milliseconds requested = {}) const {
    return requested.count() > 0
               ? requested
               : std::chrono::milliseconds(timeout_ms_.load(std::memory_order_relaxed));
  }
  void set_timeout(std::chrono::milliseconds timeout);

  // `body` ends, from any thread, what a queued operation may wait for beside the communicator;
  // before anything is queued.
  void when_interrupted(std::function<void()> body) { when_interrupted_ = std::move(body); }

  // As Communicator's, behind what is queued. They block, without Python's interpreter lock.
  void suspend();
  void resume();

  void shutdown();
  void interrupt();
  void abort(const std::string& reason);

 private:
  GroupEngine(std::shared_ptr<Communicator> communicator, std::chrono::milliseconds timeout);
  bool is_forked_child() const;
  [[noreturn]] void throw_unusable() const;
  void close(const char* why);

  std::shared_ptr<Communicator> communicator_;
  std::function<void()> when_interrupted_;
  AsyncQueue queue_;
  const std::shared_ptr<AsyncQueue> transfer_callbacks_;
  const std::shared_ptr<AsyncQueue> completion_hooks_;
  std::atomic<std::int64_t> timeout_ms_;
  std::atomic<bool> closed_{false};
  std::uint32_t fork_generation_;
};

// GroupEngine::interrupt() for every group of this process that still exists. Idempotent.
void interrupt_live_groups();

}  // namespace symm
