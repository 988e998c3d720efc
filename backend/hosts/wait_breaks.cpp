#include "backend/hosts/wait_breaks.hpp"

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "symm_mem/process/fork_guard.hpp"

namespace symm {
namespace {

// Longer than check_interrupts_of_setup() lets pass between two questions.
constexpr std::chrono::milliseconds kBreakPeriod{25};

class Breaker {
 public:
  // That of this process, which lives as long; null where there is no thread to be had.
  static Breaker* of_process() {
    // Of the thread that hears signals alone. A forked child has not got the parent's thread.
    static Breaker* made = nullptr;
    if (made != nullptr && made->generation_ == fork_generation()) return made;
    auto* const fresh = new Breaker;
    try {
      std::thread([fresh] { fresh->run(); }).detach();
      return made = fresh;
    } catch (const std::system_error&) {
      delete fresh;
      return nullptr;
    }
  }

  // Gives what it takes the place of. Waits while the thread is at that.
  c10d::Work* set(c10d::Work* work) {
    const std::lock_guard lock(mutex_);
    if (work != nullptr) ++waits_;
    if (sleeps_ && work != nullptr) wake_.notify_one();
    return std::exchange(work_, work);
  }

 private:
  [[noreturn]] void run() {
    ::pthread_setname_np(::pthread_self(), "symm_signals");
    std::unique_lock lock(mutex_);
    for (;;) {
      const std::uint64_t seen = waits_;
      wake_.wait_for(lock, kBreakPeriod);
      if (work_ != nullptr && waits_ == seen) break_wait();
      if (work_ != nullptr || waits_ != seen) continue;
      sleeps_ = true;
      wake_.wait(lock, [this] { return work_ != nullptr; });
      sleeps_ = false;
    }
  }

  void break_wait() noexcept {
    try {
      work_->abort();
    } catch (const std::exception&) {
      // The wait goes on, and ends as it does without a break.
    }
  }

  const std::uint32_t generation_ = fork_generation();
  std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  c10d::Work* work_ = nullptr;  // of the wait under way
  std::uint64_t waits_ = 0;     // so far
  bool sleeps_ = false;
};

c10d::Work* set(c10d::Work* work) {
  Breaker* const breaker = Breaker::of_process();
  return breaker == nullptr ? nullptr : breaker->set(work);
}

}  // namespace

WaitBreaks::WaitBreaks(c10d::Work& work) : outer_(set(&work)) {}

WaitBreaks::~WaitBreaks() { set(outer_); }

}  // namespace symm
