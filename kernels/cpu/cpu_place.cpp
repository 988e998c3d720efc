#include "kernels/cpu/cpu_place.hpp"

#include <sched.h>

#include <chrono>

namespace symm {

namespace {

using Clock = std::chrono::steady_clock;

// Two threads that leave the same CPU for the same other one shall not chase each other.
constexpr std::chrono::milliseconds kBetweenMoves{1};

}  // namespace

int current_cpu() { return ::sched_getcpu(); }

bool leave_cpu(int cpu) {
  thread_local Clock::time_point last_move;
  if (cpu < 0 || cpu >= CPU_SETSIZE) return false;
  if (last_move != Clock::time_point{} && Clock::now() - last_move < kBetweenMoves) return false;
  cpu_set_t permitted;
  if (::sched_getaffinity(0, sizeof(permitted), &permitted) != 0) return false;
  cpu_set_t others = permitted;
  CPU_CLR(static_cast<std::size_t>(cpu), &others);
  // The kernel moves the thread before the call returns, and has no reason to move it back.
  if (CPU_COUNT(&others) == 0 || ::sched_setaffinity(0, sizeof(others), &others) != 0) return false;
  (void)::sched_setaffinity(0, sizeof(permitted), &permitted);
  // Read here: on a busy CPU the thread may have waited long for its turn there.
  last_move = Clock::now();
  return true;
}

}  // namespace symm
