#include "symm_mem/device/memory_handle.hpp"

#include <cstdlib>
#include <string>

#include "kernels/core/error.hpp"

namespace symm {

namespace {

constexpr std::array kPreferences{HandlePreference::kAuto, HandlePreference::kPosix,
                                  HandlePreference::kFabric};

}  // namespace

std::string_view handle_preference_name(HandlePreference preference) {
  switch (preference) {
    case HandlePreference::kAuto:
      return "auto";
    case HandlePreference::kPosix:
      return "posix";
    case HandlePreference::kFabric:
      return "fabric";
  }
  return "unknown";
}

HandlePreference handle_preference() {
  const char* const value = std::getenv("SYMM_HANDLE_TYPE");
  if (value == nullptr) return HandlePreference::kAuto;
  for (const HandlePreference preference : kPreferences) {
    if (handle_preference_name(preference) == value) return preference;
  }
  throw Error(ErrorCode::kInvalidArgument,
              "SYMM_HANDLE_TYPE: expected auto, posix or fabric, got \"", value, "\"");
}

}  // namespace symm
