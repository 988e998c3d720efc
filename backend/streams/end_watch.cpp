#include "backend/streams/end_watch.hpp"

#include <chrono>
#include <iterator>
#include <memory>
#include <thread>
#include <utility>

namespace symm {

namespace {

constexpr std::chrono::microseconds kPeriod{100};

}  // namespace

void EndWatch::add(WatchedOperation operation) {
  const std::lock_guard lock(mutex_);
  waiting_.push_back(std::move(operation));
  if (looking_) return;
  try {
    queue_.post([this](const Error* stopped) { look(stopped != nullptr); });
    looking_ = true;
  } catch (...) {
    waiting_.pop_back();
    throw;
  }
}

void EndWatch::look(bool stopped) {
  std::vector<WatchedOperation> operations;
  {
    const std::lock_guard lock(mutex_);
    operations.swap(waiting_);
  }
  // Whoever is told last may let go of what keeps this object alive.
  const WatchedOperation alive = operations.front();
  std::vector<bool> ended(operations.size(), stopped);
  for (std::size_t i = operations.size(); i-- > 0;) {
    ended[i] = ended[i] || operations[i].has_ended();
  }
  std::vector<WatchedOperation> others;
  for (std::size_t i = 0; i < operations.size(); ++i) {
    if (!ended[i]) {
      others.push_back(std::move(operations[i]));
      continue;
    }
    try {
      // A task of its own: while it is inside callbacks, the tasks behind it go on.
      queue_.post([tell = operations[i].tell](const Error*) { tell(); });
    } catch (const std::exception&) {
      operations[i].tell();
    }
  }
  std::vector<WatchedOperation> last;
  {
    const std::lock_guard lock(mutex_);
    waiting_.insert(waiting_.begin(), std::make_move_iterator(others.begin()),
                    std::make_move_iterator(others.end()));
    looking_ = !waiting_.empty();
    if (!looking_) return;
    try {
      queue_.post([this](const Error* now_stopped) {
        if (now_stopped == nullptr) std::this_thread::sleep_for(kPeriod);
        look(now_stopped != nullptr);
      });
      return;
    } catch (const std::exception&) {
      looking_ = false;
      last.swap(waiting_);
    }
  }
  for (const WatchedOperation& operation : last) operation.tell();
}

}  // namespace symm
