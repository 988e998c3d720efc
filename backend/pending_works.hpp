// Which operations of a group have not ended, and the hook that is told of those that have.
//
// NOTE [Completion hook]
// c10d lets a program give one hook a group (registerOnCompletionHook), which gets a record of each
// operation that was issued since, once it has ended, well or not. The records come in the order of
// the ends, one at a time, on a thread that runs nothing else, so a slow hook delays no operation.
// On the host the record leaves with the end itself. On a GPU nobody is told of an end, so the
// thread that polls for getFutureResult() follows every operation while there is a hook; one that
// is captured runs with its graph, as often as that is replayed, and is not reported. A coalescing
// block is one operation on a GPU and as many as it has on the host. An operation whose end nobody
// can see any more, since its group is gone, is pending no longer and is not reported.
//
// Thread safety: every member may be called from any thread.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "backend/engine/async_queue.hpp"

namespace symm {

// Shared by the group and its Works, which may outlive it.
class PendingWorks : public std::enable_shared_from_this<PendingWorks> {
 public:
  using Record = std::shared_ptr<c10d::WorkInfo>;
  using Hook = std::function<void(Record)>;

  // `hook_thread` belongs to the group's engine, which stops it before the process may no longer
  // call a hook.
  explicit PendingWorks(std::shared_ptr<AsyncQueue> hook_thread)
      : hook_thread_(std::move(hook_thread)) {}

  // Throws Error(kInvalidArgument) for a hook that is empty, and for a second one.
  void set_hook(Hook hook);
  bool has_hook() const noexcept { return has_hook_.load(std::memory_order_acquire); }

  // For an operation, which then calls ended() once; a null record is not reported.
  void began() noexcept { count_.fetch_add(1, std::memory_order_relaxed); }
  void ended(const Record& record) noexcept;

  // Blocks until nothing is pending and the hook has had every record. Each operation ends by its
  // own time-out. Throws Error(kInvalidArgument) inside the hook, which it would wait for, and
  // Interrupted.
  void wait();

 private:
  bool none() const noexcept { return count_.load() == 0; }
  void report(const Record& record);

  const std::shared_ptr<AsyncQueue> hook_thread_;
  std::atomic<std::size_t> count_{0};
  std::atomic<int> waiters_{0};  // threads inside wait()
  std::atomic<bool> has_hook_{false};
  Hook hook_;  // set once, before has_hook_
  std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace symm
