#include "symm_mem/process/process_identity.hpp"

#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/core/decimal.hpp"

namespace symm {
namespace {

struct ProcessStatus {
  char state = 0;  // 0: no such process is visible
  std::uint64_t flags = 0;
  std::uint64_t start = 0;
};

ProcessStatus status_of(const std::string& process) {
  std::ifstream file("/proc/" + process + "/stat");
  std::string line;
  std::getline(file, line);
  // The name, in parentheses, may hold anything.
  const std::size_t end_of_name = line.rfind(')');
  if (end_of_name == std::string::npos) return {};
  // Not by a stream: NOTE [Numbers and iostreams] in kernels/core/decimal.hpp.
  std::string_view rest = std::string_view(line).substr(end_of_name + 1);
  constexpr int kState = 3;
  constexpr int kFlags = 9;
  constexpr int kStart = 22;
  ProcessStatus status;
  for (int field = kState; field <= kStart; ++field) {
    const std::size_t space = rest.find(' ');
    if (space == std::string_view::npos || space + 1 == rest.size()) return {};
    rest.remove_prefix(space + 1);
    if (field == kState) status.state = rest.front();
    if (field != kFlags) continue;
    status.flags = parse_decimal<std::uint64_t>(rest.substr(0, rest.find(' '))).value_or(0);
  }
  const std::optional<std::uint64_t> start = parse_decimal<std::uint64_t>(rest);
  if (!start) return {};
  status.start = *start;
  return status;
}

std::uint64_t pid_namespace_id() {
  struct stat status {};
  return ::stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

// Whether the process would be visible here.
bool is_of_this_namespace(const ProcessIdentity& process) {
  return process.start != 0 && process.pid_namespace != 0 &&
         process.pid_namespace == pid_namespace_id();
}

// As the kernel writes it in /proc; 0 where the process is not visible here.
char state_of(const ProcessIdentity& process) {
  if (!is_of_this_namespace(process)) return 0;
  const ProcessStatus status = status_of(std::to_string(process.pid));
  return status.start == process.start ? status.state : char{0};
}

}  // namespace

ProcessIdentity own_process() {
  return {.pid = ::getpid(), .start = status_of("self").start, .pid_namespace = pid_namespace_id()};
}

bool is_running(const ProcessIdentity& process) {
  const char state = state_of(process);
  return state != 0 && state != 'Z' && state != 'X';
}

bool has_begun_to_end(const ProcessIdentity& process) {
  if (!is_of_this_namespace(process)) return false;
  const ProcessStatus status = status_of(std::to_string(process.pid));
  // Without descriptors or memory its file cannot be read either.
  if (status.state == 0) return ::kill(static_cast<pid_t>(process.pid), 0) != 0 && errno == ESRCH;
  constexpr std::uint64_t kExiting = 4;  // the kernel's PF_EXITING
  return status.start != process.start || (status.flags & kExiting) != 0;
}

bool is_stopped(const ProcessIdentity& process) {
  const char state = state_of(process);
  return state == 'T' || state == 't';
}

std::chrono::nanoseconds host_clock() {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

std::chrono::nanoseconds start_time(const ProcessIdentity& process) {
  const long per_second = ::sysconf(_SC_CLK_TCK);
  if (process.start == 0 || per_second <= 0) return std::chrono::nanoseconds(0);
  // The kernel counts whole ticks.
  return time_of_ticks(process.start + 1, static_cast<std::uint64_t>(per_second));
}

std::chrono::nanoseconds time_of_ticks(std::uint64_t ticks, std::uint64_t per_second) {
  constexpr std::uint64_t kNanoseconds = 1'000'000'000;
  // A count of ticks times nanoseconds would not fit after three years.
  const std::uint64_t rest = ticks % per_second * kNanoseconds / per_second;
  return std::chrono::seconds(static_cast<std::int64_t>(ticks / per_second)) +
         std::chrono::nanoseconds(static_cast<std::int64_t>(rest));
}

}  // namespace symm
