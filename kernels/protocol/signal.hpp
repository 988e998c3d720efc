// Signals between ranks: monotonic counters that are never reset.
//
// NOTE [Steps]
// The work of a group is divided into steps, which every rank counts alike from the group's start.
// The number of steps of a collective follows from facts that all ranks share, so it is never sent.
// Each rank owns two counters that the others read:
//   ready = s + 1  what this rank publishes in steps <= s can be read
//   done  = s + 1  this rank will read nothing of steps <= s any more
// A rank's slot for step s is slot s % kSlots, so it may be written once every rank's done is at
// least s + 1 - kSlots. No flag is ever cleared: a counter only grows, and comparisons are by
// signed difference, so that wrap-around after 2^32 steps needs no handling. This needs ranks to be
// less than 2^31 steps apart; the slots keep them within kSlots.
#pragma once

#include <cstdint>

#include "kernels/core/platform.hpp"

namespace symm {

// True once a counter whose value is `value` has reached `target`.
SYMM_INLINE constexpr bool has_reached(std::uint32_t value, std::uint32_t target) {
  return static_cast<std::int32_t>(value - target) >= 0;
}

// One counter on a line of its own. `waiters` counts threads that sleep until `value` changes: the
// writer makes a system call only where it is not 0. A waiter that was killed leaves it too high,
// which costs a system call and nothing else.
struct alignas(kCacheLine) SignalLine {
  std::uint32_t value;
  std::uint32_t waiters;
};

// Slots of a rank, hence the number of steps that the fastest rank may be ahead of the slowest.
inline constexpr std::uint32_t kSlots = 8;

}  // namespace symm
