// How a host thread waits for a signal, and how a waiter is woken.
//
// NOTE [Waiting]
// A waiter first spins (the other rank runs on another core and is about to signal), then sleeps in
// a futex on the signal's own word, for a bounded time, so that a supervisor can look at what no
// signal reports: an abort, a dead peer, a deadline. Where there are more ranks than cores,
// spinning takes the core from the rank that is waited for, so almost none is done; it yields
// instead, before it sleeps, which is the quickest way to that rank. A writer makes a system call
// only when a sleeper is counted.
//
// To Linux sched_yield() means that the thread has had its turn: another program's thread on this
// core gets a slice of milliseconds, and that in each of the many waits of a call, where a sleeper
// runs as soon as it is woken. So nobody yields with a core of its own (docs/benchmarks.md, "Other
// programs beside"), nor where threads that are no ranks, an engine's between hosts, want the cores
// as well (docs/many_hosts.md, "Figures").
//
// NOTE [Two ranks on one core]
// The scheduler may leave two ranks on one core although another one is free: each gives the core
// away just when the other needs it, so the core looks busy and neither looks starved, for seconds.
// Calls then take three to six times as long (docs/benchmarks.md, "Ranks on one core"). So each
// rank notes its CPU on its lines where it posts and where it has waited, and a waiter that has
// spun in vain and finds the CPU of whom it waits for to be its own goes to another one that it may
// use. Its affinity is as before afterwards.
#pragma once

#include <chrono>
#include <cstdint>

#include "kernels/protocol/signal.hpp"

namespace symm {

struct WaitPolicy {
  int pauses;        // rounds of spinning
  int yields;        // rounds of giving the core away, after that
  bool moves_apart;  // there is a core for each rank
};

// The policy for `ranks_on_host` ranks and the cores that this process may use; `busy_threads`: of
// these ranks and of what works for them beside, where something does. Local.
WaitPolicy wait_policy(int ranks_on_host, int busy_threads = 0);

// Cores that this process may use: its affinity, lowered by the cgroup's quota; at least 1.
int usable_cores();

// Asked by a sleeping waiter, every few milliseconds.
class WaitSupervisor {
 public:
  virtual ~WaitSupervisor() = default;
  // False ends the wait; the supervisor keeps the reason. `peer`: the rank that is waited for.
  virtual bool keep_waiting(int peer) = 0;
};

// Stores `value` with release order and wakes the sleepers of the line. Any thread of its owner.
void post(SignalLine& line, std::uint64_t value);

// Adds one and wakes; for lines that several ranks ring.
void ring_bell(SignalLine& line);

// Waits until `line` has reached `target` (see has_reached); acquires what its writer released.
// False when the supervisor ended the wait.
bool wait_for(const SignalLine& line, std::uint64_t target, int peer, const WaitPolicy& policy,
              WaitSupervisor& supervisor);

// Sleeps until `line` differs from `seen`, or `limit` has passed. May return early.
void sleep_on(SignalLine& line, std::uint64_t seen, std::chrono::microseconds limit);

// One round of waiting: `round` counts from 0. True while the next round should not sleep.
// `awaited`: a line of the rank that is waited for, null where that is not known.
bool spin(int round, const WaitPolicy& policy, const SignalLine* awaited);

// Notes on a line of this rank on which CPU the calling thread is. Also after a wait, which may
// have moved it: who followed an old note would come to where the thread is now.
void note_cpu(SignalLine& own);

}  // namespace symm
