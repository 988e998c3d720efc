#include "kernels/cpu/wait.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <climits>
#include <cmath>
#include <fstream>
#include <string>

#include "kernels/core/atomics.hpp"
#include "kernels/core/decimal.hpp"
#include "kernels/cpu/cpu_place.hpp"

namespace symm {

namespace {

// With a core for each rank 25 us of spinning, which is longer than most steps
// take (NOTE [Waiting]).
constexpr WaitPolicy kCoreEach{.pauses = 1000, .yields = 0, .moves_apart = true};
constexpr WaitPolicy kSharedCores{.pauses = 4, .yields = 50, .moves_apart = false};
constexpr WaitPolicy kBesideThreads{.pauses = 100, .yields = 0, .moves_apart = false};

// Rounds until a waiter looks whether it shares a core with whom it waits for, some microseconds.
constexpr int kPausesAlone = 300;

// The longest sleep without a look at what no signal reports.
constexpr std::chrono::microseconds kSupervisionPeriod{2000};

inline void pause_core() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

// On the lower half of the line's counter: a futex is a word of 32 bits. A sleeper that misses 2^32
// signals at once sleeps until its time limit.
static_assert(std::endian::native == std::endian::little);
long futex(const SignalLine& line, int operation, std::uint32_t value, const timespec* limit) {
  return ::syscall(SYS_futex, &line.value, operation, value, limit, nullptr, 0);
}

void wake_sleepers(const SignalLine& line) {
  if (load_seq_cst(&line.waiters) != 0) futex(line, FUTEX_WAKE, INT_MAX, nullptr);
}

// Cores that the cgroup's bandwidth quota is worth; 0 where there is none.
int quota_cores() {
  std::ifstream v2("/sys/fs/cgroup/cpu.max");
  std::ifstream v1_quota("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
  std::ifstream v1_period("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  std::string quota_text;
  std::string period_text;
  if (!(v2 >> quota_text >> period_text) && !(v1_quota >> quota_text && v1_period >> period_text)) {
    return 0;
  }
  // No quota is "max" in version 2 and -1 in version 1.
  const double quota = parse_decimal<double>(quota_text).value_or(0);
  const double period = parse_decimal<double>(period_text).value_or(0);
  return quota > 0 && period > 0 ? static_cast<int>(std::ceil(quota / period)) : 0;
}

// NOTE [Two ranks on one core].
void part_from(const SignalLine& awaited) {
  const int cpu = current_cpu();
  if (load_relaxed(&awaited.cpu) == static_cast<std::uint32_t>(cpu + 1)) leave_cpu(cpu);
}

}  // namespace

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cores = 1;
  if (::sched_getaffinity(0, sizeof(set), &set) == 0) cores = std::max(1, CPU_COUNT(&set));
  const int quota = quota_cores();
  return quota > 0 ? std::min(cores, quota) : cores;
}

WaitPolicy wait_policy(int ranks_on_host, int busy_threads) {
  const int cores = usable_cores();
  if (busy_threads > std::max(ranks_on_host, cores)) return kBesideThreads;
  return ranks_on_host > cores ? kSharedCores : kCoreEach;
}

// The exchange is a full fence: the load of `waiters` cannot pass it. Together with the sleeper's
// order (increment `waiters`, then load the value, which the kernel loads again) no wake-up is
// lost.
void post(SignalLine& line, std::uint64_t value) {
  note_cpu(line);
  exchange_seq_cst(&line.value, value);
  wake_sleepers(line);
}

void ring_bell(SignalLine& line) {
  fetch_add(&line.value, std::uint64_t{1});
  wake_sleepers(line);
}

void sleep_on(SignalLine& line, std::uint64_t seen, std::chrono::microseconds limit) {
  const timespec time{.tv_sec = limit.count() / 1'000'000,
                      .tv_nsec = limit.count() % 1'000'000 * 1000};
  fetch_add(&line.waiters, std::uint32_t{1});
  if (load_seq_cst(&line.value) == seen) {
    futex(line, FUTEX_WAIT, static_cast<std::uint32_t>(seen), &time);
  }
  fetch_add(&line.waiters, ~std::uint32_t{0});
}

void note_cpu(SignalLine& own) {
  const auto cpu = static_cast<std::uint32_t>(current_cpu() + 1);
  if (load_relaxed(&own.cpu) != cpu) store_relaxed(&own.cpu, cpu);
}

bool spin(int round, const WaitPolicy& policy, const SignalLine* awaited) {
  // After each sleep too: a sleeper may be woken on the CPU of who wakes it.
  const bool looks = round == kPausesAlone || round >= policy.pauses;
  if (looks && policy.moves_apart && awaited != nullptr) part_from(*awaited);
  if (round < policy.pauses) {
    pause_core();
    return true;
  }
  if (round >= policy.pauses + policy.yields) return false;
  ::sched_yield();
  return true;
}

bool wait_for(const SignalLine& line, std::uint64_t target, int peer, const WaitPolicy& policy,
              WaitSupervisor& supervisor) {
  for (int round = 0; !has_reached(load_acquire(&line.value), target); ++round) {
    if (spin(round, policy, &line)) continue;
    if (!supervisor.keep_waiting(peer)) return has_reached(load_acquire(&line.value), target);
    const std::uint64_t seen = load_acquire(&line.value);
    // A sleeper increments `waiters` in the peer's line: the only write to a region by another
    // rank.
    if (!has_reached(seen, target)) {
      sleep_on(const_cast<SignalLine&>(line), seen, kSupervisionPeriod);
    }
  }
  return true;
}

}  // namespace symm
