#include "kernels/gpu/entry/reduce_entry.cuh"

namespace symm {

std::span<const ReduceKernelEntry> reduce_kernels_float64() {
  static const ReduceKernelEntry entries[] = {
      reduce_entry<Dtype::kFloat64, ReduceOp::kSum>(),
      reduce_entry<Dtype::kFloat64, ReduceOp::kProduct>(),
      reduce_entry<Dtype::kFloat64, ReduceOp::kMin>(),
      reduce_entry<Dtype::kFloat64, ReduceOp::kMax>(),
      reduce_entry<Dtype::kComplex128, ReduceOp::kProduct>(),
  };
  return entries;
}

}  // namespace symm
