// The reducing kernels by dtype and operator, loading of all kernels, and the one kernel that needs
// no group. Host.
#pragma once

#include "kernels/gpu/interface/group_kernels.hpp"
#include "kernels/gpu/interface/kernel_table.hpp"

namespace symm {

const ReduceKernelTable& reduce_table();

// Loads every kernel but those of multimem on the current device. Throws Error(kSystem).
void load_kernels();

// multimem_kernel_address(), or what stands for it in a test.
using MultimemKernel = const void* (*)(CollectiveKind kind, Dtype dtype, ReduceOp op);
// All of them, likewise.
void load_multimem_kernels(MultimemKernel address);

// GroupKernels::fold() on the current device.
void launch_fold(const FoldCall& call, StreamHandle stream);

}  // namespace symm
