// How a wait inside an engine lets signal handlers of the program run.
//
// Gloo waits on a condition variable, which hears no signals, and knows no waits in pieces: the end
// of a wait's time-out closes its connections. But Work::abort() only makes the wait under way, or
// the next, return false; the message goes on, and may be waited for again. So a thread of the
// process does that every 25 ms of a wait of the thread that hears signals. It sleeps while there
// are no waits; a wait that finds it awake costs two locks that nobody else wants.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

namespace symm {

// While it lives, waits for `work` return false now and then. On the thread that hears signals
// alone, where one may be made while there is another: a handler may wait, too. Without a thread to
// be had nothing happens.
class WaitBreaks {
 public:
  explicit WaitBreaks(c10d::Work& work);
  ~WaitBreaks();
  WaitBreaks(const WaitBreaks&) = delete;
  WaitBreaks& operator=(const WaitBreaks&) = delete;

 private:
  c10d::Work* const outer_;
};

}  // namespace symm
