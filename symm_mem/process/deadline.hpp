// A moment that waiting may not go past.
#pragma once

#include <algorithm>
#include <chrono>

namespace symm {

// A longer time-out counts as this one, so that no sum of times overflows.
inline constexpr std::chrono::milliseconds kLongestTimeout = std::chrono::hours(24 * 365);

constexpr std::chrono::milliseconds within_longest(std::chrono::milliseconds timeout) {
  return std::min(timeout, kLongestTimeout);
}

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  // A time-out below zero counts as zero.
  explicit Deadline(std::chrono::milliseconds timeout)
      : timeout_(std::clamp(timeout, std::chrono::milliseconds(0), kLongestTimeout)),
        end_(Clock::now() + timeout_) {}

  // The whole of it, for messages.
  std::chrono::milliseconds timeout() const { return timeout_; }

  bool passed() const { return Clock::now() >= end_; }

  // Rounded up, so that waiting for it does not end early; 0 once passed.
  std::chrono::milliseconds remaining() const {
    const auto rest = std::chrono::ceil<std::chrono::milliseconds>(end_ - Clock::now());
    return std::max(rest, std::chrono::milliseconds(0));
  }

  // For poll(): the remaining time, at most `slice`.
  int poll_slice(std::chrono::milliseconds slice) const {
    return static_cast<int>(std::min(remaining(), slice).count());
  }

 private:
  std::chrono::milliseconds timeout_;
  Clock::time_point end_;
};

}  // namespace symm
