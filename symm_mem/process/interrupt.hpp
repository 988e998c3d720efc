// How a wait of this library lets signal handlers of the program run.
//
// Python runs the handlers of signals on its main thread, between instructions: never while that
// thread is inside a wait of this library. So a wait asks every 20 ms. What a handler raises
// (KeyboardInterrupt at Ctrl-C) leaves the wait as Interrupted. The library knows nothing of
// Python; the module that does installs the hook.
//
// What the wait was for counts as given up: a collective fails its group, a rendezvous ends, a
// transfer and a Work of the queue stay in flight.
#pragma once

#include <exception>

#include "kernels/core/error.hpp"

namespace symm {

// No Error, which waits catch to say what they were for. Turned into `cause` where errors become
// PyTorch's exceptions.
struct Interrupted {
  std::exception_ptr cause;
};

// Runs the handlers of signals that have come; throws Interrupted for what one of them raises.
using InterruptHook = void (*)();

// Once per process. nullptr removes the hook. Thread safe.
void set_interrupt_hook(InterruptHook hook) noexcept;

// Whether the calling thread is the one that check_interrupts() calls the hook on, and there is
// one.
bool hears_interrupts() noexcept;

// To be called every few milliseconds of a wait, without a lock that a handler could need. Calls
// the hook on the process's main thread only, and not more often than each 20 ms. A short wait does
// not call it at all: what the hook costs (Python's interpreter lock) is for waits that last.
void check_interrupts();
// The same in a wait that may look more seldom, and is rare.
void check_interrupts_of_setup();

// What the other ranks are told.
inline Error interrupted_error() {
  return {ErrorCode::kAborted, "a signal handler of the program ended the wait"};
}

}  // namespace symm
