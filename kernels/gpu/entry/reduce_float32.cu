#include "kernels/gpu/entry/reduce_entry.cuh"

template symm::ReduceKernelRow symm::reduce_kernel_row<symm::Dtype::kFloat32>();
template symm::ReduceKernelRow symm::reduce_kernel_row<symm::Dtype::kComplex64>();
