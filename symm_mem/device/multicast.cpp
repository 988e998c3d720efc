#include "symm_mem/device/multicast.hpp"

#include <cstdlib>
#include <string_view>

#include "kernels/core/error.hpp"

namespace symm {

namespace {

std::string_view value_of(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

bool turns_multicast_off(const char* name) { return value_of(name) == "1"; }

std::string multicast_disabled_by() {
  for (const char* name : kMulticastSwitches) {
    if (turns_multicast_off(name)) return name;
  }
  return "";
}

bool multicast_disabled() {
  const std::string_view own = value_of(kMulticastSwitches[0]);
  if (!own.empty() && own != "0" && own != "1") {
    throw Error(ErrorCode::kInvalidArgument, kMulticastSwitches[0], ": expected 0 or 1, got '", own,
                "'");
  }
  return !multicast_disabled_by().empty();
}

}  // namespace symm
