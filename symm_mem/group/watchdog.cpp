#include "symm_mem/group/watchdog.hpp"

#include <pthread.h>

#include <chrono>
#include <utility>

#include "symm_mem/process/environment_flag.hpp"
#include "symm_mem/process/fork_guard.hpp"
#include "symm_mem/process/system_error.hpp"

namespace symm {
namespace {

constexpr std::chrono::milliseconds kLookPeriod{4};
constexpr int kLooksBetweenConnections = 4;

}  // namespace

Watchdog::Watchdog()
    : fork_generation_(fork_generation()), on_(flag_in_environment("SYMM_WATCHDOG", true)) {}

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
