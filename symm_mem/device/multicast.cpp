#include "symm_mem/device/multicast.hpp"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "kernels/core/error.hpp"

namespace symm {

bool turns_multicast_off(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr && std::string_view(value) == "1";
}

std::string multicast_disabled_by() {
  const auto* const found = std::ranges::find_if(kMulticastSwitches, turns_multicast_off);
  return found == kMulticastSwitches.end() ? "" : *found;
}

bool multicast_disabled() {
  const char* const value = std::getenv(kMulticastSwitches[0]);
  const std::string_view own = value == nullptr ? "" : value;
  if (!own.empty() && own != "0" && own != "1") {
    throw Error(ErrorCode::kInvalidArgument, kMulticastSwitches[0], ": expected 0 or 1, got '", own,
                "'");
  }
  return !multicast_disabled_by().empty();
}

}  // namespace symm
