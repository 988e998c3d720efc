#include "backend/streams/device_streams.hpp"

#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "backend/streams/stream_pool.hpp"
#include "symm_mem/process/deadline.hpp"
#include "symm_mem/process/fork_guard.hpp"
#include "symm_mem/process/interrupt.hpp"

namespace symm {

using std::chrono::microseconds;
using std::chrono::milliseconds;

namespace {

// Of the groups of this process.
struct AllStreams {
  std::mutex mutex;
  std::vector<DeviceStreams*> groups;
};
AllStreams& all_streams() {
  static auto* const all = new AllStreams;  // groups may outlive what ends with the process
  return *all;
}

}  // namespace

DeviceStreams::DeviceStreams(at::Device device, std::shared_ptr<Communicator> communicator,
                             DeviceGroup& group)
    : device_(device),
      guard_(device.type()),
      runtime_(group.runtime()),
      high_priority_(communicator->config().high_priority),
      fork_generation_(fork_generation()),
      collectives_(take_stream(runtime_, device, high_priority_)),
      batches_(take_stream(runtime_, device, high_priority_)),
      order_event_(device.type()),
      communicator_(std::move(communicator)),
      group_(&group) {
  constexpr std::size_t kMostReserved = 64;
  const auto peers = static_cast<std::size_t>(communicator_->world_size() - 1);
  reserve_streams(runtime_, device, high_priority_,
                  std::min(kMostReserved, 2 * kTagChannels * peers));
  // Now rather than beside a kernel, where a program or a Future takes its first one.
  static_cast<void>(guard_.getStreamFromGlobalPool(device, high_priority_));
  const std::lock_guard lock(all_streams().mutex);
  all_streams().groups.push_back(this);
}

// A forked child has no use of the parent's GPU, so it must not destroy events there.
DeviceStreams::~DeviceStreams() {
  if (!in_forked_child()) {
    {
      const std::lock_guard lock(all_streams().mutex);
      std::erase(all_streams().groups, this);
    }
    for (const std::optional<c10::Stream>& stream : p2p_streams_) {
      if (stream) give_back_stream(*stream, high_priority_);
    }
    give_back_stream(batches_, high_priority_);
    give_back_stream(collectives_, high_priority_);
    return;
  }
  ends_.abandon();
  spare_events_.push_back(std::move(order_event_));
  [[maybe_unused]] const auto* leaked = new std::vector<c10::Event>(std::move(spare_events_));
}

bool DeviceStreams::in_forked_child() const { return fork_generation() != fork_generation_; }

c10::Stream DeviceStreams::p2p(std::size_t number) {
  const std::lock_guard lock(mutex_);
  if (number >= p2p_streams_.size()) p2p_streams_.resize(number + 1);
  std::optional<c10::Stream>& stream = p2p_streams_[number];
  if (!stream) stream = take_stream(runtime_, device_, high_priority_);
  return *stream;
}

void DeviceStreams::order(const c10::Stream& before, const c10::Stream& after,
                          std::uint64_t capture) {
  if (before == after) return;
  const std::lock_guard lock(mutex_);
  order_event_.record(before);
  order(order_event_, after, capture);
}

void DeviceStreams::order(const c10::Event& event, const c10::Stream& after,
                          std::uint64_t capture) const {
  event.block(after);
  if (capture != 0) runtime_.drop_implied_dependencies(after.native_handle());
}

void DeviceStreams::extend(StreamChain& chain, const c10::Stream& next, std::uint64_t capture,
                           const c10::Stream& ordered) {
  LastOperation& last = chain.last(capture);
  const bool related = last.stream && (capture == 0 || chain.capture == capture);
  if (related && *last.stream != next && *last.stream != ordered) {
    if (last.state == LastOperation::State::kHasPoint) {
      order(last.point->event(), next, capture);
    } else if (capture_of(*last.stream) == capture) {
      order(*last.stream, next, capture);
    }
    // Else a capture has taken the stream over since: whoever began it has put an end to what was
    // on the stream before, and an event recorded there now would belong to the capture.
  }
  last.stream = next;
  last.state = LastOperation::State::kBegun;
  if (capture != 0) chain.capture = capture;
}

void DeviceStreams::begin_collective(const c10::Stream& next, std::uint64_t capture,
                                     const c10::Stream& ordered) {
  const std::lock_guard lock(collectives_mutex_);
  const std::optional<c10::Stream>& last = last_collective_.eager.stream;
  if (capture == 0 && last && *last != next && *last != ordered && *last != collectives_) {
    has_moved_ = true;
  }
  extend(last_collective_, next, capture, ordered);
}

void DeviceStreams::end_collective(const c10::Stream& stream, std::uint64_t capture) {
  if (stream == collectives_) return;
  const std::lock_guard lock(collectives_mutex_);
  LastOperation& last = last_collective_.last(capture);
  last.state = LastOperation::State::kOnStream;
  if (has_moved_ || capture != 0) put_point(last);
}

void DeviceStreams::put_point(LastOperation& last) {
  if (!last.point) last.point = std::make_shared<StreamPoint>(*this);
  last.point->record(*last.stream);
  last.state = LastOperation::State::kHasPoint;
}

void DeviceStreams::begin_wait_for_messages(const c10::Stream& stream, std::uint64_t capture) {
  if (capture != 0) return;  // where there is a point
  const std::lock_guard all_lock(all_streams().mutex);
  for (DeviceStreams* const group : all_streams().groups) {
    const std::lock_guard lock(group->collectives_mutex_);
    LastOperation& last = group->last_collective_.eager;
    const bool is_here = last.state == LastOperation::State::kOnStream && *last.stream == stream;
    if (is_here) group->put_point(last);
  }
}

std::shared_ptr<StreamPoint> DeviceStreams::point_behind(const c10::Stream& stream) {
  auto point = std::make_shared<StreamPoint>(*this);
  point->record(stream);
  return point;
}

void DeviceStreams::protect(const at::Tensor& tensor, const c10::Stream& stream) const {
  if (!tensor.defined() || !tensor.has_storage()) return;
  guard_.recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
}

c10::Event DeviceStreams::take_event() {
  const std::lock_guard lock(mutex_);
  if (spare_events_.empty()) return c10::Event(device_.type());
  c10::Event event = std::move(spare_events_.back());
  spare_events_.pop_back();
  return event;
}

void DeviceStreams::give_back(c10::Event&& event) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    spare_events_.push_back(std::move(event));
  } catch (const std::bad_alloc&) {
    // The event is destroyed instead.
  }
}

std::vector<c10::Event> DeviceStreams::mark(bool with_current) {
  c10::SmallVector<c10::Stream, 8> streams{collectives_, batches_};
  if (with_current) streams.push_back(current());
  {
    const std::lock_guard lock(collectives_mutex_);
    if (last_collective_.eager.stream) streams.push_back(*last_collective_.eager.stream);
  }
  {
    const std::lock_guard lock(mutex_);
    for (const std::optional<c10::Stream>& stream : p2p_streams_) {
      if (stream) streams.push_back(*stream);
    }
  }
  std::vector<c10::Event> events;
  for (const c10::Stream& stream : streams) {
    if (capture_of(stream) != 0) continue;
    events.push_back(take_event());
    events.back().record(stream);
  }
  return events;
}

StreamPoint::StreamPoint(DeviceStreams& streams)
    : streams_(streams), event_(streams.take_event()) {}

StreamPoint::~StreamPoint() {
  if (streams_.in_forked_child()) {
    [[maybe_unused]] const auto* leaked = new c10::Event(std::move(event_));
    return;
  }
  streams_.give_back(std::move(event_));
}

std::optional<Error> DeviceStreams::failure() const {
  const std::lock_guard lock(state_mutex_);
  if (closed_) return closing_failure_;
  if (group_->gave_up()) {
    try {
      group_->check();
    } catch (const Error& error) {
      return error;
    }
  }
  return communicator_->failure();
}

void DeviceStreams::check() const {
  const std::lock_guard lock(state_mutex_);
  if (!closed_) {
    group_->check();
  } else if (closing_failure_) {
    throw *closing_failure_;
  }
}

void DeviceStreams::abort(const char* reason) const {
  std::shared_ptr<Communicator> communicator;
  {
    const std::lock_guard lock(state_mutex_);
    communicator = communicator_;
  }
  if (communicator) communicator->abort(reason);
}

void DeviceStreams::close(std::optional<Error> failure) {
  std::shared_ptr<Communicator> communicator;  // let go outside the lock
  {
    const std::lock_guard lock(state_mutex_);
    if (closed_) return;
    closed_ = true;
    closing_failure_ = std::move(failure);
    communicator.swap(communicator_);
    group_ = nullptr;
  }
  constexpr milliseconds kStopLimit{5'000};
  ends_.stop(Error(ErrorCode::kAborted, "the process group was destroyed"), kStopLimit);
}

bool DeviceStreams::closed() const {
  const std::lock_guard lock(state_mutex_);
  return closed_;
}

DevicePoint::~DevicePoint() {
  if (streams_->in_forked_child()) {
    [[maybe_unused]] const auto* leaked = new std::vector<c10::Event>(std::move(events_));
    return;
  }
  for (c10::Event& event : events_) streams_->give_back(std::move(event));
}

void DevicePoint::wait(milliseconds limit) const {
  // A kernel that waits in vain gives up at its own time-out, which names the peer; the failure
  // arrives here a little later.
  constexpr milliseconds kGrace{500};
  const Deadline deadline(within_longest(limit) + kGrace);
  // Asks often at first, since most points are reached soon, then seldom.
  constexpr int kYields = 64;
  constexpr microseconds kLongestSleep{500};
  microseconds sleep{10};
  for (int turn = 0; !passed(); ++turn) {
    if (const std::optional<Error> failure = streams_->failure()) throw *failure;
    check_interrupts();
    if (deadline.passed()) {
      throw Error(ErrorCode::kTimeout, "the work on " + streams_->device().str() +
                                           " before the barrier is not done after " +
                                           std::to_string(limit.count()) + " ms");
    }
    if (turn < kYields) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(sleep);
      sleep = std::min(2 * sleep, kLongestSleep);
    }
  }
  streams_->check();
}

bool DevicePoint::passed() const {
  const RelaxedCapture relaxed(streams_->runtime());
  return std::all_of(events_.begin(), events_.end(),
                     [](const c10::Event& event) { return event.query(); });
}

}  // namespace symm
