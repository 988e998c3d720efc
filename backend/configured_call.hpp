// What torch_symm.ccl asks of a process group: a collective whose output and input are two
// arguments, with a plan of its own and with memory to stage tensors in.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/core/collective.hpp"
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

// all_reduce of `x` into `total`, to which `residual` is added, and the RMS norm of its rows into
// `normed`; on the current stream of a GPU (RowNorm in collective.hpp). All are contiguous, of one
// shape and dtype; `weight` has the last dimension.
struct NormedSum {
  at::Tensor total;
  at::Tensor normed;
  at::Tensor x;
  at::Tensor weight;
  std::optional<at::Tensor> residual;
  double eps = 0.0;
};

}  // namespace symm
