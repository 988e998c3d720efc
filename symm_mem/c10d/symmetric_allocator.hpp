// What PyTorch's symmetric-memory API allocates from under the name "SYMM".
//
// One object serves host memory, one GPU memory. register_symmetric_memory() makes the one for the
// host PyTorch's allocator of symmetric CPU tensors, which PyTorch itself has not, and the one for
// GPUs a choice of torch.distributed._symmetric_memory.set_backend().
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>

#include <string>

namespace symm {

// The name for set_backend().
inline constexpr char kSymmetricMemoryName[] = "SYMM";

// Idempotent, local, touches no device.
void register_symmetric_memory();

// The handle, in that group, of a tensor in memory of symm, whatever provider PyTorch uses; null
// for other memory. The first one for a group is collective over it and blocks.
c10::intrusive_ptr<c10d::symmetric_memory::SymmetricMemory> own_handle(
    const at::Tensor& tensor, const std::string& group_name);

}  // namespace symm
