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
      : end_(Clock::now() + std::clamp(timeout, std::chrono::milliseconds(0), kLongestTimeout)) {}

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
  Clock::time_point end_;
};

}  // namespace symm
