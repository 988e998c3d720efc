#include "kernels/gpu/entry/reduce_entry.cuh"

namespace symm {

std::span<const ReduceKernelEntry> reduce_kernels_wide_integer() {
  static const ReduceKernelEntry entries[] = {
      reduce_entry<Dtype::kInt16, ReduceOp::kSum>(),
      reduce_entry<Dtype::kInt16, ReduceOp::kProduct>(),
      reduce_entry<Dtype::kInt16, ReduceOp::kMin>(),
      reduce_entry<Dtype::kInt16, ReduceOp::kMax>(),
      reduce_entry<Dtype::kInt16, ReduceOp::kBand>(),
      reduce_entry<Dtype::kInt16, ReduceOp::kBor>(),
      reduce_entry<Dtype::kInt16, ReduceOp::kBxor>(),
      reduce_entry<Dtype::kInt32, ReduceOp::kSum>(),
      reduce_entry<Dtype::kInt32, ReduceOp::kProduct>(),
      reduce_entry<Dtype::kInt32, ReduceOp::kMin>(),
      reduce_entry<Dtype::kInt32, ReduceOp::kMax>(),
      reduce_entry<Dtype::kInt32, ReduceOp::kBand>(),
      reduce_entry<Dtype::kInt32, ReduceOp::kBor>(),
      reduce_entry<Dtype::kInt32, ReduceOp::kBxor>(),
      reduce_entry<Dtype::kInt64, ReduceOp::kSum>(),
      reduce_entry<Dtype::kInt64, ReduceOp::kProduct>(),
      reduce_entry<Dtype::kInt64, ReduceOp::kMin>(),
      reduce_entry<Dtype::kInt64, ReduceOp::kMax>(),
      reduce_entry<Dtype::kInt64, ReduceOp::kBand>(),
      reduce_entry<Dtype::kInt64, ReduceOp::kBor>(),
      reduce_entry<Dtype::kInt64, ReduceOp::kBxor>(),
  };
  return entries;
}

}  // namespace symm
