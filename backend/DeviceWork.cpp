#include "backend/DeviceWork.hpp"

#include <ATen/core/jit_type.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend/recv_search.hpp"
#include "symm_mem/c10d/errors.hpp"
#include "symm_mem/process/blocking_section.hpp"
#include "symm_mem/process/interrupt.hpp"

namespace symm {

DeviceWork::DeviceWork(int rank, c10d::OpType type, const char* title, std::uint64_t sequence,
                       TensorVector outputs, std::shared_ptr<DeviceStreams> streams,
                       const ProfiledTensors& inputs)
    : WorkSymm(rank, type, title, sequence, std::move(outputs), inputs),
      streams_(std::move(streams)) {}

DeviceWork::~DeviceWork() {
  if (streams_->in_forked_child()) {
    // Its event belongs to the parent process.
    [[maybe_unused]] const auto* leaked = new std::optional<c10::Event>(std::move(end_));
    end_.reset();
    return;
  }
  try {
    const bool elsewhere = launch_ && launch_->stream != launch_->issuing;
    if (elsewhere && !waited_ && !finished()) {
      for (const at::Tensor& tensor : kept_) streams_->protect(tensor, launch_->stream);
      for (const at::Tensor& tensor : outputs()) streams_->protect(tensor, launch_->stream);
    }
  } catch (const std::exception&) {
    // The device is gone, and what its streams would do with the memory is gone with it.
  }
  if (end_) streams_->give_back(*std::move(end_));
}

void DeviceWork::launched(const Launch& launch, std::shared_ptr<StreamPoint> end) {
  shared_end_ = std::move(end);
  if (launch.stream != launch.issuing) {
    if (!shared_end_) put_event(launch.stream);
  } else {
    kept_.clear();  // the stream that they are used on is the one that frees them
  }
  launch_ = launch;
  end_profiled_range();
}

void DeviceWork::end_search(const std::optional<Error>& error) noexcept {
  if (error) finish(torch_error(*error));
  settled_.store(true, std::memory_order_release);
}

// Asks often at first, since most of what is awaited is there soon, then seldom.
template <typename Done, typename TimedOut>
void DeviceWork::await(const Deadline* deadline, const Done& done, const TimedOut& timed_out) {
  constexpr int kYields = 64;
  constexpr std::chrono::microseconds kSleep{50};
  for (int turn = 0; !done(); ++turn) {
    with_torch_errors(check_interrupts);
    if (deadline != nullptr && deadline->passed()) throw_torch_error(timed_out());
    if (turn < kYields) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kSleep);
    }
  }
}

// NOTE [Looks for a sender]
// A look takes locks whose holders run signal handlers while they wait, for which they need the
// interpreter's lock; PyTorch asks a Work for its end or its Future with that lock held.
void DeviceWork::look_for_sender() {
  blocking_call([this] {
    search_->look();
    return true;
  });
}

void DeviceWork::await_sender(const Deadline* deadline) {
  if (is_settled()) return;
  check_process();
  const auto has_come = [this] {
    with_torch_errors([this] { search_->look(); });
    return is_settled();
  };
  blocking_call([&] {  // NOTE [Looks for a sender]
    await(deadline, has_come, [&] {
      return Error(ErrorCode::kTimeout, "a recv from any rank has no sender after ",
                   deadline->timeout().count(), " ms");
    });
    return true;
  });
}

void DeviceWork::await_end(const Deadline& deadline) {
  if (launch_->capture != 0 || streams_->capture_of(streams_->current()) != 0) return;
  await(
      &deadline, [this] { return isCompleted(); },
      [&] { return not_done_after(deadline.timeout()); });
}

const DeviceWork::Launch& DeviceWork::launch() const {
  if (!launch_) throw_block_has_not_ended();
  return *launch_;
}

void DeviceWork::put_event(const c10::Stream& stream) {
  end_ = streams_->take_event();
  end_->record(stream);
}

// The event behind the operation, recorded now where there was none yet; nullptr where the stream
// has since been taken into a capture.
const c10::Event* DeviceWork::end_event() {
  const std::lock_guard lock(mutex_);
  if (shared_end_) return &shared_end_->event();
  if (!end_) {
    if (streams_->capture_of(launch_->stream) != launch_->capture) return nullptr;
    put_event(launch_->stream);
  }
  return &*end_;
}

bool DeviceWork::passed() {
  const RelaxedCapture relaxed(streams_->runtime());
  const c10::Event* const end = end_event();
  return end != nullptr && end->query();
}

std::optional<std::exception_ptr> DeviceWork::outcome() {
  check_process();
  if (!is_settled()) look_for_sender();
  if (!is_settled()) return std::nullopt;
  if (finished()) return WorkSymm::exception();
  if (!launch_) return std::nullopt;
  if (const std::optional<Error> failure = streams_->failure()) return torch_error(*failure);
  if (launch_->capture != 0) {
    if (streams_->capture_of(launch_->stream) == launch_->capture) return std::nullopt;
    return nullptr;
  }
  if (!passed()) return std::nullopt;
  try {
    // A kernel that gave up has passed too.
    streams_->check();
    return nullptr;
  } catch (const Error& failure) {
    return torch_error(failure);
  }
}

bool DeviceWork::isCompleted() {
  if (finished()) return true;
  std::optional<std::exception_ptr> result = outcome();
  if (result) finish(*std::move(result));
  return result.has_value();
}

std::exception_ptr DeviceWork::exception() const {
  if (finished()) return WorkSymm::exception();
  const std::optional<Error> failure = streams_->failure();
  return failure ? torch_error(*failure) : nullptr;
}

int DeviceWork::sourceRank() const {
  TORCH_CHECK(is_settled(),
              "sourceRank() may only be called once the sender is known: wait() first.");
  if (source_ < 0) return WorkSymm::sourceRank();
  return source_;
}

void DeviceWork::make_wait(const c10::Stream& current) {
  const Launch& mine = launch();
  if (current == mine.stream || finished()) return;
  if (mine.capture != 0) {
    // Once the capture has ended there is nothing left to wait for outside of the graph.
    if (streams_->capture_of(mine.stream) != mine.capture) return;
  } else if (streams_->capture_of(current) != 0) {
    if (passed()) return;
    throw_torch_error(Error(ErrorCode::kUnsupported,
                            "wait() for an operation from before the graph capture, which is not "
                            "complete yet, cannot be part of the graph; wait before the capture"));
  }
  const c10::Event* const end = end_event();
  if (end == nullptr) return;
  if (is_message()) DeviceStreams::begin_wait_for_messages(current, mine.capture);
  streams_->order(*end, current, mine.capture);
}

// A batch counts as one.
bool DeviceWork::is_message() const {
  constexpr std::array kMessages{c10d::OpType::SEND, c10d::OpType::RECV,
                                 c10d::OpType::RECVANYSOURCE, c10d::OpType::COALESCED};
  return std::ranges::find(kMessages, opType_) != kMessages.end();
}

void DeviceWork::release(const c10::Stream& current) {
  TensorVector kept;  // released outside the lock
  {
    const std::lock_guard lock(mutex_);
    waited_ = true;
    kept.swap(kept_);
  }
  if (current == launch_->issuing) return;
  for (const at::Tensor& tensor : kept) streams_->protect(tensor, launch_->stream);
  for (const at::Tensor& tensor : outputs()) streams_->protect(tensor, launch_->stream);
}

// What the user writes to the tensors next comes after the kernel, which has then told its peers
// that it gave up (NOTE [Memory of a rank that gives up] in local_group.hpp).
void DeviceWork::follow_failed() noexcept {
  try {
    const c10::Stream current = streams_->current();
    if (current == launch_->stream || streams_->closed()) return;
    if (launch_->capture != 0 || streams_->capture_of(current) != 0) return;
    if (const c10::Event* const end = end_event()) end->block(current);
  } catch (const std::exception&) {
    // A device in error runs nothing any more.
  }
}

void DeviceWork::synchronize() { wait(kNoTimeout); }

bool DeviceWork::wait(std::chrono::milliseconds timeout) {
  const std::optional<Deadline> deadline =
      timeout.count() > 0 ? std::optional<Deadline>(timeout) : std::nullopt;
  await_sender(deadline ? &*deadline : nullptr);
  if (was_refused()) {
    unregister();
    rethrow_failure();
  }
  const Launch& mine = launch();
  if (!finished()) check_process();
  if (deadline) await_end(*deadline);
  unregister();
  if (std::exception_ptr failure = exception()) {
    follow_failed();
    std::rethrow_exception(std::move(failure));
  }
  const c10::Stream current = streams_->current();
  make_wait(current);
  if (mine.stream != mine.issuing) release(current);
  return true;
}

void DeviceWork::abort_group() { streams_->abort("abort() of an operation was called"); }

c10::intrusive_ptr<c10::ivalue::Future> DeviceWork::getFuture() {
  await_sender(nullptr);
  if (was_refused()) return WorkSymm::getFuture();
  const Launch& mine = launch();
  if (!finished()) check_process();
  {
    const std::lock_guard lock(mutex_);
    if (device_future_) return device_future_;
  }
  auto future = c10::make_intrusive<c10::ivalue::Future>(
      c10::ListType::create(c10::TensorType::get()), std::vector<c10::Device>{streams_->device()});
  if (std::exception_ptr failure = exception()) {
    future->setError(std::move(failure));
  } else {
    // The future records events on the stream that is current now.
    const bool as_launched = streams_->capture_of(mine.stream) == mine.capture;
    const c10::Stream stream = as_launched ? mine.stream : streams_->current();
    if (!as_launched) make_wait(stream);
    const c10::StreamGuard guard(stream);
    future->markCompleted(c10::IValue(result()));
  }
  const std::lock_guard lock(mutex_);
  if (!device_future_) device_future_ = std::move(future);
  return device_future_;
}

c10::intrusive_ptr<c10::ivalue::Future> DeviceWork::getFutureResult() {
  auto future = WorkSymm::getFutureResult();
  with_torch_errors([this] {
    if (!isCompleted()) watch_end();
  });
  return future;
}

void DeviceWork::watch_end() {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(watched_, true)) return;
  }
  // Now, or it would be behind what comes on the stream until somebody asks.
  if (is_settled() && launch_ && launch_->capture == 0) end_event();
  const auto self = c10::intrusive_ptr<DeviceWork>::unsafe_reclaim_from_nonowning(this);
  // A device that refuses to answer says why to those who use it.
  const auto answer = [](const auto& ask) noexcept {
    try {
      return ask();
    } catch (const std::exception&) {
      return true;
    }
  };
  // Also where it has ended: those before it may be told of first.
  streams_->watch({[=] { return answer([&] { return self->outcome().has_value(); }); },
                   [=] { answer([&] { return self->isCompleted(); }); }});
}

}  // namespace symm
