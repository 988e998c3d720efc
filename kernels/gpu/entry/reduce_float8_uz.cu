#include "kernels/gpu/entry/reduce_entry.cuh"

namespace symm {

std::span<const ReduceKernelEntry> reduce_kernels_float8_uz() {
  static const ReduceKernelEntry entries[] = {
      reduce_entry<Dtype::kFloat8E4M3FnUz, ReduceOp::kSum>(),
      reduce_entry<Dtype::kFloat8E4M3FnUz, ReduceOp::kProduct>(),
      reduce_entry<Dtype::kFloat8E4M3FnUz, ReduceOp::kMin>(),
      reduce_entry<Dtype::kFloat8E4M3FnUz, ReduceOp::kMax>(),
      reduce_entry<Dtype::kFloat8E5M2FnUz, ReduceOp::kSum>(),
      reduce_entry<Dtype::kFloat8E5M2FnUz, ReduceOp::kProduct>(),
      reduce_entry<Dtype::kFloat8E5M2FnUz, ReduceOp::kMin>(),
      reduce_entry<Dtype::kFloat8E5M2FnUz, ReduceOp::kMax>(),
  };
  return entries;
}

}  // namespace symm
