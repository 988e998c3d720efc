#include "test/libtorch/torch_stand_ins.hpp"

// The dynamic linker finds the program's functions before those of PyTorch's libraries.
namespace torch::cuda::nccl {
std::uint64_t version() { return symm::test::nccl_version; }
}  // namespace torch::cuda::nccl

namespace c10d::nvshmem_extension {
bool is_nvshmem_available() { return symm::test::nvshmem_is_there; }
}  // namespace c10d::nvshmem_extension
