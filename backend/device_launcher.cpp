#include "backend/device_launcher.hpp"

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>

#include <string>
#include <thread>
#include <utility>

#include "backend/call_audit.hpp"
#include "backend/engine/host/point_to_point.hpp"
#include "kernels/core/error.hpp"
#include "symm_mem/process/interrupt.hpp"

namespace symm {

namespace {

using std::chrono::milliseconds;

DeviceGroup& make_group(Communicator& communicator, at::Device device) {
  if (is_captured(device)) {
    throw Error(ErrorCode::kUnsupported, "the group's first operation on " + device.str() +
                                             " cannot be captured into a graph: it allocates; call "
                                             "once before capture");
  }
  return communicator.device_group({gpu_kind(), device.index()});
}

// Makes the device of `streams` current in this thread, where it is not.
class OnDevice {
 public:
  explicit OnDevice(const DeviceStreams& streams) {
    if (!streams.is_current()) guard_.emplace(streams.device());
  }

 private:
  std::optional<c10::DeviceGuard> guard_;
};

}  // namespace

DeviceLauncher::DeviceLauncher(std::shared_ptr<Communicator> communicator,
                               std::shared_ptr<HostGroup> hosts, at::Device device)
    : hosts_(std::move(hosts)),
      group_(&make_group(*communicator, device)),
      last_messages_(static_cast<std::size_t>(communicator->world_size()) * kTagChannels * 2) {
  const c10::DeviceGuard guard(device);
  streams_ = std::make_shared<DeviceStreams>(device, std::move(communicator), *group_);
  search_ = std::make_shared<RecvSearch>(
      *group_, streams_,
      [this](RecvSearch::Recv& recv, const TransferOp& op) { put_found(recv, op); });
  if (hosts_) gpu_hosts();  // tells the other ranks of this GPU
}

void DeviceLauncher::connect_all(milliseconds timeout) {
  const OnDevice guard(*streams_);
  group_->connect_all(timeout);
  if (hosts_) gpu_hosts().connect();
}

DeviceWork::Launch DeviceLauncher::launch_on(const std::optional<c10::Stream>& stream) const {
  const c10::Stream current = streams_->current();
  return {stream.value_or(current), current, streams_->capture_of(current)};
}

void DeviceLauncher::put(const DeviceWork::Launch& launch, const CallBatch& calls,
                         milliseconds timeout) {
  const std::lock_guard lock(collectives_mutex_);
  streams_->order(launch.issuing, launch.stream, launch.capture);
  streams_->begin_collective(launch.stream, launch.capture, launch.issuing);
  const DeviceLaunch to{launch.stream.native_handle(), timeout, launch.capture != 0};
  for (const CollectiveCall& call : calls) {
    if (call.copies_before.empty() && call.copies_after.empty() && !call.audit && !hosts_)
        [[likely]] {
      group_->launch(call.args, to, call.request);
    } else {
      put_one(launch, call, to);
    }
  }
  streams_->end_collective(launch.stream, launch.capture);
}

void DeviceLauncher::put_one(const DeviceWork::Launch& launch, const CollectiveCall& call,
                             const DeviceLaunch& to) {
  const c10::StreamGuard guard(launch.stream);
  const auto carry_out = [&] {
    if (hosts_) {
      gpu_hosts().run(call.args, to);
    } else {
      group_->launch(call.args, to, call.request);
    }
  };
  copy_tensors(call.copies_before);
  if (call.audit) {
    call.audit->around(call, group_->trace().next_sequence(), carry_out);
  } else {
    carry_out();
  }
  copy_tensors(call.copies_after);
}

void DeviceLauncher::collectives(const CallBatch& calls, milliseconds timeout) {
  const OnDevice guard(*streams_);
  put(launch_on(std::nullopt), calls, timeout);
}

void DeviceLauncher::collectives(DeviceWork& work, const CallBatch& calls, milliseconds timeout,
                                 bool async_op) {
  const OnDevice guard(*streams_);
  const DeviceWork::Launch launch =
      launch_on(async_op ? std::optional(streams_->collectives()) : std::nullopt);
  put(launch, calls, timeout);
  if (async_op) {
    for (const CollectiveCall& call : calls) {
      for (const at::Tensor& tensor : call.inputs) work.keep(tensor);
    }
  }
  work.launched(launch);
}

std::size_t DeviceLauncher::p2p_stream_of(const TransferOp& op) {
  const auto channel = static_cast<std::size_t>(tag_channel_of(op.tag));
  return (static_cast<std::size_t>(op.peer) * kTagChannels + channel) * 2 + (op.is_send ? 1 : 0);
}

std::shared_ptr<StreamPoint> DeviceLauncher::put(const DeviceWork::Launch& launch,
                                                 std::span<const TransferOp> ops,
                                                 milliseconds timeout) {
  const std::lock_guard lock(messages_mutex_);
  streams_->order(launch.issuing, launch.stream, launch.capture);
  for (const TransferOp& op : ops) {
    streams_->extend(last_messages_[p2p_stream_of(op)], launch.stream, launch.capture,
                     launch.issuing);
  }
  group_->transfer(ops, {launch.stream.native_handle(), timeout, launch.capture != 0});
  if (launch.stream != streams_->batches()) return nullptr;
  std::shared_ptr<StreamPoint> point = streams_->point_behind(launch.stream);
  for (const TransferOp& op : ops) {
    LastOperation& last = last_messages_[p2p_stream_of(op)].last(launch.capture);
    last.point = point;
    last.state = LastOperation::State::kHasPoint;
  }
  return point;
}

void DeviceLauncher::check_no_search(const TransferOp& op, const char* where) const {
  if (op.is_send || !search_->has_in_channel_of(op.tag)) return;
  throw Error(ErrorCode::kUnsupported, "recv with tag ", op.tag, ": ", where,
              " while a recv from any rank, with a tag that is equal modulo ", kTagChannels,
              ", waits for its sender; wait for that one before");
}

bool DeviceLauncher::message(const c10::intrusive_ptr<DeviceWork>& work, const TransferOp& op,
                             milliseconds timeout) {
  const OnDevice guard(*streams_);
  const bool from_any = op.peer == kAnySource;
  if (from_any || (!op.is_send && search_->has_in_channel_of(op.tag))) {
    const c10::Stream issuing = streams_->current();
    if (streams_->capture_of(issuing) != 0) {
      if (!from_any) check_no_search(op, "captured into a graph");
      throw Error(
          ErrorCode::kUnsupported,
          "a recv from any rank cannot be captured into a graph, since the host decides who "
          "sends; name the rank that sends");
    }
    c10::Event issued = streams_->take_event();
    issued.record(issuing);
    search_->add(
        {{op, std::chrono::steady_clock::now(), timeout}, work, issuing, std::move(issued)});
    return false;
  }
  const DeviceWork::Launch launch = launch_on(streams_->p2p(p2p_stream_of(op)));
  put(launch, std::span(&op, 1), timeout);
  work->launched(launch);
  return true;
}

void DeviceLauncher::await_searches() {
  constexpr milliseconds kPeriod{1};
  for (search_->look(); has_searches(); search_->look()) {
    check_interrupts();
    std::this_thread::sleep_for(kPeriod);
  }
}

// What has come on the issuing stream since the call is not waited for: it may wait for this recv.
void DeviceLauncher::put_found(RecvSearch::Recv& recv, const TransferOp& op) {
  const OnDevice guard(*streams_);
  const RelaxedCapture relaxed(streams_->runtime());
  const std::size_t number = p2p_stream_of(op);
  const c10::Stream stream = streams_->p2p(number);
  {
    const std::lock_guard lock(messages_mutex_);
    recv.issued.block(stream);
    streams_->extend(last_messages_[number], stream, 0, stream);
    group_->transfer({&op, 1}, {stream.native_handle(), recv.awaited.timeout, false});
  }
  recv.work->came_from(op.peer);
  if (recv.work->ticket() && !captured()) recv.work->ticket().on_device(last_message(op));
  recv.work->launched({stream, recv.issuing, 0});
}

GpuLink::Side DeviceLauncher::side_of(const TransferOp& op) {
  return {op.peer, static_cast<int>(tag_channel_of(op.tag)), op.is_send};
}

// The streams of messages inside the host come first.
c10::Stream DeviceLauncher::put_between_hosts(const c10::Stream& issuing, const TransferOp& op) {
  const std::lock_guard lock(messages_mutex_);
  const std::size_t number = last_messages_.size() + p2p_stream_of(op);
  const c10::Stream stream = streams_->p2p(number);
  const std::uint64_t capture = streams_->capture_of(issuing);
  streams_->order(issuing, stream, capture);
  streams_->extend(between_hosts_[number], stream, capture, issuing);
  const c10::StreamGuard guard(stream);
  gpu_hosts().message(side_of(op), {static_cast<std::byte*>(op.data), op.bytes});
  return stream;
}

void DeviceLauncher::message_between_hosts(DeviceWork& work, const TransferOp& op) {
  const OnDevice guard(*streams_);
  DeviceWork::Launch launch = launch_on(std::nullopt);
  gpu_hosts().connect_sides({side_of(op)}, launch.capture != 0);
  launch.stream = put_between_hosts(launch.issuing, op);
  work.launched(launch);
}

void DeviceLauncher::collectives(Block& block, const CallBatch& calls, milliseconds timeout,
                                 bool async_op) {
  const OnDevice guard(*streams_);
  if (!block.stream) block.stream = async_op ? streams_->collectives() : streams_->current();
  put(launch_on(block.stream), calls, timeout);
  for (const CollectiveCall& call : calls) {
    for (const at::Tensor& tensor : call.inputs) block.work->keep(tensor);
    for (const at::Tensor& tensor : call.outputs) block.work->add_output(tensor);
  }
}

void DeviceLauncher::end(Block& block, milliseconds timeout) {
  const OnDevice guard(*streams_);
  DeviceWork::Launch launch = launch_on(streams_->batches());
  for (const TransferOp& op : block.messages) check_no_search(op, "in a batch");
  std::shared_ptr<StreamPoint> point;
  if (!block.messages.empty()) {
    point = put(launch, {block.messages.data(), block.messages.size()}, timeout);
  }
  if (!block.between_hosts.empty()) {
    std::vector<GpuLink::Side> sides;
    for (const TransferOp& op : block.between_hosts) sides.push_back(side_of(op));
    gpu_hosts().connect_sides(std::move(sides), launch.capture != 0);
  }
  for (const TransferOp& op : block.between_hosts) {
    const c10::Stream stream = put_between_hosts(launch.issuing, op);
    streams_->order(stream, launch.stream, launch.capture);
  }
  const bool has_messages = !block.messages.empty() || !block.between_hosts.empty();
  if (block.stream && has_messages) {
    DeviceStreams::begin_wait_for_messages(*block.stream, launch.capture);
    streams_->order(launch.stream, *block.stream, launch.capture);
  }
  if (block.stream) launch.stream = *block.stream;
  if (block.stream || !block.between_hosts.empty()) point = nullptr;  // more came behind it
  block.work->launched(launch, std::move(point));
}

std::vector<c10::Event> DeviceLauncher::events(bool with_current) {
  const OnDevice guard(*streams_);
  const std::lock_guard lock(collectives_mutex_);
  return streams_->mark(with_current);
}

std::shared_ptr<DevicePoint> DeviceLauncher::mark() {
  return std::make_shared<DevicePoint>(streams_, events(true));
}

void DeviceLauncher::finish(milliseconds limit) noexcept {
  if (streams_->in_forked_child() || streams_->closed()) return;
  try {
    DevicePoint(streams_, events(false)).wait(limit);
  } catch (const std::exception&) {
    // A failure has been or will be raised where it can be: by calls and Works.
  }
}

std::optional<Error> DeviceLauncher::what_is_unfinished() noexcept {
  try {
    if (std::optional<Error> failure = streams_->failure()) return failure;
    const DevicePoint point(streams_, events(false));
    bool passed = true;
    try {
      passed = point.passed();
    } catch (const std::exception&) {
      // The device is gone or in error: nothing of ours runs there any more.
    }
    if (passed) {
      streams_->check();
      return std::nullopt;
    }
  } catch (const Error& failure) {
    return failure;
  } catch (const std::exception&) {
    // No event can be recorded on a device that is gone.
  }
  return Error(ErrorCode::kAborted,
               "the process group was destroyed before the operation was complete");
}

}  // namespace symm
