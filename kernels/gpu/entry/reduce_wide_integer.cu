#include "kernels/gpu/entry/reduce_entry.cuh"

template symm::ReduceKernelRow symm::reduce_kernel_row<symm::Dtype::kInt16>();
template symm::ReduceKernelRow symm::reduce_kernel_row<symm::Dtype::kInt32>();
template symm::ReduceKernelRow symm::reduce_kernel_row<symm::Dtype::kInt64>();
