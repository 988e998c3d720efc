#include "symm_mem/multicast.hpp"

#include <cstdlib>
#include <string_view>

namespace symm {

bool multicast_disabled() {
  for (const char* name :
       {"SYMM_DISABLE_MULTICAST", "TORCH_SYMM_MEM_DISABLE_MULTICAST", "NVSHMEM_DISABLE_NVLS"}) {
    const char* const value = std::getenv(name);
    if (value != nullptr && std::string_view(value) == "1") return true;
  }
  return false;
}

}  // namespace symm
