#include "kernels/gpu/entry/reduce_entry.cuh"

namespace symm {

std::span<const ReduceKernelEntry> reduce_kernels_narrow_integer() {
  static const ReduceKernelEntry entries[] = {
      reduce_entry<Dtype::kInt8, ReduceOp::kSum>(),
      reduce_entry<Dtype::kInt8, ReduceOp::kMin>(),
      reduce_entry<Dtype::kInt8, ReduceOp::kMax>(),
      reduce_entry<Dtype::kUInt8, ReduceOp::kSum>(),
      reduce_entry<Dtype::kUInt8, ReduceOp::kProduct>(),
      reduce_entry<Dtype::kUInt8, ReduceOp::kMin>(),
      reduce_entry<Dtype::kUInt8, ReduceOp::kMax>(),
      reduce_entry<Dtype::kUInt8, ReduceOp::kBand>(),
      reduce_entry<Dtype::kUInt8, ReduceOp::kBor>(),
      reduce_entry<Dtype::kUInt8, ReduceOp::kBxor>(),
      reduce_entry<Dtype::kBool, ReduceOp::kBand>(),
      reduce_entry<Dtype::kBool, ReduceOp::kBor>(),
      reduce_entry<Dtype::kBool, ReduceOp::kBxor>(),
  };
  return entries;
}

}  // namespace symm
