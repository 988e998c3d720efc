// The multimem kernels over a stand-in for the instructions on multicast addresses.
#pragma once

#include "kernels/core/collective.hpp"
#include "kernels/core/dtype.hpp"
#include "kernels/core/reduce_op.hpp"

namespace symm::test {

// For GroupKernelsConfig::multimem_kernel.
const void* stand_in_kernel(CollectiveKind kind, Dtype dtype, ReduceOp op);

// Accesses since the last call that the instructions forbid: at addresses that are no multiple of
// 16, or before the multicast address of the call. Waits for the GPU.
unsigned take_forbidden_accesses();

}  // namespace symm::test
