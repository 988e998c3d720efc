// What a rank still has under way with its peers when it is about to leave a group in good order:
// peers may be waiting for it. Thread safe.
#pragma once

#include <functional>
#include <mutex>
#include <utility>
#include <vector>

namespace symm {

class PendingWork {
 public:
  // `wait` returns once what `owner` has under way is over; it must not throw.
  void add(const void* owner, std::function<void()> wait) {
    const std::lock_guard lock(mutex_);
    owners_.emplace_back(owner, std::move(wait));
  }

  // On return `owner` is not and will not be asked. Blocks while it is.
  void remove(const void* owner) {
    const std::lock_guard lock(mutex_);
    std::erase_if(owners_, [owner](const auto& one) { return one.first == owner; });
  }

  // Waits for all owners. Blocks; what peers do not come to is for the owners to end.
  void finish() {
    const std::lock_guard lock(mutex_);
    for (const auto& [owner, wait] : owners_) wait();
  }

 private:
  std::mutex mutex_;  // held while owners wait
  std::vector<std::pair<const void*, std::function<void()>>> owners_;
};

}  // namespace symm
