// A thread that sees the ends of operations on a device, and tells of them in order.
//
// NOTE [Order of the ends]
// Operations that follow each other on the device are told of in the order in which they were
// added, although the device goes on while it is asked: the newest is asked first, so that where an
// operation is found to have ended, so is each before it. One that does not end keeps nobody from
// hearing of another that has.
#pragma once

#include <chrono>
#include <functional>
#include <mutex>
#include <vector>

#include "backend/engine/async_queue.hpp"

namespace symm {

// Neither function may throw. What they hold keeps the EndWatch alive.
struct WatchedOperation {
  std::function<bool()> has_ended;  // asks, and tells nobody
  std::function<void()> tell;       // may run callbacks of the user
};

// Thread safe.
class EndWatch {
 public:
  // tell() is called once, on another thread: when has_ended() has said so, or where stop() comes
  // first. Throws Error(kAborted) after stop(), Error(kSystem) where no thread can be made.
  void add(WatchedOperation operation);

  // As those of AsyncQueue.
  void stop(const Error& reason, std::chrono::milliseconds limit) { queue_.stop(reason, limit); }
  void abandon() noexcept { queue_.abandon(); }

 private:
  void look(bool stopped);

  std::mutex mutex_;
  std::vector<WatchedOperation> waiting_;  // in order
  bool looking_ = false;                   // a look is posted or under way

  AsyncQueue queue_{AsyncQueue::Callbacks::kRunNext};
};

}  // namespace symm
