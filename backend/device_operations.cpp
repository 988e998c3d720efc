// The half of the process group that works on a GPU: how calls get there.
#include <ATen/Context.h>
#include <c10/util/Logging.h>

#include <string>
#include <utility>

#include "backend/process_group_impl.hpp"

namespace symm {

using c10d::OpType;
using WorkPtr = ProcessGroupSymm::WorkPtr;

DeviceLauncher& ProcessGroupSymm::Impl::device_launcher(at::Device device) {
  if (DeviceLauncher* made = device_.load(std::memory_order_acquire)) return *made;
  const std::lock_guard lock(device_mutex_);
  if (!device_launcher_) {
    device_launcher_ =
        std::make_unique<DeviceLauncher>(engine_->shared_communicator(), hosts_, device);
    device_.store(device_launcher_.get(), std::memory_order_release);
    LOG(INFO) << text_of("symm: group \"", options_->group_name,
                         "\": ", engine_->communicator().local_group()->rank_name(rank_), " uses ",
                         device.str());
  }
  return *device_launcher_;
}

WorkPtr ProcessGroupSymm::Impl::issue_on_device(const Operation& operation, const CallBatch& calls,
                                                Milliseconds timeout, bool async_op) {
  for (const CollectiveCall& call : calls) {
    if (call.device != calls.front().device) {
      throw Error(ErrorCode::kInvalidArgument,
                  "tensors: expected all of them on one device, got some on " +
                      calls.front().device.str() + " and some on " + call.device.str());
    }
    // Either all of a batch is launched or nothing.
    if (calls.size() > 1) validate(call.args);
  }
  DeviceLauncher& device = device_launcher(calls.front().device);
  check_block(device.device());
  const std::uint64_t sequence = sequence_.fetch_add(1, std::memory_order_relaxed) + 1;
  const FlightTicket ticket = flight_->collective(operation.type, calls, sequence, timeout, false);
  try {
    if (coalescing()) {
      DeviceLauncher::Block& block = device_block(sequence);
      device.collectives(block, calls, timeout, async_op);
      note_on_device(ticket, device.last_collective());
      return async_op ? block.work : nullptr;
    }
    if (!async_op && !gives_work(operation)) {
      device.collectives(calls, timeout);
      note_on_device(ticket, device.last_collective());
      return nullptr;
    }
    auto work = device_work(operation, outputs_of(calls), sequence,
                            profiled_inputs(operation.title, calls));
    work->record_as(ticket);
    device.collectives(*work, calls, timeout, async_op);
    note_on_device(ticket, device.last_collective());
    follow(*work);
    return work;
  } catch (const Error& error) {
    // A refused call was never made, so it has no number.
    if (is_refusal(error)) {
      sequence_.fetch_sub(1, std::memory_order_relaxed);
      ticket.discard();
    }
    ticket.ended(false);  // unless it was discarded
    throw;
  }
}

void ProcessGroupSymm::Impl::note_on_device(const FlightTicket& ticket,
                                            const DeviceProgress& progress) {
  if (!ticket) return;
  if (device_launcher_->captured() && is_captured(device_launcher_->device())) {
    ticket.discard();
  } else {
    ticket.on_device(progress);
  }
}

void ProcessGroupSymm::Impl::follow(DeviceWork& work) {
  if (!pending_->has_hook()) return;
  if (device_launcher_->captured() && is_captured(device_launcher_->device())) return;
  work.pend_in(pending_);
  work.watch_end();
}

c10::intrusive_ptr<DeviceWork> ProcessGroupSymm::Impl::device_work(const Operation& operation,
                                                                   TensorVector outputs,
                                                                   std::uint64_t sequence,
                                                                   const ProfiledTensors& inputs) {
  return c10::make_intrusive<DeviceWork>(rank_, operation.type, operation.title, sequence,
                                         std::move(outputs), device_launcher_->streams(), inputs);
}

DeviceLauncher::Block& ProcessGroupSymm::Impl::device_block(std::uint64_t sequence) {
  if (device_block_) return *device_block_;
  device_block_.emplace();
  device_block_->work =
      device_work(Operation{OpType::COALESCED, "symm:coalesced"}.watched(), {}, sequence);
  return *device_block_;
}

void ProcessGroupSymm::Impl::end_device_block(DeviceLauncher::Block& block) {
  const std::vector<DeviceMessage> messages = std::exchange(device_messages_, {});
  const Milliseconds timeout = engine_->timeout();
  if (!messages.empty()) block.work->record_as(flight_->end_of_block(sequence_.load(), timeout));
  device_launcher_->end(block, timeout);
  follow(*block.work);
  for (const DeviceMessage& message : messages) {
    note_on_device(message.ticket, device_launcher_->last_message(message.op));
  }
  if (messages.empty()) return;
  note_on_device(block.work->ticket(), device_launcher_->last_message(messages.back().op));
}

WorkPtr ProcessGroupSymm::Impl::transfer_on_device(const Operation& operation,
                                                   const at::Tensor& tensor, const TransferOp& op) {
  const bool from_any = op.peer == kAnySource;
  const TensorChecks checks("recv", rank_, size_, global_rank());
  if (from_any && size_ == 1) {
    checks.fail(ErrorCode::kInvalidArgument, {"src"},
                "expected another rank of the group, which has none");
  }
  if (from_any && coalescing()) {
    checks.fail(ErrorCode::kUnsupported, {"src"},
                "a recv from any rank to " + tensor.device().str() +
                    " cannot be in a batch, whose messages are one launch: expected the rank that "
                    "sends, or a call outside of a coalescing block");
  }
  DeviceLauncher& device = device_launcher(tensor.device());
  check_block(device.device());
  const bool leaves_host = hosts_ && !hosts_->is_here(op.peer);
  if (leaves_host && device.gpu_hosts().stages(op.peer, is_captured(device.device()))) {
    return staged_transfer(tensor, op);
  }
  const std::uint64_t sequence = sequence_.load(std::memory_order_relaxed);
  DeviceLauncher::Block* const block = coalescing() ? &device_block(sequence) : nullptr;
  const c10::intrusive_ptr<DeviceWork> work =
      block ? block->work
            : device_work(operation, {}, sequence, profiled_tensor(operation.title, tensor));
  if (op.is_send) {
    work->keep(tensor);
  } else {
    work->add_output(tensor);
  }
  if (leaves_host) {
    // The engine counts its messages nowhere that a record could look.
    if (block) {
      block->between_hosts.push_back(op);
      return work;
    }
    if (!op.is_send) work->came_from(op.peer);
    device.message_between_hosts(*work, op);
    follow(*work);
    return work;
  }
  const FlightTicket ticket =
      flight_->message(tensor, op, sequence, engine_->timeout(), block != nullptr, false);
  TransferOp inside = op;
  if (hosts_) inside.peer = hosts_->local_of(op.peer);
  if (block) {
    block->messages.push_back(inside);
    if (ticket) device_messages_.push_back({inside, ticket});
    return work;
  }
  if (!op.is_send && !from_any) work->came_from(op.peer);
  work->record_as(ticket);
  if (device.message(work, inside, engine_->timeout())) {
    note_on_device(ticket, device.last_message(inside));
  }
  follow(*work);
  return work;
}

WorkPtr ProcessGroupSymm::Impl::staged_transfer(const at::Tensor& tensor, const TransferOp& op) {
  const DeviceLauncher& device = *device_launcher_;
  if (is_captured(device.device())) {
    throw Error(ErrorCode::kUnsupported, op.is_send ? "send" : "recv", " between hosts with ",
                hosts_->engine_name(), " waits for the device and cannot be captured into a graph");
  }
  WorkPtr work = hosts_->staged_transfer(tensor, op.peer, static_cast<int>(op.tag), op.is_send,
                                         device.streams());
  if (coalescing()) staged_.push_back(work);
  return work;
}

CallBatch ProcessGroupSymm::Impl::barrier_call(const c10d::BarrierOptions& opts) {
  CallBatch calls;
  calls.resize(1);
  CollectiveCall& call = calls.front();
  builder(call, CollectiveKind::kBarrier).finish();
  DeviceLauncher* device = device_.load(std::memory_order_acquire);
  if (!device && !opts.device_ids.empty() && at::getNumGPUs() > 0) {
    // A group that has done nothing else on the GPU yet: all ranks name theirs, so this is where
    // they connect, and a barrier that is captured later is warm.
    engine_->check_usable();
    const auto index = static_cast<c10::DeviceIndex>(opts.device_ids.front());
    device = &device_launcher(at::Device(at::kCUDA, index));
    device->connect_all(engine_->timeout(opts.timeout));
  }
  if (!device) return calls;
  engine_->check_usable();
  if (is_captured(device->device())) {
    call.device = device->device();
  } else {
    call.after = device->mark();
  }
  return calls;
}

void ProcessGroupSymm::eagerConnectSingleDevice(at::Device device) {
  if (!device.is_cuda()) return;
  with_torch_errors([&] {
    impl_->engine_->check_usable();
    impl_->device_launcher(device).connect_all(impl_->engine_->timeout());
  });
}

}  // namespace symm
