// What an operation on a GPU returns.
//
// NOTE [Life of a Work on a device]
// The operation is on its stream when the call returns; what follows is the device's business. The
// Work stays unfinished until somebody sees the end: isCompleted(), wait() with a limit, or the
// thread behind getFutureResult(). wait() without one and synchronize() only make the current
// stream wait, as every GPU backend of PyTorch does, so a failure shows at the next call of the
// group, at wait() of a Work whose end was not seen before the group failed, or at isCompleted();
// never by itself.
//
// Tensors of an asynchronous operation are kept until wait(), and released on its caller's thread.
// Where the current stream is then another one than at the call, or where the Work is dropped
// without wait(), record_stream makes the caching allocator keep them until the stream has passed.
//
// A recv from any rank is on a stream once its sender is known (recv_search.hpp). wait(),
// synchronize() and getFuture() block the host until then, and isCompleted() looks.
//
// The Work of a call that ran on the current stream has no event unless one is asked for.
//
// A Work of a captured operation can be waited for inside its capture, which joins the operation's
// stream; afterwards wait() does nothing and the Work counts as completed. A Work from before a
// capture can be waited for inside it only where it is complete.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "backend/WorkSymm.hpp"
#include "backend/streams/device_streams.hpp"
#include "symm_mem/process/deadline.hpp"

namespace symm {

class RecvSearch;

class DeviceWork final : public WorkSymm {
 public:
  // Where the operation was put.
  struct Launch {
    c10::Stream stream;     // on which it runs
    c10::Stream issuing;    // current at the call
    std::uint64_t capture;  // that it is part of; 0 for none
  };

  DeviceWork(int rank, c10d::OpType type, const char* title, std::uint64_t sequence,
             TensorVector outputs, std::shared_ptr<DeviceStreams> streams,
             const ProfiledTensors& inputs = std::nullopt);
  ~DeviceWork() override;

  // For the operation itself, before the Work is handed out or, in a coalescing block, at its end.
  void keep(const at::Tensor& tensor) { kept_.push_back(tensor); }
  void came_from(int peer) { source_ = peer; }
  // `end`: a point behind the operation, where one has been put there.
  void launched(const Launch& launch, std::shared_ptr<StreamPoint> end = nullptr);
  // launched() comes later, or never: `search` then calls end_search(), after which nothing of it
  // is used. Before the Work is handed out.
  void search_with(std::shared_ptr<RecvSearch> search) { search_ = std::move(search); }
  // `error`: why it was not launched.
  void end_search(const std::optional<Error>& error) noexcept;
  // A thread sees the end, whoever asks for it or not. Throws Error(kAborted) where the group is
  // gone, Error(kSystem) where no thread can be made.
  void watch_end();

  // False while the operation's capture goes on, and in a coalescing block that has not ended.
  bool isCompleted() override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  void synchronize() override;
  // Without a `timeout` does not block the host, but for the sender of a recv from any rank. With a
  // positive one the host waits for the operation's end too, as over NCCL, and DistBackendError is
  // thrown where it passes first, the operation then in flight as before; not inside a capture, in
  // which nothing runs. Throws DistBackendError where the group has failed, the current stream then
  // behind the operation all the same, ValueError inside the coalescing block,
  // NotImplementedError inside a capture that began before the operation was complete.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void blockCurrentStream() override { synchronize(); }
  // Complete from the start: its users' streams wait for the operation.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  // Completed by a thread that watches the device, which the first call starts.
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  // Not measured: 0.
  float getDuration() const override { return 0.0f; }

 private:
  const Launch& launch() const;
  // Whether the operation is on its stream, or never will be.
  bool is_settled() const { return !search_ || settled_.load(std::memory_order_acquire); }
  bool was_refused() const { return is_settled() && finished() && !launch_; }
  // Blocks until done(); throws timed_out() where the deadline, if there is one, passes first.
  template <typename Done, typename TimedOut>
  static void await(const Deadline* deadline, const Done& done, const TimedOut& timed_out);
  void look_for_sender();
  void await_sender(const Deadline* deadline);
  void await_end(const Deadline& deadline);
  bool is_message() const;
  void make_wait(const c10::Stream& current);
  void follow_failed() noexcept;
  const c10::Event* end_event();
  void put_event(const c10::Stream& stream);
  bool passed();
  void release(const c10::Stream& current);
  // The result of the operation once it has ended: null where it ended well.
  std::optional<std::exception_ptr> outcome();
  void abort_group() override;

  const std::shared_ptr<DeviceStreams> streams_;
  // Null for all but a recv whose sender was not known at the call; the two after settled_ are then
  // set before it.
  std::shared_ptr<RecvSearch> search_;
  std::atomic<bool> settled_{false};
  int source_ = -1;
  std::optional<Launch> launch_;  // set once
  TensorVector kept_;             // under mutex_, as what follows
  // One of the two is behind the operation, once there is an event.
  std::optional<c10::Event> end_;
  std::shared_ptr<StreamPoint> shared_end_;
  bool waited_ = false;
  bool watched_ = false;
  c10::intrusive_ptr<c10::ivalue::Future> device_future_;
};

}  // namespace symm
