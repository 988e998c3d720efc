// The streams of one group on its GPU, and what PyTorch's streams, events and graph captures ask of
// whoever puts work on them.
//
// NOTE [Streams of a group]
// A call that is not asynchronous goes on the caller's current stream. Asynchronous collectives
// share one stream; messages have one a direction, peer and tag channel, so that they do not wait
// for each other; the messages of a coalescing block go together on one more. All of them are the
// group's alone while it lives (NOTE [Streams of one's own] in stream_pool.hpp).
//
// NOTE [Points behind operations]
// What follows an operation in an order should wait for that one, and for nothing that came on its
// stream later: that may itself wait, for a peer that first wants what follows. So a point, an
// event, is recorded behind an operation where other work may come on its stream, the program's or
// that of other orders. Streams that carry one order alone need none: the group's for collectives,
// and those of single messages. Behind a batch the point is that of its Work.
//
// An event behind each eager collective on the program's stream would cost 0.6 to 1.9 us of 10 to
// 20 (docs/experiments.md, "Events behind calls"). So it is recorded once the group's collectives
// have gone from one stream of the program to another, in captures, and before a stream is made to
// wait for messages of any group, whose peers need not call in the same order. Where none of these
// came, what is on the stream by then is waited for.
//
// NOTE [Graph captures]
// A stream is in at most one capture. Work that was captured has not run and may run often, so it
// is never ordered against work outside of its capture, in either direction, and its events are
// never asked. A stream that waits in a capture adds to the nodes that its next one follows, and
// only a node of its own takes any away: what others of them follow is dropped after each wait, or
// calls that are waited for one by one would each follow all before it. An event of an uncaptured
// launch may be asked during a capture only by a thread in relaxed mode (RelaxedCapture).
//
// Device-generic: only what c10 offers for every kind of device, and the device library's runtime.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/SmallVector.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "backend/engine/communicator.hpp"
#include "backend/streams/end_watch.hpp"
#include "kernels/core/error.hpp"
#include "symm_mem/c10d/gpu_access.hpp"

namespace symm {

class DeviceStreams;

// An event of a group behind one operation at a time. It goes before the group's streams do.
class StreamPoint {
 public:
  explicit StreamPoint(DeviceStreams& streams);
  ~StreamPoint();
  StreamPoint(const StreamPoint&) = delete;
  StreamPoint& operator=(const StreamPoint&) = delete;

  const c10::Event& event() const { return event_; }
  void record(const c10::Stream& stream) { event_.record(stream); }

 private:
  DeviceStreams& streams_;
  c10::Event event_;
};

// The last operation of one order.
struct LastOperation {
  enum class State { kBegun, kOnStream, kHasPoint };

  std::optional<c10::Stream> stream;
  State state = State::kBegun;
  std::shared_ptr<StreamPoint> point;  // of an earlier operation, until it is in kHasPoint
};

// One order: outside of captures, and in the latest capture.
struct StreamChain {
  LastOperation eager;
  LastOperation captured;
  std::uint64_t capture = 0;

  LastOperation& last(std::uint64_t of_capture) { return of_capture == 0 ? eager : captured; }
};

// Shared by the group and its Works, which may outlive it. Thread safe.
class DeviceStreams {
 public:
  // Before the first kernel of the group: makes streams. `group` belongs to `communicator`.
  DeviceStreams(at::Device device, std::shared_ptr<Communicator> communicator, DeviceGroup& group);
  ~DeviceStreams();
  DeviceStreams(const DeviceStreams&) = delete;
  DeviceStreams& operator=(const DeviceStreams&) = delete;

  at::Device device() const { return device_; }
  GpuRuntime& runtime() const { return runtime_; }

  // Whether the device is this thread's current one.
  bool is_current() const { return guard_.getDevice() == device_; }
  // This thread's.
  c10::Stream current() const { return guard_.getStream(device_); }
  const c10::Stream& collectives() const { return collectives_; }
  const c10::Stream& batches() const { return batches_; }
  // By DeviceLauncher::p2p_stream_of().
  c10::Stream p2p(std::size_t number);

  // Identifies the capture that `stream` is in; 0 for none.
  std::uint64_t capture_of(const c10::Stream& stream) const {
    return runtime_.capture_id(stream.native_handle());
  }

  // What is put on `after` from now on waits for what is on `before`. Both are in `capture`, or
  // none is in any and it is 0, or `before` is and draws `after` into it.
  void order(const c10::Stream& before, const c10::Stream& after, std::uint64_t capture);
  // The same for what was on the stream of `event`, a point of `capture` unless that is 0.
  void order(const c10::Event& event, const c10::Stream& after, std::uint64_t capture) const;

  // `next`, which is in `capture`, becomes the last of `chain`, ordered after the one before.
  // `ordered`: a stream that `next` already waits for. One thread at a time for a chain.
  void extend(StreamChain& chain, const c10::Stream& next, std::uint64_t capture,
              const c10::Stream& ordered);
  // The same for the group's collectives: before one is put on `next`, and behind it.
  void begin_collective(const c10::Stream& next, std::uint64_t capture, const c10::Stream& ordered);
  void end_collective(const c10::Stream& stream, std::uint64_t capture);
  // NOTE [Points behind operations]: `stream` is about to wait for messages. Of all groups.
  static void begin_wait_for_messages(const c10::Stream& stream, std::uint64_t capture);

  // Behind what is on `stream`.
  std::shared_ptr<StreamPoint> point_behind(const c10::Stream& stream);

  // Keeps the memory of `tensor` from being used again before `stream` has passed this point.
  void protect(const at::Tensor& tensor, const c10::Stream& stream) const;

  // An event for one Work, taken from those given back.
  c10::Event take_event();
  void give_back(c10::Event&& event) noexcept;

  // Events behind all that is on the group's streams, on that of its last collective, and, where
  // `with_current`, on this thread's; streams in a capture are left out.
  std::vector<c10::Event> mark(bool with_current);

  // The group's failure as its operations see it: nullopt while it works, and after close(nullopt).
  std::optional<Error> failure() const;
  // Throws as DeviceGroup::check(), until close().
  void check() const;
  void abort(const char* reason) const;

  // As EndWatch::add(). Throws Error(kAborted) after close().
  void watch(WatchedOperation operation) { ends_.add(std::move(operation)); }

  // The group is gone: lets go of the communicator. `failure` is what became of operations whose
  // end nobody has seen. Idempotent: the first call counts.
  void close(std::optional<Error> failure);
  bool closed() const;
  bool in_forked_child() const;

 private:
  void put_point(LastOperation& last);

  const at::Device device_;
  const c10::impl::VirtualGuardImpl guard_;
  GpuRuntime& runtime_;
  const bool high_priority_;
  const std::uint32_t fork_generation_;
  const c10::Stream collectives_;
  const c10::Stream batches_;

  mutable std::mutex mutex_;  // guards what follows
  std::vector<std::optional<c10::Stream>> p2p_streams_;
  std::vector<c10::Event> spare_events_;
  c10::Event order_event_;  // recorded and waited for under the lock, so one serves all

  std::mutex collectives_mutex_;  // guards what follows; mutex_ may be locked inside it
  StreamChain last_collective_;
  bool has_moved_ = false;  // collectives from one stream of the program to another

  mutable std::mutex state_mutex_;  // guards what follows
  std::shared_ptr<Communicator> communicator_;
  DeviceGroup* group_;
  bool closed_ = false;
  std::optional<Error> closing_failure_;

  EndWatch ends_;
};

// Everything that a group had put on the device at one moment, for a barrier to wait for.
class DevicePoint {
 public:
  DevicePoint(std::shared_ptr<DeviceStreams> streams, std::vector<c10::Event> events)
      : streams_(std::move(streams)), events_(std::move(events)) {}
  ~DevicePoint();
  DevicePoint(const DevicePoint&) = delete;
  DevicePoint& operator=(const DevicePoint&) = delete;

  // Blocks the host until the device has passed the point. Throws the group's failure, and
  // Error(kTimeout) when `limit` has passed.
  void wait(std::chrono::milliseconds limit) const;
  // Whether the device has passed the point. Throws what the device throws.
  bool passed() const;

 private:
  std::shared_ptr<DeviceStreams> streams_;
  std::vector<c10::Event> events_;
};

}  // namespace symm
