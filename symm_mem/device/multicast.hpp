// Whether NVLink multicast may be used. Local; every function reads the environment each time.
#pragma once

#include <array>
#include <string>

namespace symm {

// Each turns multicast off where it is "1": whoever set the switch of another library meant the
// machine.
inline constexpr std::array kMulticastSwitches = {
    "SYMM_DISABLE_MULTICAST", "TORCH_SYMM_MEM_DISABLE_MULTICAST", "NVSHMEM_DISABLE_NVLS"};

bool turns_multicast_off(const char* name);

// The first of the switches that turns it off, "" where none does.
std::string multicast_disabled_by();

// True where one of the switches turns it off. Throws Error(kInvalidArgument) where
// SYMM_DISABLE_MULTICAST is set to anything but 0 and 1.
bool multicast_disabled();

}  // namespace symm
