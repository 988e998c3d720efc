// What torch_symm.ccl asks of a process group: a collective whose output and input are two
// arguments, with a plan of its own and with memory to stage tensors in.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <cstdint>
#include <optional>
#include <vector>

#include "backend/collective_call.hpp"
#include "kernels/core/collective.hpp"
#include "kernels/plan/placement.hpp"
#include "kernels/plan/plan_request.hpp"

namespace symm {

struct ConfiguredCall {
  // all_reduce, reduce, broadcast, all_gather, reduce_scatter or all_to_all.
  CollectiveKind kind = CollectiveKind::kAllReduce;
  // Both of one device and dtype. The input of broadcast counts at the root alone, the output of
  // reduce likewise; elsewhere they are not looked at. Output and input may be one tensor.
  std::optional<at::Tensor> output;
  std::optional<at::Tensor> input;
  c10d::ReduceOp op;
  std::int64_t root = 0;                    // group rank
  std::vector<std::int64_t> output_splits;  // of all_to_all; empty: equal shares
  std::vector<std::int64_t> input_splits;
  PlanRequest request;
  // Bytes in segments of the group, on the tensors' device, at the same place on every rank. An
  // input that peers read goes through the first, the output through the second; null where the
  // call is to do without.
  std::optional<at::Tensor> input_stage;
  std::optional<at::Tensor> output_stage;
};

// The checked call, without its plan and stages. Throws as CallBuilder does.
CollectiveCall build_configured_call(CallBuilder builder, const ConfiguredCall& given);

// Lets the call read its one input from `stage`, to which it is copied before the call begins.
// Throws Error(kInvalidArgument) where it does not fit.
void stage_input(CollectiveCall& call, const at::Tensor& stage);

// Lets the call write its one output to `stage`, from which it is copied when the call has ended.
void stage_output(CollectiveCall& call, const at::Tensor& stage);

// Whether peers of this rank would read the input of `call` by `algorithm`, if that were in a
// segment and nothing were written there.
bool peers_read_input(const CollectiveCall& call, int rank, Algorithm algorithm);

}  // namespace symm
