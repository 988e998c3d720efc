#include "backend/group_flight.hpp"

#include <c10/util/Logging.h>

#include "symm_mem/group/local_group.hpp"

namespace symm {

namespace {

// The names that the analyser knows. Those of single tensors, and the barrier, have newer ones,
// which torch 2.11's does not know.
const char* flight_name(c10d::OpType type, bool several) {
  switch (type) {
    case c10d::OpType::ALLREDUCE:
    case c10d::OpType::_ALLREDUCE_SPARSE:
      return "all_reduce";
    case c10d::OpType::ALLREDUCE_COALESCED:
      return "allreduce_coalesced";
    case c10d::OpType::REDUCE:
      return "reduce";
    case c10d::OpType::BROADCAST:
      return "broadcast";
    case c10d::OpType::ALLGATHER:
      return "all_gather";
    case c10d::OpType::_ALLGATHER_BASE:
      return "_all_gather_base";
    case c10d::OpType::ALLGATHER_COALESCED:
      return "all_gather_into_tensor_coalesced";
    case c10d::OpType::GATHER:
      return "gather";
    case c10d::OpType::SCATTER:
      return "scatter";
    case c10d::OpType::REDUCE_SCATTER:
      return "reduce_scatter";
    case c10d::OpType::_REDUCE_SCATTER_BASE:
      return several ? "reduce_scatter_tensor_coalesced" : "_reduce_scatter_base";
    case c10d::OpType::ALLTOALL:
    case c10d::OpType::ALLTOALL_BASE:
      return "all_to_all";
    default:
      return "all_reduce_barrier";
  }
}

using TensorList = at::ArrayRef<at::Tensor>;

void add_tensor(FlightTensors& entry, const at::Tensor& tensor, std::int64_t leading = 0) {
  entry.add(tensor.sizes(), c10::toString(tensor.scalar_type()), leading);
}

// The tensors of one side of a call. A list with a tensor a rank is given as the one tensor that it
// amounts to, as the analyser multiplies sizes by the world size.
void add_side(FlightTensors& entry, TensorList tensors) {
  if (tensors.size() <= 1) {
    for (const at::Tensor& tensor : tensors) add_tensor(entry, tensor);
    return;
  }
  std::int64_t total = 0;
  bool alike = true;
  for (const at::Tensor& tensor : tensors) {
    total += tensor.numel();
    alike = alike && tensor.sizes() == tensors[0].sizes();
  }
  if (alike) {
    add_tensor(entry, tensors[0], static_cast<std::int64_t>(tensors.size()));
  } else {
    entry.add({&total, 1}, c10::toString(tensors[0].scalar_type()));
  }
}

}  // namespace

GroupFlight::GroupFlight(const c10d::Backend& group, const std::string& name, int rank,
                         const std::vector<std::int64_t>& global_ranks)
    : record_(FlightRecord::of_process()),
      in_record_(record_ == nullptr ? nullptr : &record_->add_group(name, rank, global_ranks)),
      group_(group) {}

GroupFlight::~GroupFlight() {
  if (record_ != nullptr) record_->end_group(*in_record_);
}

void GroupFlight::write_when_failed(LocalGroup& group) const {
  if (record_ == nullptr) return;
  group.on_failure([record = record_, rank = in_record_->global_rank()] {
    try {
      const std::string problem = record->write_file(rank);
      if (!problem.empty()) LOG(WARNING) << "symm: " << problem;
    } catch (const std::exception& error) {
      LOG(WARNING) << "symm: the flight record was not written: " << error.what();
    }
  });
}

// PyTorch describes a group after it has made it, and before it is used.
FlightGroup& GroupFlight::described() {
  if (!described_.load(std::memory_order_relaxed)) [[unlikely]] {
    in_record_->describe(group_.getGroupDesc());
    described_.store(true, std::memory_order_relaxed);
  }
  return *in_record_;
}

FlightTicket GroupFlight::collective(c10d::OpType type, const CallBatch& calls,
                                     std::uint64_t sequence, std::chrono::milliseconds timeout,
                                     bool starts) {
  if (record_ == nullptr || calls.empty()) return {};
  const FlightCall call{
      .name = flight_name(type, calls.size() > 1),
      .collective = sequence,
      .message = messages_.load(std::memory_order_relaxed),
      .operation = operations_.fetch_add(1, std::memory_order_relaxed) + 1,
      .starts = starts,
      .timeout = timeout,
  };
  return record_->add(described(), call, [&](FlightTensors& entry) {
    for (const CollectiveCall& one : calls) add_side(entry, sides_of(one).inputs);
    entry.outputs_follow();
    for (const CollectiveCall& one : calls) add_side(entry, sides_of(one).outputs);
  });
}

FlightTicket GroupFlight::message(const at::Tensor& tensor, const TransferOp& op,
                                  std::uint64_t sequence, std::chrono::milliseconds timeout,
                                  bool in_block, bool starts) {
  if (record_ == nullptr) return {};
  if (!in_block) begin_block();
  const FlightCall call{
      .name = op.is_send ? "send" : "recv",
      .collective = sequence,
      .message = messages_.load(std::memory_order_relaxed),
      .operation = operations_.fetch_add(1, std::memory_order_relaxed) + 1,
      .peer = op.peer,
      .is_send = op.is_send,
      .is_message = true,
      .starts = starts,
      .timeout = timeout,
  };
  return record_->add(described(), call, [&](FlightTensors& entry) {
    add_tensor(entry, tensor);
    entry.outputs_follow();
    add_tensor(entry, tensor);
  });
}

FlightTicket GroupFlight::end_of_block(std::uint64_t sequence, std::chrono::milliseconds timeout) {
  if (record_ == nullptr) return {};
  const FlightCall call{
      .name = "coalesced",
      .collective = sequence,
      .message = messages_.load(std::memory_order_relaxed),
      .operation = operations_.fetch_add(1, std::memory_order_relaxed) + 1,
      .is_message = true,
      .timeout = timeout,
  };
  return record_->add(described(), call, [](FlightTensors&) {});
}

void GroupFlight::forget_counters() {
  if (record_ != nullptr) record_->forget_counters(*in_record_);
}

}  // namespace symm
