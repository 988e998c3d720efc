#include "backend/WorkSymm.hpp"
#include "backend/hosts/host_group.hpp"

#include <ATen/core/jit_type.h>
#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <mutex>
#include <string>
#include <utility>

#include "backend/call_audit.hpp"
#include "backend/engine/group_engine.hpp"
#include "backend/engine/host/mailbox_engine.hpp"
#include "backend/sparse_all_reduce.hpp"
#include "backend/streams/device_streams.hpp"
#include "symm_mem/c10d/errors.hpp"
#include "symm_mem/process/deadline.hpp"
#include "symm_mem/process/interrupt.hpp"

namespace symm {

namespace {

template <typename Body>
void log_exceptions(Body&& body) noexcept {
  try {
    body();
  } catch (const std::exception& error) {
    LOG(ERROR) << "symm: a callback of a finished operation failed: " << error.what();
  } catch (...) {
    LOG(ERROR) << "symm: a callback of a finished operation failed";
  }
}

}  // namespace

WorkSymm::WorkSymm(int rank, c10d::OpType type, const char* title, std::uint64_t sequence,
                   TensorVector outputs, const ProfiledTensors& inputs)
    : c10d::Work(rank, type, title, inputs),
      sequence_(sequence),
      outputs_(std::move(outputs)),
      started_(Clock::now()) {}

WorkSymm::~WorkSymm() { pend_no_more(); }

void WorkSymm::pend_in(std::shared_ptr<PendingWorks> pending) {
  pending_ = std::move(pending);
  pending_->began();
}

void WorkSymm::pend_no_more() noexcept {
  // In a forked child the parent's lock may be held by a thread that is not there.
  if (pending_ && !in_forked_child()) std::exchange(pending_, nullptr)->ended(nullptr);
}

void WorkSymm::tell_pending() noexcept {
  if (!pending_) return;
  const std::shared_ptr<PendingWorks> pending = std::exchange(pending_, nullptr);
  PendingWorks::Record record;
  if (pending->has_hook()) {
    log_exceptions([&] {
      record = std::make_shared<c10d::WorkInfo>(opType_, sequence_, started_, ended_,
                                                std::chrono::duration<float>(ended_ - started_));
    });
  }
  pending->ended(record);
}

void WorkSymm::finish_at_birth() noexcept {
  ended_ = Clock::now();
  completed_ = true;
  if (recordFunctionEndCallback_) recordFunctionEndCallback_();
  finished_.store(true, std::memory_order_release);
  tell_pending();
}

void WorkSymm::end_profiled_range() {
  if (recordFunctionEndCallback_) std::exchange(recordFunctionEndCallback_, nullptr)();
}

void WorkSymm::finish(std::exception_ptr failure, AsyncQueue* callbacks) noexcept {
  FuturePtr future;
  FuturePtr future_result;
  {
    std::lock_guard lock(mutex_);
    if (completed_) return;
    ended_ = Clock::now();
    completed_ = true;
    exception_ = std::move(failure);
    ticket_.ended(exception_ == nullptr);  // before anybody knows, and looks it up
    finished_.store(true, std::memory_order_release);
    future = future_;
    future_result = future_result_;
    cv_.notify_all();
  }
  tell_pending();
  // One of the profiler must not end the process.
  log_exceptions([&] { end_profiled_range(); });
  if (!future && !future_result) return;
  if (callbacks != nullptr) {
    const auto self = c10::intrusive_ptr<WorkSymm>::unsafe_reclaim_from_nonowning(this);
    try {
      callbacks->post([self, future, future_result](const Error*) {
        self->complete_both(future, future_result);
      });
      return;
    } catch (const std::exception&) {
      // The group is at its end, or there is no thread to be had.
    }
  }
  complete_both(future, future_result);
}

void WorkSymm::complete_both(const FuturePtr& future, const FuturePtr& result) const noexcept {
  AsyncQueue::callbacks_begin();
  // A callback of the user that throws is the future's business.
  log_exceptions([&] {
    if (future) complete(*future);
    if (result) complete_result(*result);
  });
}

int WorkSymm::sourceRank() const {
  TORCH_CHECK(false, "sourceRank() may only be called on the work of a recv.");
}

void WorkSymm::synchronize() {
  if (finished()) rethrow_failure();
}

void WorkSymm::unregister() {
  if (!c10d::allow_inflight_collective_as_graph_input()) return;
  c10d::unregister_work(c10::intrusive_ptr<WorkSymm>::unsafe_reclaim_from_nonowning(this));
}

void WorkSymm::rethrow_failure() const {
  if (exception_) std::rethrow_exception(exception_);
}

void WorkSymm::throw_block_has_not_ended() {
  throw_torch_error(Error(ErrorCode::kInvalidArgument,
                          "the operation belongs to a coalescing block that has not ended"));
}

Error WorkSymm::not_done_after(std::chrono::milliseconds limit) const {
  return Error(ErrorCode::kTimeout, "wait() of operation ", sequence_, " on ", rank_name(),
               ": not done after ", limit.count(), " ms; it stays in flight");
}

void WorkSymm::check_process() const {
  if (in_forked_child()) throw_torch_error(made_by_parent());
}

bool WorkSymm::isCompleted() {
  if (finished()) return true;
  check_process();
  return false;
}

bool WorkSymm::wait(std::chrono::milliseconds timeout) {
  if (!finished()) {
    check_process();
    AsyncQueue::run_up_to(this);
  }
  if (!finished()) {
    constexpr std::chrono::milliseconds kLookPeriod{5};
    const Clock::time_point end = Clock::now() + within_longest(timeout);
    std::unique_lock lock(mutex_);
    while (!cv_.wait_for(lock, kLookPeriod, [this] { return completed_; })) {
      lock.unlock();
      with_torch_errors(check_interrupts);
      lock.lock();
      if (timeout.count() <= 0 || Clock::now() < end || completed_) continue;
      lock.unlock();
      throw_torch_error(not_done_after(timeout));
    }
  }
  release_inputs();
  unregister();
  rethrow_failure();
  return true;
}

void WorkSymm::abort() {
  if (!finished() && !in_forked_child()) abort_group();
}

float WorkSymm::getDuration() const {
  if (!finished()) return 0.0f;
  return std::chrono::duration<float, std::milli>(ended_ - started_).count();
}

void WorkSymm::complete(c10::ivalue::Future& future) const {
  if (exception_) {
    future.setError(exception_);
  } else {
    future.markCompleted(c10::IValue(std::vector<at::Tensor>(outputs_.begin(), outputs_.end())));
  }
}

void WorkSymm::complete_result(c10::ivalue::Future& future) const {
  const auto result = exception_ ? c10d::WorkResult::COMM_ERROR : c10d::WorkResult::SUCCESS;
  future.markCompleted(c10::IValue(static_cast<std::int64_t>(result)));
}

WorkSymm::FuturePtr WorkSymm::future_of(FuturePtr& future, const c10::TypePtr& type,
                                        void (WorkSymm::*complete)(c10::ivalue::Future&) const) {
  if (!finished()) check_process();
  std::unique_lock lock(mutex_);
  if (!future) {
    future = c10::make_intrusive<c10::ivalue::Future>(type);
    if (completed_) {
      lock.unlock();
      (this->*complete)(*future);
    }
  }
  return future;
}

c10::intrusive_ptr<c10::ivalue::Future> WorkSymm::getFuture() {
  return future_of(future_, c10::ListType::create(c10::TensorType::get()), &WorkSymm::complete);
}

c10::intrusive_ptr<c10::ivalue::Future> WorkSymm::getFutureResult() {
  return future_of(future_result_, c10::AnyEnumType::get(), &WorkSymm::complete_result);
}

TensorVector outputs_of(const CallBatch& calls) {
  TensorVector outputs;
  for (const CollectiveCall& call : calls) {
    outputs.append(call.outputs.begin(), call.outputs.end());
  }
  return outputs;
}

void run_on_host(const CollectiveCall& call, Communicator& communicator,
                 std::chrono::milliseconds timeout) {
  if (call.after) call.after->wait(timeout);
  if (call.sparse) [[unlikely]] {
    HostSparseSteps steps(call, communicator, timeout);
    call.sparse->run(steps);
    return;
  }
  copy_tensors(call.copies_before);
  const auto run = [&] {
    if (call.hosts) [[unlikely]] {
      call.hosts->collectives().run(call.args, timeout);
    } else {
      communicator.run(call.args, timeout, call.request);
    }
  };
  if (call.audit) [[unlikely]] {
    call.audit->around(call, communicator.next_sequence(), run);
  } else {
    run();
  }
  copy_tensors(call.copies_after);
}

CollectiveWork::CollectiveWork(int rank, c10d::OpType type, const char* title,
                               std::uint64_t sequence, CallBatch calls,
                               std::shared_ptr<Communicator> communicator,
                               std::chrono::milliseconds timeout)
    : WorkSymm(rank, type, title, sequence, outputs_of(calls), profiled_inputs(title, calls)),
      calls_(std::move(calls)),
      communicator_(std::move(communicator)),
      timeout_(timeout) {}

void CollectiveWork::run(const Error* stopped) noexcept {
  std::exception_ptr failure;
  try {
    if (stopped != nullptr) throw *stopped;
    ticket().started();
    for (const CollectiveCall& call : calls_) run_on_host(call, *communicator_, timeout_);
  } catch (const Error& error) {
    failure = torch_error(error);
  } catch (const Interrupted& interrupted) {
    failure = interrupted.cause;
  } catch (...) {
    failure = std::current_exception();
  }
  std::shared_ptr<Communicator> communicator;
  {
    std::lock_guard lock(mutex_);
    communicator.swap(communicator_);
  }
  finish(std::move(failure));
}

void CollectiveWork::release_inputs() {
  CallBatch calls;
  std::lock_guard lock(mutex_);
  calls.swap(calls_);
}

std::string CollectiveWork::rank_name() const {
  const std::lock_guard lock(mutex_);
  if (!communicator_) return WorkSymm::rank_name();
  const HostGroup* const hosts = calls_.empty() ? nullptr : calls_.front().hosts.get();
  return hosts ? hosts->rank_name(rank_) : communicator_->local_group()->rank_name(rank_);
}

void CollectiveWork::abort_group() {
  std::shared_ptr<Communicator> communicator;
  {
    std::lock_guard lock(mutex_);
    communicator = communicator_;
  }
  if (communicator) communicator->abort("abort() of an operation was called");
}

TransferWork::TransferWork(int rank, c10d::OpType type, const char* title, std::uint64_t sequence,
                           at::Tensor tensor, const std::shared_ptr<Communicator>& communicator,
                           std::shared_ptr<AsyncQueue> callbacks)
    : WorkSymm(rank, type, title, sequence,
               type == c10d::OpType::SEND ? TensorVector{} : TensorVector{tensor},
               profiled_tensor(title, tensor)),
      tensor_(std::move(tensor)),
      communicator_(communicator),
      callbacks_(std::move(callbacks)) {}

void TransferWork::start(std::shared_ptr<Transfer> transfer) {
  transfer_ = std::move(transfer);
  started_.store(true, std::memory_order_release);
  transfer_done();
}

void TransferWork::transfer_done() noexcept {
  if (steps_.fetch_add(1, std::memory_order_acq_rel) == 1) {
    finish_from_transfer(callbacks_.get());
  }
}

void TransferWork::cancel(const Error& reason) noexcept { finish(torch_error(reason)); }

void TransferWork::finish_from_transfer(AsyncQueue* callbacks) noexcept {
  const std::optional<Error>& error = transfer_->error();
  finish(error ? torch_error(*error) : nullptr, callbacks);
}

bool TransferWork::isCompleted() {
  if (!finished() && started() && transfer_->done()) finish_from_transfer();
  return WorkSymm::isCompleted();
}

bool TransferWork::wait(std::chrono::milliseconds timeout) {
  if (!isCompleted()) {
    if (!started()) throw_block_has_not_ended();
    if (const std::shared_ptr<Communicator> communicator = communicator_.lock()) {
      with_torch_errors([&] {
        try {
          communicator->point_to_point().wait(*transfer_, timeout);
        } catch (const Error&) {
          // The transfer's own failure is reported below, from the transfer.
          if (!transfer_->done()) throw;
        }
      });
    }
    if (transfer_->done()) finish_from_transfer();
  }
  return WorkSymm::wait(timeout);
}

int TransferWork::sourceRank() const {
  TORCH_CHECK(opType_ != c10d::OpType::SEND,
              "sourceRank() may only be called on the work of a recv.");
  TORCH_CHECK(finished() && started(),
              "sourceRank() may only be called once the recv is done: wait() first.");
  return named_peer_ < 0 ? transfer_->peer() : named_peer_;
}

void TransferWork::release_inputs() {
  at::Tensor released;
  std::lock_guard lock(mutex_);
  std::swap(released, tensor_);
}

void TransferWork::abort_group() {
  if (const std::shared_ptr<Communicator> communicator = communicator_.lock()) {
    communicator->abort("abort() of a transfer was called");
  }
}

CoalescedWork::CoalescedWork(int rank, std::uint64_t sequence,
                             std::vector<c10::intrusive_ptr<Work>> works, TensorVector outputs,
                             const FlightTicket& ticket)
    : WorkSymm(rank, c10d::OpType::COALESCED, nullptr, sequence, std::move(outputs)),
      works_(std::move(works)) {
  record_as(ticket);
  if (works_.empty()) finish_at_birth();
}

void CoalescedWork::finish_with_last() noexcept {
  std::exception_ptr first;
  for (const c10::intrusive_ptr<Work>& work : works_) {
    if (!first) first = work->exception();
  }
  finish(std::move(first));
}

bool CoalescedWork::isCompleted() {
  if (finished()) return true;
  for (const c10::intrusive_ptr<Work>& work : works_) {
    if (!work->isCompleted()) return false;
  }
  finish_with_last();
  return true;
}

bool CoalescedWork::wait(std::chrono::milliseconds timeout) {
  const auto begin = Clock::now();
  for (const c10::intrusive_ptr<Work>& work : works_) {
    std::chrono::milliseconds left = timeout;
    if (timeout.count() > 0) {
      const auto spent =
          std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin);
      left = std::max(std::chrono::milliseconds(1), timeout - spent);
    }
    work->wait(left);
  }
  isCompleted();
  unregister();
  return true;
}

void CoalescedWork::abort() {
  for (const c10::intrusive_ptr<Work>& work : works_) work->abort();
}

void CoalescedWork::follow() {
  if (works_.empty() || follows_.exchange(true)) return;
  auto unfinished = std::make_shared<std::atomic<std::size_t>>(works_.size());
  const auto self = c10::intrusive_ptr<CoalescedWork>::unsafe_reclaim_from_nonowning(this);
  for (const c10::intrusive_ptr<Work>& work : works_) {
    work->getFuture()->addCallback([self, unfinished](c10::ivalue::Future&) {
      if (unfinished->fetch_sub(1, std::memory_order_acq_rel) == 1) self->finish_with_last();
    });
  }
}

c10::intrusive_ptr<c10::ivalue::Future> CoalescedWork::getFuture() {
  auto future = WorkSymm::getFuture();
  follow();
  return future;
}

c10::intrusive_ptr<c10::ivalue::Future> CoalescedWork::getFutureResult() {
  auto future = WorkSymm::getFutureResult();
  follow();
  return future;
}

}  // namespace symm
