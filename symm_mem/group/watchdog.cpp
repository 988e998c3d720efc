#include "symm_mem/group/watchdog.hpp"

#include <pthread.h>

#include <chrono>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "kernels/core/error.hpp"
#include "symm_mem/process/fork_guard.hpp"
#include "symm_mem/process/system_error.hpp"

namespace symm {
namespace {

constexpr std::chrono::milliseconds kLookPeriod{4};
constexpr int kLooksBetweenConnections = 4;

bool is_switched_on() {
  const char* const value = std::getenv("SYMM_WATCHDOG");
  const std::string_view word = value == nullptr ? "1" : value;
  if (word != "0" && word != "1") {
    throw Error(ErrorCode::kInvalidArgument, "SYMM_WATCHDOG: expected 0 or 1, got '", word, "'");
  }
  return word == "1";
}

}  // namespace

Watchdog::Watchdog() : fork_generation_(fork_generation()), on_(is_switched_on()) {}

Watchdog::~Watchdog() {
  if (fork_generation() != fork_generation_) {
    [[maybe_unused]] const auto* leaked = new std::thread(std::move(thread_));
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Watchdog::add(WatchdogTask& task) {
  const std::lock_guard lock(mutex_);
  try {
    if (on_ && !thread_.joinable()) thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    throw_no_thread("GPUs of a group", error);
  }
  tasks_.push_back(&task);
}

void Watchdog::remove(WatchdogTask& task) {
  const std::lock_guard lock(mutex_);
  std::erase(tasks_, &task);
}

void Watchdog::run() {
  ::pthread_setname_np(::pthread_self(), "symm_watchdog");
  std::unique_lock lock(mutex_);
  for (int round = 0; !stopping_; ++round) {
    const bool at_connections = round % kLooksBetweenConnections == 0;
    for (WatchdogTask* const task : tasks_) task->look(at_connections);
    wake_.wait_for(lock, kLookPeriod, [this] { return stopping_; });
  }
}

}  // namespace symm
