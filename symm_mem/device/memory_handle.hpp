// How physical memory is named to another process.
//
// NOTE [Handles]
// A descriptor travels beside a message over a unix socket and works inside one host. A fabric
// handle is 64 bytes inside the message; making and importing one needs a GPU with that attribute
// and a service of the driver's vendor that lets this process do so. A handle refers to memory and
// does not own it; whoever imports it does.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <variant>

#include "symm_mem/process/file_descriptor.hpp"

namespace symm {

enum class HandleKind { kDescriptor, kFabric };

struct FabricHandle {
  static constexpr std::size_t kBytes = 64;
  std::array<std::uint8_t, kBytes> bytes{};
};

using MemoryHandle = std::variant<FileDescriptor, FabricHandle>;

// By which kinds something can be exported.
struct HandleKinds {
  bool descriptor = false;
  bool fabric = false;
};

// What SYMM_HANDLE_TYPE asks for.
enum class HandlePreference { kAuto, kPosix, kFabric };

// "auto", "posix", "fabric".
std::string_view handle_preference_name(HandlePreference preference);

// SYMM_HANDLE_TYPE, kAuto where it is unset. Reads the environment each time. Local. Throws
// Error(kInvalidArgument) that lists the legal values.
HandlePreference handle_preference();

}  // namespace symm
