// Signals between ranks: monotonic counters that are never reset.
//
// NOTE [Steps]
// The work of a group is cut into steps, counted by every rank alike from the group's start. How
// many steps a collective takes follows from facts that all ranks share, so no number is ever sent.
// Each rank owns two counters that the others read:
//   ready = s + 1  what this rank publishes in steps <= s can be read
//   done  = s + 1  this rank will read nothing of steps <= s any more
// A rank's slot for step s is slot s % kSlots, so it may be written once every rank's done is at
// least s + 1 - kSlots. No flag is ever cleared: a counter only grows, and comparisons are by
// signed difference, so that wrap-around after 2^32 steps is no event. This needs ranks to be less
// than 2^31 steps apart; the slots keep them within kSlots.
#pragma once

#include <cstdint>

#include "kernels/core/platform.hpp"

namespace symm {

// True once a counter that stands at `value` has reached `target`.
SYMM_INLINE constexpr bool has_reached(std::uint32_t value, std::uint32_t target) {
  return static_cast<std::int32_t>(value - target) >= 0;
}

// One counter on a line of its own. `waiters` counts threads that sleep until `value` changes, so
// that the writer makes a system call only when somebody does; a waiter that was killed leaves it
// too high, which costs a call and nothing else.
struct alignas(kCacheLine) SignalLine {
  std::uint32_t value;
  std::uint32_t waiters;
};

// Slots a rank, hence how many steps the fastest rank may be ahead of the slowest.
inline constexpr std::uint32_t kSlots = 8;

}  // namespace symm
