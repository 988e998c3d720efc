// CUDA only: the kernels on multicast addresses, over the switch between the GPUs. Elsewhere they
// are empty, and multimem_kernel_address() has none. Never run on hardware; their source is run by
// test/gpu/multimem over a stand-in for the instructions.
#include "kernels/gpu/entry/multimem_kernels.cuh"

const void* symm::multimem_kernel_address(CollectiveKind kind, Dtype dtype, ReduceOp op) {
  if constexpr (kGpuHasMultimem) {
    return multimem_kernel_of<SwitchMulticast>(kind, dtype, op);
  } else {
    return nullptr;
  }
}
