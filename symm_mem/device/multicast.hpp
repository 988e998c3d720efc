// Whether NVLink multicast may be used.
#pragma once

#include <string>

namespace symm {

// The first of the switches below that is "1", "" where none is. Reads the environment each time.
// Local.
std::string multicast_disabled_by();

// True where one of SYMM_DISABLE_MULTICAST, TORCH_SYMM_MEM_DISABLE_MULTICAST and
// NVSHMEM_DISABLE_NVLS is "1": whoever turned it off for another library meant the machine.
bool multicast_disabled();

}  // namespace symm
