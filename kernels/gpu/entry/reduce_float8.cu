#include "kernels/gpu/entry/reduce_entry.cuh"

namespace symm {

std::span<const ReduceKernelEntry> reduce_kernels_float8() {
  static const ReduceKernelEntry entries[] = {
      reduce_entry<Dtype::kFloat8E4M3Fn, ReduceOp::kSum>(),
      reduce_entry<Dtype::kFloat8E4M3Fn, ReduceOp::kProduct>(),
      reduce_entry<Dtype::kFloat8E4M3Fn, ReduceOp::kMin>(),
      reduce_entry<Dtype::kFloat8E4M3Fn, ReduceOp::kMax>(),
      reduce_entry<Dtype::kFloat8E5M2, ReduceOp::kSum>(),
      reduce_entry<Dtype::kFloat8E5M2, ReduceOp::kProduct>(),
      reduce_entry<Dtype::kFloat8E5M2, ReduceOp::kMin>(),
      reduce_entry<Dtype::kFloat8E5M2, ReduceOp::kMax>(),
  };
  return entries;
}

}  // namespace symm
