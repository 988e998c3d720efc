#include "backend/profiled_call.hpp"

#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>

#include <algorithm>
#include <tuple>
#include <utility>

namespace symm {

namespace {

using c10d::OpType;
using TensorList = at::ArrayRef<at::Tensor>;
using Splits = std::vector<std::int64_t>;

// The names of ProcessGroupNCCL.
const char* comms_name(OpType type, bool several, bool has_splits) {
  switch (type) {
    case OpType::ALLREDUCE:
      return "allreduce";
    case OpType::ALLREDUCE_COALESCED:
      return "allreduce_coalesced";
    case OpType::_ALLREDUCE_SPARSE:
      return "allreduce_sparse";
    case OpType::REDUCE:
      return "reduce";
    case OpType::BROADCAST:
      return "broadcast";
    case OpType::ALLGATHER:
      return "all_gather";
    case OpType::_ALLGATHER_BASE:
      return "_allgather_base";
    case OpType::ALLGATHER_COALESCED:
      return "allgather_into_tensor_coalesced";
    case OpType::GATHER:
      return "gather";
    case OpType::SCATTER:
      return "scatter";
    case OpType::REDUCE_SCATTER:
      return "reduce_scatter";
    case OpType::_REDUCE_SCATTER_BASE:
      return several ? "reduce_scatter_tensor_coalesced" : "_reduce_scatter_base";
    case OpType::ALLTOALL:
      return "all_to_allv";
    case OpType::ALLTOALL_BASE:
      return has_splits ? "all_to_allv" : "all_to_all";
    default:
      return "barrier";
  }
}

// The rows of each part of the one tensor that they are in; none where all are alike.
Splits unequal_rows(const std::vector<Part>& parts, TensorList tensors) {
  if (parts.empty() || tensors.size() != 1 || tensors[0].numel() == 0) return {};
  const auto differs = [&](const Part& part) { return part.count != parts.front().count; };
  if (std::none_of(parts.begin(), parts.end(), differs)) return {};
  const std::int64_t row = tensors[0].numel() / tensors[0].size(0);
  Splits rows;
  for (const Part& part : parts) rows.push_back(static_cast<std::int64_t>(part.count) / row);
  return rows;
}

std::int64_t elements_of(const std::vector<at::Tensor>& tensors) {
  std::int64_t count = 0;
  for (const at::Tensor& tensor : tensors) count += tensor.numel();
  return count;
}

}  // namespace

ProfiledTensors profiled_inputs(const char* title, const CallBatch& calls) {
  if (title == nullptr) return std::nullopt;
  std::vector<at::Tensor> inputs;
  for (const CollectiveCall& call : calls) {
    const TensorList of_call = sides_of(call).inputs;
    inputs.insert(inputs.end(), of_call.begin(), of_call.end());
  }
  return inputs;
}

ProfiledCall ProfiledCall::collective(OpType type, const CallBatch& calls, int rank,
                                      std::uint64_t sequence, bool async_op) {
  ProfiledCall made;
  made.sequence = static_cast<std::int64_t>(sequence);
  made.rank = rank;
  made.async_op = async_op;
  for (const CollectiveCall& call : calls) {
    const CallSides sides = sides_of(call);
    made.inputs.insert(made.inputs.end(), sides.inputs.begin(), sides.inputs.end());
    made.outputs.insert(made.outputs.end(), sides.outputs.begin(), sides.outputs.end());
  }
  if (type == OpType::ALLTOALL_BASE && !calls.empty()) {
    made.input_splits = unequal_rows(calls.front().input_parts, made.inputs);
    made.output_splits = unequal_rows(calls.front().output_parts, made.outputs);
  }
  const bool has_splits = !made.input_splits.empty() || !made.output_splits.empty();
  made.name = comms_name(type, calls.size() > 1, has_splits);
  return made;
}

ProfiledCall ProfiledCall::message(const at::Tensor& tensor, bool is_send, int peer,
                                   std::uint64_t sequence) {
  ProfiledCall made;
  made.name = is_send ? "send" : "recv";
  made.sequence = static_cast<std::int64_t>(sequence);
  made.is_message = true;
  made.rank = peer;
  made.inputs = {tensor};
  made.outputs = {tensor};
  made.async_op = true;
  return made;
}

ProfiledGroup::ProfiledGroup(const c10d::Backend& group,
                             const std::vector<std::int64_t>& global_ranks)
    : group_(group), first_global_rank_(static_cast<int>(global_ranks.front())) {
  if (global_ranks.size() == 1) {
    stride_ = 1;
    return;
  }
  const std::int64_t step = global_ranks[1] - global_ranks[0];
  for (std::size_t i = 2; i < global_ranks.size(); ++i) {
    if (global_ranks[i] - global_ranks[i - 1] != step) return;
  }
  stride_ = static_cast<int>(std::max<std::int64_t>(step, 0));
}

// The macros are PyTorch's interface for this: they hold what its versions differ in.
c10::intrusive_ptr<c10d::Work> ProfiledGroup::record(const ProfiledCall& call,
                                                     const Body& body) const {
  const auto sequence = std::make_tuple(call.sequence, call.is_message);
  const auto name = std::make_tuple(group_.getGroupUid(), group_.getGroupDesc());
  const at::ScalarType dtype = call.inputs.empty() ? at::kByte : call.inputs.front().scalar_type();
#ifdef RECORD_PARAM_COMMS_DATA_WITH_ASYNC_OP
  RECORD_PARAM_COMMS_DATA_WITH_ASYNC_OP(
      sequence, name, call.inputs, call.outputs, call.rank, std::string(call.name),
      elements_of(call.inputs), elements_of(call.outputs), dtype, call.input_splits,
      call.output_splits, first_global_rank_, stride_, group_.getSize(), call.async_op);
#else  // torch 2.11, whose event does not say whether the operation is asynchronous
  RECORD_PARAM_COMMS_DATA(sequence, name, call.inputs, call.outputs, call.rank,
                          std::string(call.name), elements_of(call.inputs),
                          elements_of(call.outputs), dtype, call.input_splits, call.output_splits,
                          first_global_rank_, stride_, group_.getSize());
#endif
  return body();
}

}  // namespace symm
