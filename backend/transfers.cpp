// send and recv.
#include <string>
#include <utility>

#include "backend/ProcessGroupSymm.hpp"
#include "backend/engine/point_to_point.hpp"
#include "symm_mem/c10d/errors.hpp"

namespace symm {

using c10d::OpType;
using WorkPtr = ProcessGroupSymm::WorkPtr;

WorkPtr ProcessGroupSymm::transfer(Direction direction, OpType type, Tensors& tensors, int peer,
                                   int tag) {
  engine_->check_usable();
  const TensorChecks checks(direction == Direction::kSend ? "send" : "recv", rank_, size_);
  const at::Tensor& given = checks.only(tensors, "tensors");
  at::Tensor tensor = given;
  if (direction == Direction::kSend) {
    checks.readable(given, {"tensor"});
    if (!given.is_contiguous() || given.is_conj() || given.is_neg()) {
      tensor = given.resolve_conj().resolve_neg().contiguous();
    }
  } else {
    checks.writable(given, {"tensor"});
  }
  checks.group_device(tensor, {"tensor"}, gpu());
  checks.movable_dtype(tensor, {"tensor"});
  if (tensor.is_cuda()) return transfer_on_device(direction, type, tensor, peer, tag);
  check_block(at::kCPU);
  if (peer != kAnySource) {
    checks.rank_in_range(peer, direction == Direction::kSend ? "dst" : "src");
  }
  auto work =
      c10::make_intrusive<TransferWork>(rank_, type, sequence_.load(std::memory_order_relaxed),
                                        tensor, engine_->shared_communicator());
  PointToPoint& engine = engine_->communicator().point_to_point();
  const std::size_t bytes = tensor.nbytes();
  const Milliseconds limit = engine_->timeout(Milliseconds(0));
  // The engine keeps the Work, and so the tensor, until the transfer is done.
  auto on_done = [work] { work->transfer_done(); };
  std::shared_ptr<Transfer> started =
      direction == Direction::kSend
          ? engine.start_send(tensor.const_data_ptr(), bytes, peer, tag, limit, std::move(on_done))
          : engine.start_recv(tensor.mutable_data_ptr(), bytes, peer, tag, limit,
                              std::move(on_done));
  const bool done = started->done();
  work->start(std::move(started));
  // Nobody may ever wait for this Work, and the peer needs our progress all the same.
  if (!done) engine.progress_in_background();
  if (coalescing()) add_coalesced(work);
  return work;
}

WorkPtr ProcessGroupSymm::send(Tensors& tensors, int destination, int tag) {
  return with_torch_errors([&] {
    TensorChecks("send", rank_, size_).rank_in_range(destination, "dst");
    return transfer(Direction::kSend, OpType::SEND, tensors, destination, tag);
  });
}

WorkPtr ProcessGroupSymm::recv(Tensors& tensors, int source, int tag) {
  return with_torch_errors([&] {
    TensorChecks("recv", rank_, size_).rank_in_range(source, "src");
    return transfer(Direction::kRecv, OpType::RECV, tensors, source, tag);
  });
}

WorkPtr ProcessGroupSymm::recvAnysource(Tensors& tensors, int tag) {
  return with_torch_errors(
      [&] { return transfer(Direction::kRecv, OpType::RECVANYSOURCE, tensors, kAnySource, tag); });
}

}  // namespace symm
