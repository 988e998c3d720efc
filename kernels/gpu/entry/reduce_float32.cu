#include "kernels/gpu/entry/reduce_entry.cuh"

namespace symm {

std::span<const ReduceKernelEntry> reduce_kernels_float32() {
  static const ReduceKernelEntry entries[] = {
      reduce_entry<Dtype::kFloat32, ReduceOp::kSum>(),
      reduce_entry<Dtype::kFloat32, ReduceOp::kProduct>(),
      reduce_entry<Dtype::kFloat32, ReduceOp::kMin>(),
      reduce_entry<Dtype::kFloat32, ReduceOp::kMax>(),
      reduce_entry<Dtype::kComplex64, ReduceOp::kProduct>(),
  };
  return entries;
}

}  // namespace symm
