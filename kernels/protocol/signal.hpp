// Signals between ranks: monotonic counters that are never reset.
//
// NOTE [Steps]
// The work of a group is divided into steps, which every rank counts alike from the group's start.
// The number of steps of a collective follows from facts that all ranks share, so it is never sent.
// Each rank owns two counters that the others read:
//   ready = s + 1  what this rank publishes in steps <= s can be read
//   done  = s + 1  this rank will read nothing of steps <= s any more
// A rank's slot for step s is slot s % kSlots, so it may be written once every rank's done is at
// least s + 1 - kSlots. No flag is ever cleared: a counter only grows.
//
// NOTE [Width of counters]
// A counter of w bits is compared by signed difference, so it may wrap as long as it is within
// 2^(w-1) of what it is compared with. The slots keep the ranks within kSlots steps of each other,
// but not their counters: `ready` of a rank that never publishes stands still, while the steps of
// the group pass it. So the counters of steps, and every other one that may stand still, are 64
// bits wide, which no group uses up. A counter of 32 bits is one that each of its comparisons
// keeps near: the LL epochs, which every call moves at all ranks, and the chunks of a tag channel,
// which both of its ends count.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/core/platform.hpp"

namespace symm {

// True once a counter whose value is `value` has reached `target`.
template <class Counter>
SYMM_INLINE constexpr bool has_reached(Counter value, Counter target) {
  static_assert(sizeof(Counter) >= sizeof(std::uint32_t) && std::is_unsigned_v<Counter>);
  return static_cast<std::make_signed_t<Counter>>(value - target) >= 0;
}

// One counter on a line of its own; sleepers wait on its lower half. `waiters` counts threads that
// sleep until `value` changes: the writer makes a system call only where it is not 0. A waiter that
// was killed leaves it too high, which costs a system call and nothing else. `cpu` is 1 + the
// number of the CPU on which its owner last posted or waited, 0 before that: a hint, which may be
// stale.
struct alignas(kCacheLine) SignalLine {
  std::uint64_t value;
  std::uint32_t waiters;
  std::uint32_t cpu;
};

// Slots of a rank, hence the number of steps that the fastest rank may be ahead of the slowest.
inline constexpr std::uint32_t kSlots = 8;

}  // namespace symm
