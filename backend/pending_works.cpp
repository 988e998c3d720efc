#include "backend/pending_works.hpp"

#include <c10/util/Logging.h>

#include <chrono>
#include <exception>
#include <utility>

#include "symm_mem/process/interrupt.hpp"

namespace symm {

namespace {

// One more in `count` for as long as this lives.
class Counted {
 public:
  explicit Counted(std::atomic<int>& count) : count_(count) { count_.fetch_add(1); }
  ~Counted() { count_.fetch_sub(1); }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  std::atomic<int>& count_;
};

}  // namespace

void PendingWorks::set_hook(Hook hook) {
  if (!hook) {
    throw Error(ErrorCode::kInvalidArgument,
                "registerOnCompletionHook: hook: expected a function, got none");
  }
  const std::lock_guard lock(mutex_);
  if (has_hook()) {
    throw Error(ErrorCode::kInvalidArgument,
                "registerOnCompletionHook: hook: expected one for the group, got a second one");
  }
  hook_ = std::move(hook);
  has_hook_.store(true, std::memory_order_release);
}

void PendingWorks::report(const Record& record) {
  hook_thread_->post([self = shared_from_this(), record](const Error* stopped) {
    if (stopped != nullptr) return;
    try {
      self->hook_(record);
    } catch (const std::exception& error) {
      LOG(ERROR) << "symm: a completion hook failed: " << error.what();
    } catch (...) {
      LOG(ERROR) << "symm: a completion hook failed";
    }
  });
}

void PendingWorks::ended(const Record& record) noexcept {
  if (record && has_hook()) {
    try {
      report(record);
    } catch (const std::exception& error) {
      // The group is at its end, or there is no thread to be had.
      LOG(WARNING) << "symm: a completion hook was not called: " << error.what();
    }
  }
  // In one order with what a waiter does: either it sees this end or it is seen here.
  if (count_.fetch_sub(1) != 1 || waiters_.load() == 0) return;
  // The lock orders this against a waiter that has tested the count but does not sleep yet.
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

void PendingWorks::wait() {
  if (hook_thread_->on_worker_thread()) {
    throw Error(ErrorCode::kInvalidArgument,
                "waitForPendingWorks: expected a call outside of the completion hook, which it "
                "waits for, got one inside");
  }
  constexpr std::chrono::milliseconds kLookPeriod{5};
  const Counted waiting(waiters_);
  std::unique_lock lock(mutex_);
  // An end is counted once its record is with the hook's thread.
  while (!changed_.wait_for(lock, kLookPeriod, [this] { return none() && hook_thread_->idle(); })) {
    lock.unlock();
    check_interrupts();
    lock.lock();
  }
}

}  // namespace symm
