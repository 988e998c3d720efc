#include "kernels/gpu/entry/reduce_entry.cuh"

namespace symm {

std::span<const ReduceKernelEntry> reduce_kernels_bfloat16() {
  static const ReduceKernelEntry entries[] = {
      reduce_entry<Dtype::kBFloat16, ReduceOp::kSum>(),
      reduce_entry<Dtype::kBFloat16, ReduceOp::kProduct>(),
      reduce_entry<Dtype::kBFloat16, ReduceOp::kMin>(),
      reduce_entry<Dtype::kBFloat16, ReduceOp::kMax>(),
  };
  return entries;
}

}  // namespace symm
