#include "backend/recv_search.hpp"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "backend/engine/host/point_to_point.hpp"

namespace symm {

using std::chrono::microseconds;
using std::chrono::milliseconds;

RecvSearch::RecvSearch(DeviceGroup& group, std::shared_ptr<DeviceStreams> streams, Put put)
    : group_(group), streams_(std::move(streams)), put_(std::move(put)) {}

// A forked child has no use of the parent's GPU, so it must not destroy events there.
RecvSearch::~RecvSearch() {
  if (!streams_->in_forked_child()) return;
  thread_.abandon();
  [[maybe_unused]] const auto* leaked = new std::list<Recv>(std::move(recvs_));
}

bool RecvSearch::has_in_channel_of(std::int64_t tag) const {
  if (is_empty()) [[likely]] {
    return false;
  }
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(recvs_, [tag](const Recv& recv) {
    return tag_channel_of(recv.awaited.op.tag) == tag_channel_of(tag);
  });
}

std::list<RecvSearch::Recv>::iterator RecvSearch::remove(std::list<Recv>::iterator recv) {
  streams_->give_back(std::move(recv->issued));
  waiting_.fetch_sub(1, std::memory_order_release);
  return recvs_.erase(recv);
}

void RecvSearch::start_thread() {
  if (recvs_.empty() || running_) return;
  thread_.post([self = shared_from_this()](const Error* stopped) {
    if (stopped == nullptr) self->run();
  });
  running_ = true;
}

void RecvSearch::add(Recv recv) {
  static_cast<void>(group_.find_sender(recv.awaited));
  if (recv.awaited.op.peer == kAnySource) group_.expect_any(recv.awaited.op);
  recv.work->search_with(shared_from_this());
  const c10::intrusive_ptr<DeviceWork> work = recv.work;
  {
    const std::lock_guard lock(mutex_);
    if (cancelled_) throw Error(*cancelled_);
    recvs_.push_back(std::move(recv));
    waiting_.fetch_add(1, std::memory_order_release);
  }
  look();
  const std::lock_guard lock(mutex_);
  try {
    start_thread();
  } catch (const Error&) {
    const auto mine = std::ranges::find(recvs_, work, &Recv::work);
    if (mine != recvs_.end()) remove(mine);
    throw;
  }
}

// All recvs before `recv` still wait, and the first that fits gets a message: also one that was
// announced after they were asked about and before this one is.
bool RecvSearch::takes_from(std::list<Recv>::iterator recv, int sender) const {
  const TransferOp& op = recv->awaited.op;
  return std::none_of(recvs_.begin(), std::list<Recv>::const_iterator(recv), [&](const Recv& each) {
    const TransferOp& earlier = each.awaited.op;
    return earlier.tag == op.tag && (earlier.peer == kAnySource || earlier.peer == sender);
  });
}

bool RecvSearch::settle(std::list<Recv>::iterator recv, std::optional<Error>& error,
                        bool looks_for_trouble) {
  try {
    const std::optional<int> sender = group_.find_sender(recv->awaited);
    if (sender && takes_from(recv, *sender)) {
      TransferOp op = recv->awaited.op;
      op.peer = *sender;
      put_(*recv, op);
      return true;
    }
    if (sender) return false;
    if (looks_for_trouble) group_.look_for_trouble(recv->awaited);
    return false;
  } catch (const Error& refused) {
    error = refused;
  } catch (const std::exception& failed) {  // of torch's streams and events
    error = Error(ErrorCode::kSystem, failed.what());
  }
  return true;
}

// A failure that look_for_trouble() finds is thrown by the next find_sender().
void RecvSearch::look() {
  constexpr milliseconds kTroublePeriod{4};
  std::vector<Ended> ended;
  {
    const std::lock_guard lock(mutex_);
    if (recvs_.empty()) return;
    const Clock::time_point now = Clock::now();
    const bool looks_for_trouble = now >= next_trouble_;
    if (looks_for_trouble) next_trouble_ = now + kTroublePeriod;
    for (auto recv = recvs_.begin(); recv != recvs_.end();) {
      std::optional<Error> error;
      if (!settle(recv, error, looks_for_trouble)) {
        ++recv;
        continue;
      }
      ended.push_back({std::move(recv->work), std::move(error)});
      recv = remove(recv);
    }
  }
  // Without the lock: callbacks of the program may run.
  for (const Ended& one : ended) one.work->end_search(one.error);
}

void RecvSearch::run() noexcept {
  constexpr microseconds kShortest{20};
  constexpr microseconds kLongest{500};
  microseconds sleep = kShortest;
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (recvs_.empty()) {
        running_ = false;
        return;
      }
    }
    look();
    std::this_thread::sleep_for(sleep);
    sleep = std::min(sleep * 2, kLongest);
  }
}

void RecvSearch::cancel(const Error& reason) noexcept {
  std::list<Recv> recvs;
  {
    const std::lock_guard lock(mutex_);
    if (!cancelled_) cancelled_ = reason;
    recvs.swap(recvs_);
    waiting_.store(0, std::memory_order_release);
  }
  for (Recv& recv : recvs) {
    streams_->give_back(std::move(recv.issued));
    recv.work->end_search(reason);
  }
  constexpr milliseconds kStopLimit{5'000};
  thread_.stop(reason, kStopLimit);
}

}  // namespace symm
