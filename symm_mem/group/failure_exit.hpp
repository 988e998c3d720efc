// SYMM_ON_FAILURE=abort: the end of a process whose work on a GPU has failed.
//
// A failure on a GPU is an exception of the next call (NOTE [Failure on a device] in
// device_group.hpp). A program that makes none for long, because it waits for its device or for
// something else, goes on with what its kernels have left. One that was written for a backend that
// ends the process relies on being ended. So, a grace time after the failure, in which the program
// may handle it by destroying the group, the watchdog writes the message and aborts the process.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "kernels/core/error.hpp"
#include "symm_mem/group/watchdog.hpp"

namespace symm {

// The grace time of SYMM_ON_FAILURE=abort, from SYMM_FAILURE_GRACE_MS (5,000 where unset); nullopt
// for SYMM_ON_FAILURE=raise, which is what holds where it is unset. Throws Error(kInvalidArgument)
// that names the variable.
std::optional<std::chrono::milliseconds> failure_grace_in_environment();

class FailureExit final : public WatchdogTask {
 public:
  // `failure`: what has failed, if it has; must not block. `end`: for tests.
  using Failure = std::function<std::optional<Error>()>;
  using End = std::function<void(const std::string& message)>;

  // Adds itself where the environment asks for it; null elsewhere.
  static std::unique_ptr<FailureExit> of_environment(Watchdog& watchdog, Failure failure);

  FailureExit(Watchdog& watchdog, std::chrono::milliseconds grace, Failure failure, End end);
  ~FailureExit() override;
  FailureExit(const FailureExit&) = delete;
  FailureExit& operator=(const FailureExit&) = delete;

  void look(bool at_connections) override;

 private:
  Watchdog& watchdog_;
  const std::chrono::milliseconds grace_;
  const Failure failure_;
  const End end_;
  std::optional<std::chrono::steady_clock::time_point> failed_at_;
};

}  // namespace symm
