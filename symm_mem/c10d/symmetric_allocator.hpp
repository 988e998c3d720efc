// What PyTorch's symmetric-memory API allocates from under the name "SYMM".
//
// One object serves host memory, one GPU memory. register_symmetric_memory() makes the one for the
// host PyTorch's allocator of symmetric CPU tensors, which PyTorch itself has not, and the one for
// GPUs a choice of torch.distributed._symmetric_memory.set_backend().
#pragma once

namespace symm {

// The name for set_backend().
inline constexpr char kSymmetricMemoryName[] = "SYMM";

// Idempotent, local, touches no device.
void register_symmetric_memory();

}  // namespace symm
