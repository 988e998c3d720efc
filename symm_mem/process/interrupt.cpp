#include "symm_mem/process/interrupt.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>

namespace symm {
namespace {

using InterruptClock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kAskPeriod{20};
// Calls further apart belong to different waits; a short wait should not ask at all.
constexpr std::chrono::milliseconds kSameWait{10};

std::atomic<InterruptHook> interrupt_hook{nullptr};

// Of the main thread alone.
struct WaitTimes {
  InterruptClock::time_point last_call;
  InterruptClock::time_point next_question;
};
thread_local WaitTimes wait_times;

void ask(bool of_setup) {
  const InterruptHook hook = interrupt_hook.load(std::memory_order_acquire);
  if (hook == nullptr) return;
  const InterruptClock::time_point now = InterruptClock::now();
  WaitTimes& times = wait_times;
  if (!of_setup && now - times.last_call > kSameWait) times.next_question = now + kAskPeriod;
  times.last_call = now;
  if (now < times.next_question) return;
  times.next_question = now + kAskPeriod;
  if (::syscall(SYS_gettid) == ::getpid()) hook();
  times.last_call = InterruptClock::now();
}

}  // namespace

void set_interrupt_hook(InterruptHook hook) noexcept {
  interrupt_hook.store(hook, std::memory_order_release);
}

void check_interrupts() { ask(false); }

void check_interrupts_of_setup() { ask(true); }

}  // namespace symm
