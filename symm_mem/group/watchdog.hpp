// The thread that finds failures of what a group does on its GPUs.
//
// Kernels that wait for a peer cannot see that its process has ended, and launches return before
// anything has happened. Every 4 ms the thread calls each task, which reads shared host memory;
// every 16 ms the task also tests the connections, which takes a system call a peer. The thread
// calls no function of a device, so it disturbs no stream and no capture and works when a device is
// stuck. On the host there is no such thread: whoever waits polls.
//
// SYMM_WATCHDOG=0 leaves the thread out, so that its cost can be measured: a kernel then waits for
// ever for a peer that is gone.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace symm {

class WatchdogTask {
 public:
  virtual ~WatchdogTask() = default;
  // Called by the watchdog's thread; must not throw, block, or call a function of a device.
  virtual void look(bool at_connections) = 0;
};

// Thread safe.
class Watchdog {
 public:
  // Throws Error(kInvalidArgument) for a wrong SYMM_WATCHDOG.
  Watchdog();
  // Ends the thread. A forked child has none and leaves it alone.
  ~Watchdog();

  // Starts the thread with the first task. `task` must stay until it was removed.
  void add(WatchdogTask& task);
  // On return `task` is not and will not be called. Idempotent; not from inside a look().
  void remove(WatchdogTask& task);

 private:
  void run();

  const std::uint32_t fork_generation_;
  const bool on_;
  std::mutex mutex_;  // guards what follows, and is held while tasks look
  std::condition_variable wake_;
  std::vector<WatchdogTask*> tasks_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace symm
