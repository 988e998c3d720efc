#include "symm_mem/device/memory_handle.hpp"

#include <algorithm>
#include <cstdlib>

#include "kernels/core/error.hpp"

namespace symm {

namespace {

constexpr std::array<std::string_view, 3> kNames{"auto", "posix", "fabric"};  // by preference

}  // namespace

std::string_view handle_preference_name(HandlePreference preference) {
  return kNames[static_cast<std::size_t>(preference)];
}

HandlePreference handle_preference() {
  const char* const value = std::getenv("SYMM_HANDLE_TYPE");
  if (value == nullptr) return HandlePreference::kAuto;
  const auto found = std::ranges::find(kNames, std::string_view(value));
  if (found != kNames.end()) return static_cast<HandlePreference>(found - kNames.begin());
  throw Error(ErrorCode::kInvalidArgument,
              "SYMM_HANDLE_TYPE: expected auto, posix or fabric, got \"", value, "\"");
}

}  // namespace symm
