#include "symm_mem/device/device_library.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <mutex>

#include "kernels/core/error.hpp"

namespace symm {
namespace {

std::string library_file_name(DeviceKind kind) {
  return "libsymm_" + std::string(device_kind_name(kind)) + ".so";
}

[[noreturn]] void refuse(DeviceKind kind, const std::string& why) {
  throw Error(ErrorCode::kUnsupported, "symm cannot use ", device_kind_name(kind),
              " memory: ", why);
}

// Of the shared object, or of the program, that this function is linked into; empty if unknown.
std::string own_directory() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&own_directory), &info) == 0 ||
      info.dli_fname == nullptr) {
    return "";
  }
  const std::string path(info.dli_fname);
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

std::string last_loader_error() {
  const char* const text = ::dlerror();
  return text == nullptr ? "unknown reason" : text;
}

struct OpenedLibrary {
  void* handle;
  std::string name;  // as it was opened
};

OpenedLibrary open_shared_object(const std::string& directory, DeviceKind kind) {
  const std::string file = library_file_name(kind);
  const std::string beside = directory + "/" + file;
  if (!directory.empty() && ::access(beside.c_str(), F_OK) == 0) {
    void* const handle = ::dlopen(beside.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) refuse(kind, beside + " does not load: " + last_loader_error());
    return {handle, beside};
  }
  void* const handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    refuse(kind, "neither " + beside + " nor the loader's path descriptors " + file + " (" +
                     last_loader_error() + ")");
  }
  return {handle, file};
}

struct Libraries {
  std::mutex mutex;
  std::array<const DeviceLibrary*, 3> by_kind{};
};

Libraries& known_libraries() {
  static Libraries libraries;
  return libraries;
}

}  // namespace

const DeviceLibrary& open_device_library(const std::string& directory, DeviceKind kind) {
  if (kind == DeviceKind::kHost) refuse(kind, "host memory needs no device library");
  const OpenedLibrary opened = open_shared_object(directory, kind);
  using Entry = const DeviceLibrary* (*)();
  const auto entry = reinterpret_cast<Entry>(::dlsym(opened.handle, kDeviceLibrarySymbol));
  if (entry == nullptr) {
    refuse(kind, opened.name + " is not a device library of symm: it has no symbol " +
                     kDeviceLibrarySymbol);
  }
  const DeviceLibrary* const library = entry();
  if (library == nullptr) refuse(kind, opened.name + " descriptors no device");
  if (library->interface_version != kDeviceLibraryVersion) {
    refuse(kind, opened.name + " has interface version " +
                     std::to_string(library->interface_version) + ", expected " +
                     std::to_string(kDeviceLibraryVersion) +
                     "; install it from the same build as libsymm");
  }
  if (library->kind != kind || library->runtime == nullptr) {
    refuse(kind, opened.name + " serves another kind of device");
  }
  return *library;
}

const DeviceLibrary& device_library(DeviceKind kind) {
  Libraries& libraries = known_libraries();
  const std::lock_guard<std::mutex> lock(libraries.mutex);
  const DeviceLibrary*& library = libraries.by_kind.at(static_cast<std::size_t>(kind));
  if (library == nullptr) library = &open_device_library(own_directory(), kind);
  return *library;
}

void set_device_library(DeviceKind kind, const DeviceLibrary* library) {
  Libraries& libraries = known_libraries();
  const std::lock_guard<std::mutex> lock(libraries.mutex);
  libraries.by_kind.at(static_cast<std::size_t>(kind)) = library;
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
