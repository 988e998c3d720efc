#include "symm_mem/device/device_library.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <filesystem>
#include <mutex>

#include "kernels/core/error.hpp"

namespace symm {
namespace {

template <typename... Why>
[[noreturn]] void refuse(DeviceKind kind, const Why&... why) {
  throw Error(ErrorCode::kUnsupported, "symm cannot use ", device_kind_name(kind),
              " memory: ", why...);
}

// Of the shared object, or of the program, that this function is linked into; empty if unknown.
std::string own_directory() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&own_directory), &info) == 0 ||
      info.dli_fname == nullptr) {
    return "";
  }
  return std::filesystem::path(info.dli_fname).parent_path().string();
}

std::mutex libraries_mutex;
std::array<const DeviceLibrary*, 3> libraries{};  // by kind; guarded by the mutex

}  // namespace

const DeviceLibrary& open_device_library(const std::string& directory, DeviceKind kind) {
  if (kind == DeviceKind::kHost) refuse(kind, "host memory needs no device library");
  const std::string file = text_of("libsymm_", device_kind_name(kind), ".so");
  const std::string beside = directory + "/" + file;
  const bool is_beside = !directory.empty() && ::access(beside.c_str(), F_OK) == 0;
  const std::string& name = is_beside ? beside : file;
  void* const handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const text = ::dlerror();
    const std::string reason = text == nullptr ? "unknown reason" : text;
    if (is_beside) refuse(kind, beside, " does not load: ", reason);
    refuse(kind, "neither ", beside, " nor the loader's path offers ", file, " (", reason, ")");
  }
  using Entry = const DeviceLibrary* (*)();
  const auto entry = reinterpret_cast<Entry>(::dlsym(handle, kDeviceLibrarySymbol));
  if (entry == nullptr) {
    refuse(kind, name, " is not a device library of symm: it has no symbol ", kDeviceLibrarySymbol);
  }
  const DeviceLibrary* const library = entry();
  if (library == nullptr) refuse(kind, name, " offers no device");
  if (library->interface_version != kDeviceLibraryVersion) {
    refuse(kind, name, " has interface version ", library->interface_version, ", expected ",
           kDeviceLibraryVersion, "; install it from the same build as libsymm");
  }
  if (library->kind != kind || library->runtime == nullptr) {
    refuse(kind, name, " serves another kind of device");
  }
  return *library;
}

const DeviceLibrary& device_library(DeviceKind kind) {
  const std::lock_guard lock(libraries_mutex);
  const DeviceLibrary*& library = libraries.at(static_cast<std::size_t>(kind));
  if (library == nullptr) library = &open_device_library(own_directory(), kind);
  return *library;
}

void set_device_library(DeviceKind kind, const DeviceLibrary* library) {
  const std::lock_guard lock(libraries_mutex);
  libraries.at(static_cast<std::size_t>(kind)) = library;
}

std::string device_library_problem(DeviceKind kind) {
  try {
    device_library(kind);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace symm
