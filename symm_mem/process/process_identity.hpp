// Which process somebody is, in a way that another process can check, and the clock of the host.
// All functions are local and thread safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <tuple>

namespace symm {

// A pid is used again; together with the time of the start it is not.
struct ProcessIdentity {
  std::int64_t pid = 0;
  std::uint64_t start = 0;          // clock ticks since the boot; 0: unknown
  std::uint64_t pid_namespace = 0;  // 0: unknown

  bool operator==(const ProcessIdentity&) const = default;
  bool operator<(const ProcessIdentity& other) const {
    return std::tie(pid, start, pid_namespace) <
           std::tie(other.pid, other.start, other.pid_namespace);
  }
};

// Of this process, also in a forked child.
ProcessIdentity own_process();

// True only where it is certain: the process is visible here and has not ended.
bool is_running(const ProcessIdentity& process);

// True only where it is certain: the process has ended, or the kernel takes it apart. That begins
// before the first of its descriptors is closed, so whoever saw one closed sees this too.
bool has_begun_to_end(const ProcessIdentity& process);

// True only where it is certain: the process is visible here and is stopped, by a signal or a
// debugger.
bool is_stopped(const ProcessIdentity& process);

// The time since the host's boot, the same in all its processes.
std::chrono::nanoseconds host_clock();

// When `process`, of this host, had surely started, by host_clock(); 0 where that is unknown.
std::chrono::nanoseconds start_time(const ProcessIdentity& process);

// How long `ticks` take, of which a second has `per_second`, not 0; rounded down. For up to 292
// years.
std::chrono::nanoseconds time_of_ticks(std::uint64_t ticks, std::uint64_t per_second);

}  // namespace symm
