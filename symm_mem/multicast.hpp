// Whether NVLink multicast may be used. Nothing uses it yet.
#pragma once

namespace symm {

// True where one of SYMM_DISABLE_MULTICAST, TORCH_SYMM_MEM_DISABLE_MULTICAST and
// NVSHMEM_DISABLE_NVLS is "1": whoever turned it off for another library meant the machine. Reads
// the environment each time. Local.
bool multicast_disabled();

}  // namespace symm
