#include "symm_mem/process/interrupt.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <utility>

#include "symm_mem/process/fork_guard.hpp"

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

// System calls, which some sandboxes make slow, once a thread; that which forks is main in the
// child.
bool is_main_thread() noexcept {
  thread_local std::uint32_t asked_in = ~std::uint32_t{0};
  thread_local bool is_main = false;
  if (std::exchange(asked_in, fork_generation()) != fork_generation()) {
    is_main = ::syscall(SYS_gettid) == ::getpid();
  }
  return is_main;
}

void ask(bool of_setup) {
  const InterruptHook hook = interrupt_hook.load(std::memory_order_acquire);
  if (hook == nullptr) return;
  const InterruptClock::time_point now = InterruptClock::now();
  WaitTimes& times = wait_times;
  if (!of_setup && now - times.last_call > kSameWait) times.next_question = now + kAskPeriod;
  times.last_call = now;
  if (now < times.next_question) return;
  times.next_question = now + kAskPeriod;
  if (is_main_thread()) hook();
  times.last_call = InterruptClock::now();
}

}  // namespace

void set_interrupt_hook(InterruptHook hook) noexcept {
  interrupt_hook.store(hook, std::memory_order_release);
}

bool hears_interrupts() noexcept {
  return interrupt_hook.load(std::memory_order_acquire) != nullptr && is_main_thread();
}

void check_interrupts() { ask(false); }

void check_interrupts_of_setup() { ask(true); }

}  // namespace symm
