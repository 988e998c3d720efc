#include "symm_mem/device/multicast.hpp"

#include <cstdlib>
#include <string_view>

namespace symm {

std::string multicast_disabled_by() {
  for (const char* name :
       {"SYMM_DISABLE_MULTICAST", "TORCH_SYMM_MEM_DISABLE_MULTICAST", "NVSHMEM_DISABLE_NVLS"}) {
    const char* const value = std::getenv(name);
    if (value != nullptr && std::string_view(value) == "1") return name;
  }
  return "";
}

bool multicast_disabled() { return !multicast_disabled_by().empty(); }

}  // namespace symm
