#include "kernels/gpu/entry/reduce_entry.cuh"

template symm::ReduceKernelRow symm::reduce_kernel_row<symm::Dtype::kFloat8E4M3FnUz>();
template symm::ReduceKernelRow symm::reduce_kernel_row<symm::Dtype::kFloat8E5M2FnUz>();
