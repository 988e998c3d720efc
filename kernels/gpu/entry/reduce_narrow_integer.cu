#include "kernels/gpu/entry/reduce_entry.cuh"

template symm::ReduceKernelRow symm::reduce_kernel_row<symm::Dtype::kInt8>();
template symm::ReduceKernelRow symm::reduce_kernel_row<symm::Dtype::kUInt8>();
template symm::ReduceKernelRow symm::reduce_kernel_row<symm::Dtype::kBool>();
