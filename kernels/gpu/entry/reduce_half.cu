#include "kernels/gpu/entry/reduce_entry.cuh"

namespace symm {

std::span<const ReduceKernelEntry> reduce_kernels_half() {
  static const ReduceKernelEntry entries[] = {
      reduce_entry<Dtype::kFloat16, ReduceOp::kSum>(),
      reduce_entry<Dtype::kFloat16, ReduceOp::kProduct>(),
      reduce_entry<Dtype::kFloat16, ReduceOp::kMin>(),
      reduce_entry<Dtype::kFloat16, ReduceOp::kMax>(),
  };
  return entries;
}

}  // namespace symm
