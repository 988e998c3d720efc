// How many instructions and system calls a thread makes, whatever the machine and its load: a child
// process follows the thread with ptrace and lets it go on to the next of them. A step takes
// microseconds, so what is counted should be short. Instructions of the kernel are not counted, nor
// what other threads do.
#pragma once

#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <new>
#include <optional>

namespace symm::test {

namespace counting {

enum class Stage : std::uint32_t { kBegin, kFollowed, kRefused, kDone, kLeft };

// Of both processes.
struct Shared {
  std::atomic<Stage> stage{Stage::kBegin};
  std::atomic<bool> counts{false};
  std::atomic<std::uint64_t> steps{0};
};

// The child's part. Only system calls: the parent may have threads. `step`: ptrace's request that
// lets the thread go on as far as its next stop.
inline void follow(pid_t thread, __ptrace_request step, Shared& shared) {
  int status = 0;
  const auto stopped = [&] { return ::waitpid(thread, &status, __WALL) == thread; };
  if (::ptrace(PTRACE_SEIZE, thread, nullptr, nullptr) != 0 ||
      ::ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr) != 0 || !stopped()) {
    shared.stage = Stage::kRefused;
    return;
  }
  shared.stage = Stage::kFollowed;
  while (WIFSTOPPED(status) && shared.stage != Stage::kDone) {
    // Signals that are not of this tracing go on to the thread.
    const long signal = WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status);
    if (shared.counts) ++shared.steps;
    if (::ptrace(step, thread, nullptr, signal) != 0 || !stopped()) break;
  }
  ::ptrace(PTRACE_DETACH, thread, nullptr, nullptr);
  shared.stage = Stage::kLeft;
}

// Of `body` on this thread; nullopt where the machine does not allow processes to be traced.
inline std::optional<std::uint64_t> stops_of(const std::function<void()>& body,
                                             __ptrace_request step) {
  // One page, for the rest of the process.
  static void* const memory = ::mmap(nullptr, sizeof(counting::Shared), PROT_READ | PROT_WRITE,
                                     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return std::nullopt;
  auto& shared = *new (memory) Shared;
  ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  const pid_t thread = ::gettid();
  const pid_t child = ::fork();
  if (child == 0) {
    follow(thread, step, shared);
    ::_exit(0);
  }
  std::optional<std::uint64_t> steps;
  if (child > 0) {
    while (shared.stage == Stage::kBegin) ::usleep(100);
    std::exception_ptr thrown;
    if (shared.stage == Stage::kFollowed) {
      shared.counts = true;
      try {
        body();
      } catch (...) {
        thrown = std::current_exception();
      }
      shared.counts = false;
      steps = shared.steps;
      shared.stage = Stage::kDone;
      while (shared.stage != Stage::kLeft) ::sched_yield();  // a step of either kind
    }
    ::waitpid(child, nullptr, 0);
    if (thrown) std::rethrow_exception(thrown);
  }
  return steps;
}

}  // namespace counting

// Instructions of `body` on this thread, give or take a few; nullopt where the machine does not
// allow processes to be traced.
inline std::optional<std::uint64_t> instructions_of(const std::function<void()>& body) {
  return counting::stops_of(body, PTRACE_SINGLESTEP);
}

// Likewise its system calls, each of which stops at its begin and at its end.
inline std::optional<std::uint64_t> system_calls_of(const std::function<void()>& body) {
  const std::optional<std::uint64_t> stops = counting::stops_of(body, PTRACE_SYSCALL);
  if (!stops) return std::nullopt;
  return *stops / 2;
}

}  // namespace symm::test
