// How a host thread waits for a signal, and how a waiter is woken.
//
// NOTE [Waiting]
// A waiter first spins (the other rank is on another core and about to answer), then yields (it
// may be on this one), then sleeps in a futex on the signal's own word, for a bounded time, so that
// a supervisor can look at what no signal tells: an abort, a dead peer, a deadline. Where there
// are more ranks than cores, spinning takes the core from the rank that is waited for, so almost
// none is done. A writer makes a system call only when somebody has said that he sleeps.
#pragma once

#include <chrono>
#include <cstdint>

#include "kernels/protocol/signal.hpp"

namespace symm {

struct WaitPolicy {
  int pauses;  // rounds of spinning
  int yields;  // rounds of giving the core away, after that
};

// The policy for `ranks_on_host` ranks and the cores that this process may use. Local.
WaitPolicy wait_policy(int ranks_on_host);

// Cores that this process may use: its affinity, lowered by the cgroup's quota; at least 1.
int usable_cores();

// What a sleeping waiter asks, every few milliseconds.
class WaitSupervisor {
 public:
  virtual ~WaitSupervisor() = default;
  // False ends the wait; the reason is with the supervisor. `peer` is who is waited for.
  virtual bool keep_waiting(int peer) = 0;
};

// Stores `value` with release order and wakes whoever sleeps on the line. Any thread of its owner.
void post(SignalLine& line, std::uint32_t value);

// Adds one and wakes; for lines that several ranks ring.
void ring_bell(SignalLine& line);

// Waits until `line` has reached `target` (see has_reached); acquires what its writer released.
// False when the supervisor has ended the wait.
bool wait_for(const SignalLine& line, std::uint32_t target, int peer, const WaitPolicy& policy,
              WaitSupervisor& supervisor);

// Sleeps until `line` differs from `seen`, or `limit` has passed. May return early.
void sleep_on(SignalLine& line, std::uint32_t seen, std::chrono::microseconds limit);

// One round of waiting: `round` counts from 0. True while it is worth going on without sleeping.
bool spin_or_yield(int round, const WaitPolicy& policy);

}  // namespace symm
