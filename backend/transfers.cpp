// send and recv.
#include <string>
#include <utility>

#include "backend/engine/host/mailbox_engine.hpp"
#include "backend/process_group_impl.hpp"

namespace symm {

using c10d::OpType;
using WorkPtr = ProcessGroupSymm::WorkPtr;

WorkPtr ProcessGroupSymm::Impl::transfer(OpType type, Tensors& tensors, int peer, int tag) {
  const bool is_send = type == OpType::SEND;
  const char* const peer_name = is_send ? "dst" : "src";
  const TensorChecks checks(is_send ? "send" : "recv", rank_, size_, global_rank());
  if (type != OpType::RECVANYSOURCE) checks.rank_in_range(peer, peer_name);
  engine_->check_usable();
  const at::Tensor& given = checks.only(tensors, "tensors");
  if (is_send) {
    checks.readable(given, {"tensor"});
  } else {
    checks.writable(given, {"tensor"});
  }
  const at::Tensor tensor = is_send ? plain(given) : given;
  checks.group_device(tensor, {"tensor"}, gpu());
  const Dtype dtype = checks.movable_dtype(tensor, {"tensor"});
  if (is_send) nan_check_.check(checks, tensor, {"tensor"});
  if (peer == rank_ && !coalescing()) {
    checks.fail(ErrorCode::kInvalidArgument, {peer_name},
                "expected another rank of the group, got this one: a message to oneself needs its "
                "send and its recv in one batch (batch_isend_irecv), alone it could never end");
  }
  const TransferOp op{
      .data = is_send ? const_cast<void*>(tensor.const_data_ptr()) : tensor.mutable_data_ptr(),
      .bytes = tensor.nbytes(),
      .tag = tag,
      .peer = peer,
      .is_send = is_send,
      .dtype = dtype};
  const Operation operation = Operation{type, is_send ? "symm:send" : "symm:recv"}.watched();
  if (operation.title != nullptr) [[unlikely]] {
    const ProfiledCall call = ProfiledCall::message(tensor, is_send, peer, sequence_.load());
    return profiled_->record(call, [&] { return put_message(operation, tensor, op); });
  }
  return put_message(operation, tensor, op);
}

WorkPtr ProcessGroupSymm::Impl::put_message(const Operation& operation, const at::Tensor& tensor,
                                            const TransferOp& op) {
  if (hosts_) [[unlikely]] {
    if (operation.type == OpType::RECVANYSOURCE) check_one_host("recv from any rank");
    if (tensor.is_cuda()) return transfer_on_device(operation, tensor, op);
    return transfer_between_hosts(operation, tensor, op);
  }
  if (tensor.is_cuda()) return transfer_on_device(operation, tensor, op);
  check_block(at::kCPU);
  return transfer_on_host(operation, tensor, op, op.peer);
}

WorkPtr ProcessGroupSymm::Impl::transfer_between_hosts(const Operation& operation,
                                                       const at::Tensor& tensor,
                                                       const TransferOp& op) {
  if (hosts_->is_here(op.peer)) {
    TransferOp inside = op;
    inside.peer = hosts_->local_of(op.peer);
    return transfer_on_host(operation, tensor, inside, op.peer);
  }
  WorkPtr work = hosts_->transfer(tensor, op.peer, op.tag, op.is_send);
  if (coalescing()) add_coalesced(work);
  return work;
}

WorkPtr ProcessGroupSymm::Impl::transfer_on_host(const Operation& operation,
                                                 const at::Tensor& tensor, const TransferOp& op,
                                                 int peer) {
  auto work = c10::make_intrusive<TransferWork>(
      rank_, operation.type, operation.title, sequence_.load(std::memory_order_relaxed), tensor,
      engine_->shared_communicator(), engine_->transfer_callbacks());
  if (peer != op.peer) work->name_peer(peer);
  TransferOp named = op;
  named.peer = peer;
  work->record_as(flight_->message(tensor, named, sequence_.load(std::memory_order_relaxed),
                                   engine_->timeout(), coalescing(), !coalescing()));
  // The engine keeps the Work, and so the tensor, until the transfer is done.
  Message message{op, [work] { work->transfer_done(); }};
  if (coalescing()) {
    host_messages_.push_back({std::move(message), work});
    add_coalesced(work);
    return work;
  }
  MailboxEngine& engine = engine_->communicator().point_to_point();
  // Nobody may ever wait for this Work, and the peer needs our progress all the same.
  engine.progress_in_background();
  std::shared_ptr<Transfer> transfer = engine.start(std::move(message), engine_->timeout());
  work->pend_in(pending_);
  work->start(std::move(transfer));
  return work;
}

void ProcessGroupSymm::Impl::start_messages(std::vector<HostMessage> block) {
  std::vector<Message> messages;
  messages.reserve(block.size());
  for (HostMessage& one : block) messages.push_back(std::move(one.message));
  std::vector<std::shared_ptr<Transfer>> started;
  try {
    engine_->check_usable();
    MailboxEngine& engine = engine_->communicator().point_to_point();
    engine.progress_in_background();
    started = engine.start_batch(std::move(messages), engine_->timeout());
  } catch (const Error& error) {
    for (const HostMessage& one : block) one.work->cancel(error);
    throw;
  }
  for (std::size_t i = 0; i < block.size(); ++i) {
    block[i].work->pend_in(pending_);
    block[i].work->ticket().started();
    block[i].work->start(std::move(started[i]));
  }
}

WorkPtr ProcessGroupSymm::send(Tensors& tensors, int destination, int tag) {
  return with_torch_errors(
      [&] { return impl_->transfer(OpType::SEND, tensors, destination, tag); });
}

WorkPtr ProcessGroupSymm::recv(Tensors& tensors, int source, int tag) {
  return with_torch_errors([&] { return impl_->transfer(OpType::RECV, tensors, source, tag); });
}

WorkPtr ProcessGroupSymm::recvAnysource(Tensors& tensors, int tag) {
  return with_torch_errors(
      [&] { return impl_->transfer(OpType::RECVANYSOURCE, tensors, kAnySource, tag); });
}

}  // namespace symm
