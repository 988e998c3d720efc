// Device libraries (libsymm_cuda.so, libsymm_hip.so) are opened at run time, when the first tensor
// of that kind arrives, so that one build serves machines with and without a GPU.
#pragma once

#include <string>

#include "symm_mem/device/device_runtime.hpp"

namespace symm {

// The version of the interface between libsymm and a device library; a library of another version
// is refused.
inline constexpr int kDeviceLibraryVersion = 15;

struct DeviceLibrary {
  int interface_version;
  DeviceKind kind;
  // The runtime of a local device, by the number that PyTorch gives it. Throws Error with one
  // sentence where there is no such device, no driver, or a driver that is too old.
  GpuRuntime& (*runtime)(int device_index);
};

// The symbol that a device library exports: extern "C" const DeviceLibrary* symm_device_library().
inline constexpr char kDeviceLibrarySymbol[] = "symm_device_library";

// Opens the library of `kind` once (from the directory that holds libsymm, else the loader's path)
// and returns it. Throws Error(kUnsupported) with one clear sentence that says what was looked for
// and why it cannot be used; a later call looks again. Thread safe. kHost is refused: host memory
// needs no library.
const DeviceLibrary& device_library(DeviceKind kind);

// The sentence that device_library() would throw, or "" where it would succeed.
std::string device_library_problem(DeviceKind kind);

// Makes device_library(kind) return `library` (for ever, or until the next call; null: what it
// finds itself), so that tests can bring a device of their own. Thread safe.
void set_device_library(DeviceKind kind, const DeviceLibrary* library);

// What device_library() does, looking in `directory` in place of the one that holds libsymm, and
// without remembering the result. An opened library stays open. Thread safe.
const DeviceLibrary& open_device_library(const std::string& directory, DeviceKind kind);

}  // namespace symm
