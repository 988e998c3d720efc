#include "symm_mem/device/gpu_driver.hpp"

#include <dlfcn.h>

#include <mutex>
#include <optional>

#include "kernels/core/error.hpp"

namespace symm {
namespace {

template <typename... Why>
[[noreturn]] void refuse(const Why&... why) {
  throw Error(ErrorCode::kUnsupported, "symm cannot use a GPU: ", why...);
}

std::string version_text(int version) {
  return text_of(kGpuVersionName, " ", version / kGpuVersionMajor, ".",
                 version % kGpuVersionMajor / kGpuVersionMinor);
}

template <typename Function>
void resolve(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) {
    refuse(kGpuDriverFile, " has no entry ", name, "; install a newer driver");
  }
}

// The vendor's headers rename an entry to the version of it that they declare.
#define SYMM_TEXT(name) #name
#define SYMM_RESOLVE(member, vendor) resolve(library, SYMM_TEXT(vendor), driver.member);

// The version is looked at before the other entries, which an old driver may lack.
void find_entries(void* library, GpuDriver& driver) {
  if (driver.driver_get_version == nullptr) {
    resolve(library, kGpuVersionEntry, driver.driver_get_version);
  }
  int version = 0;
  if (driver.driver_get_version(&version) != gpuDriverSuccess) {
    refuse(kGpuDriverName, " does not tell its version");
  }
  if (!kGpuDriverServesOlderBuilds &&
      version / kGpuVersionMajor != kGpuDriverNeeded / kGpuVersionMajor) {
    refuse(kGpuDriverName, " serves ", version_text(version), ", and this build of symm is for ",
           version_text(kGpuDriverNeeded),
           " and the minor versions that follow it; build it with the one of this machine");
  }
  if (version < kGpuDriverNeeded) {
    refuse(kGpuDriverName, " is too old: it serves ", version_text(version),
           ", this build of symm needs ", version_text(kGpuDriverNeeded), " or newer");
  }
  SYMM_GPU_DRIVER_ENTRIES(SYMM_RESOLVE)
}

#undef SYMM_RESOLVE
#undef SYMM_TEXT

[[noreturn]] void refuse_no_gpu() {
  refuse("no GPU is visible to this process; see ", kGpuVisibility,
         " and whether the device files are there");
}

void open_driver(GpuDriver& driver) {
  if (const std::string why = gpu_driver_conflict(); !why.empty()) refuse(why);
  void* const library = ::dlopen(kGpuDriverFile, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const reason = ::dlerror();
    refuse(kGpuDriverName, " is not installed: ", kGpuDriverFile, " cannot be opened (",
           reason == nullptr ? "unknown reason" : reason, ")");
  }
  find_entries(library, driver);
  const gpuResult_t started = driver.init(0);
  if (started == gpuDriverNoDevice) refuse_no_gpu();
  if (started != gpuDriverSuccess) {
    refuse(kGpuDriverName, " does not start: ", driver.describe(started));
  }
  if (gpu_count(driver) < 1) refuse_no_gpu();
}

}  // namespace

std::string GpuDriver::describe(gpuResult_t result) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (get_error_name(result, &name) != gpuDriverSuccess || name == nullptr) {
    return text_of("error ", static_cast<int>(result));
  }
  if (get_error_string(result, &text) != gpuDriverSuccess || text == nullptr) return name;
  return std::string(name) + " (" + text + ")";
}

void GpuDriver::check(gpuResult_t result, const std::string& action) const {
  if (result == gpuDriverSuccess) return;
  throw Error(ErrorCode::kSystem, action, " failed: ", describe(result));
}

const GpuDriver& gpu_driver() {
  static std::mutex mutex;
  static std::optional<GpuDriver> opened;
  const std::lock_guard<std::mutex> lock(mutex);
  if (!opened) {
    GpuDriver driver;
    open_driver(driver);
    opened = driver;
  }
  return *opened;
}

int gpu_count(const GpuDriver& driver) {
  int count = 0;
  driver.check(driver.device_get_count(&count), "counting the GPUs");
  return count;
}

}  // namespace symm
