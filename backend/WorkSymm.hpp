// What an operation of the process group returns.
//
// NOTE [Life of a Work]
// A Work is pending until finish() is called, once, with or without an exception; from then on
// nothing changes. A synchronous operation that ran on its caller's thread has none, or one that
// was born finished (NOTE [Calls without a Work] in process_group_impl.hpp). Waiters are woken
// before the callbacks of a future run. Tensors are kept until wait() or the destructor, so that
// they are released on a thread of the user where there is one.
//
// In a forked child a Work that was pending at the fork will never end: waiting for it, asking
// whether it is complete and asking for its future raise what a call on its group raises. One that
// had finished is as in the parent.
//
// Thread safety: every member may be called from any thread (functional collectives wait from other
// threads). wait() blocks: call it without Python's interpreter lock.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "backend/collective_call.hpp"
#include "backend/engine/async_queue.hpp"
#include "backend/engine/communicator.hpp"
#include "backend/engine/host/point_to_point.hpp"
#include "backend/engine/record/flight_record.hpp"
#include "backend/pending_works.hpp"
#include "backend/profiled_call.hpp"
#include "symm_mem/process/fork_guard.hpp"

namespace symm {

using TensorVector = c10::SmallVector<at::Tensor, 2>;

class WorkSymm : public c10d::Work {
 public:
  // `title` names the operation in a profile, which shows `inputs`, and may be nullptr. The
  // sequence number counts the operations of the group, from 1.
  WorkSymm(int rank, c10d::OpType type, const char* title, std::uint64_t sequence,
           TensorVector outputs, const ProfiledTensors& inputs = std::nullopt);
  ~WorkSymm() override;

  // For the operation itself: the Work is born finished.
  void finish_at_birth() noexcept;
  // The flight record learns of the end. Before the operation can end.
  void record_as(const FlightTicket& ticket) { ticket_ = ticket; }
  const FlightTicket& ticket() const { return ticket_; }
  // The Work is one of `pending` until it ends. Before the operation can end.
  void pend_in(std::shared_ptr<PendingWorks> pending);
  // The call was refused, so that no operation has ended.
  void pend_no_more() noexcept;
  // Before anybody may ask for the result.
  void add_output(const at::Tensor& tensor) { outputs_.push_back(tensor); }

  bool isCompleted() override;
  bool isSuccess() const override { return finished() && !exception_; }
  std::exception_ptr exception() const override { return finished() ? exception_ : nullptr; }
  int sourceRank() const override;
  std::vector<at::Tensor> result() override { return {outputs_.begin(), outputs_.end()}; }
  // Host memory needs no stream order: rethrows the failure of a finished Work.
  void synchronize() override;
  // Blocks until finished and rethrows. timeout <= 0 means the operation's own time-out, which
  // ends it with an error. A positive one that passes first throws DistBackendError and leaves the
  // operation in flight.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  // Fails the whole group: an operation cannot be taken back alone.
  void abort() override;
  // Completed with the list of output tensors, or with the exception.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  // Completed with a c10d::WorkResult as a number, never with an exception.
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  std::uint64_t getSequencenumber() const override { return sequence_; }
  // Milliseconds from the call to the end; 0 while pending.
  float getDuration() const override;

 protected:
  using Clock = std::chrono::steady_clock;

  // Ends the Work; later calls do nothing. Runs the callbacks of futures on this thread, or on one
  // of `callbacks`.
  void finish(std::exception_ptr failure, AsyncQueue* callbacks = nullptr) noexcept;
  bool finished() const noexcept { return finished_.load(std::memory_order_acquire); }
  bool in_forked_child() const { return generation_ != fork_generation(); }
  // For a pending Work: throws PyTorch's exception in a forked child.
  void check_process() const;
  void rethrow_failure() const;
  // c10d keeps a Work that was made under allow_inflight_collective_as_graph_input_ctx() until
  // somebody has waited for it.
  void unregister();
  // For what has to wait for the end of the coalescing block that the operation belongs to.
  [[noreturn]] static void throw_block_has_not_ended();
  // What wait() throws where its limit has passed.
  Error not_done_after(std::chrono::milliseconds limit) const;

  // Ends the range of a profile that `title` began; finish() does it too.
  void end_profiled_range();
  const TensorVector& outputs() const { return outputs_; }

  // Lets go of what only the running operation needed. On a waiter's thread.
  virtual void release_inputs() {}
  virtual void abort_group() {}
  // Of this rank, for messages; mutex_ is not held.
  virtual std::string rank_name() const { return "rank " + std::to_string(rank_); }

 private:
  using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

  // Once the Work has ended.
  void tell_pending() noexcept;
  void complete_both(const FuturePtr& future, const FuturePtr& result) const noexcept;
  void complete(c10::ivalue::Future& future) const;
  void complete_result(c10::ivalue::Future& future) const;
  // Makes `future`, of `type`, unless it is there; `complete` is called where the Work has ended.
  FuturePtr future_of(FuturePtr& future, const c10::TypePtr& type,
                      void (WorkSymm::*complete)(c10::ivalue::Future&) const);

  const std::uint64_t sequence_;
  const std::uint32_t generation_ = fork_generation();
  TensorVector outputs_;  // the value of the future
  FlightTicket ticket_;
  std::shared_ptr<PendingWorks> pending_;  // until it has been told of the end
  const Clock::time_point started_;
  Clock::time_point ended_{};
  std::atomic<bool> finished_{false};
  // Under mutex_ of the base, as exception_ is; both are made only when asked for.
  FuturePtr future_;
  FuturePtr future_result_;
};

// What the caller of `calls` gets.
TensorVector outputs_of(const CallBatch& calls);

// Carries out one call on the host, once the device has passed what the call comes after. Throws
// as DevicePoint::wait and Communicator::run, and where the call's audit cannot be written.
void run_on_host(const CollectiveCall& call, Communicator& communicator,
                 std::chrono::milliseconds timeout);

// One or more collectives on the group's queue.
class CollectiveWork final : public WorkSymm {
 public:
  CollectiveWork(int rank, c10d::OpType type, const char* title, std::uint64_t sequence,
                 CallBatch calls, std::shared_ptr<Communicator> communicator,
                 std::chrono::milliseconds timeout);

  // Before the task is queued.
  const CallBatch& calls() const { return calls_; }
  // The task of the queue: runs the calls, or ends the Work where the queue was stopped.
  void run(const Error* stopped) noexcept;

 private:
  void release_inputs() override;
  void abort_group() override;
  std::string rank_name() const override;

  CallBatch calls_;
  std::shared_ptr<Communicator> communicator_;  // until finished; under mutex_
  const std::chrono::milliseconds timeout_;
};

// A send or recv. wait() makes progress on the waiter's thread. One that belongs to a coalescing
// block is started at the end of the block; until then wait() throws ValueError.
class TransferWork final : public WorkSymm {
 public:
  TransferWork(int rank, c10d::OpType type, const char* title, std::uint64_t sequence,
               at::Tensor tensor, const std::shared_ptr<Communicator>& communicator,
               std::shared_ptr<AsyncQueue> callbacks);

  // `transfer` was started for this Work's tensor; the engine calls transfer_done() from its
  // on_done, on any thread and perhaps before start() is.
  void start(std::shared_ptr<Transfer> transfer);
  void transfer_done() noexcept;
  // The peer's group rank, where that of the engine is another: before the Work is handed out.
  void name_peer(int peer) { named_peer_ = peer; }
  // In place of both: it will not be started.
  void cancel(const Error& reason) noexcept;

  bool isCompleted() override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  int sourceRank() const override;

 private:
  bool started() const noexcept { return started_.load(std::memory_order_acquire); }
  void finish_from_transfer(AsyncQueue* callbacks = nullptr) noexcept;
  void release_inputs() override;
  void abort_group() override;

  at::Tensor tensor_;                         // under mutex_
  std::weak_ptr<Communicator> communicator_;  // a transfer does not keep its group alive
  // For whoever ends the transfer inside the engine: it may make progress for others.
  const std::shared_ptr<AsyncQueue> callbacks_;
  std::shared_ptr<Transfer> transfer_;  // set once by start(), before started_
  int named_peer_ = -1;
  std::atomic<bool> started_{false};
  std::atomic<int> steps_{0};  // start() and transfer_done(), in either order
};

// The operations between startCoalescing and endCoalescing.
class CoalescedWork final : public WorkSymm {
 public:
  CoalescedWork(int rank, std::uint64_t sequence, std::vector<c10::intrusive_ptr<Work>> works,
                TensorVector outputs, const FlightTicket& ticket = {});

  bool isCompleted() override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;

 private:
  // All works have ended.
  void finish_with_last() noexcept;
  // Makes the last of the works finish this one.
  void follow();

  const std::vector<c10::intrusive_ptr<Work>> works_;
  std::atomic<bool> follows_{false};
};

}  // namespace symm
