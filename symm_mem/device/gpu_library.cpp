// What a device library exports.
#include <map>
#include <memory>
#include <mutex>

#include "kernels/gpu/vendor/gpu_api.hpp"
#include "symm_mem/device/device_library.hpp"
#include "symm_mem/device/gpu_runtime.hpp"

namespace symm {
namespace {

// For whoever looks into the file.
[[gnu::used]] const char* const kHostCalls = kGpuHostCalls;

constexpr DeviceKind kKind = DeviceKind::SYMM_GPU_KIND;

GpuRuntime& runtime_of(int device_index) {
  struct Runtimes {
    std::mutex mutex;
    std::map<int, std::unique_ptr<GpuRuntime>> by_index;
  };
  // Never destroyed: a tensor may outlive every static of the program.
  static Runtimes* const runtimes = new Runtimes;
  const std::lock_guard<std::mutex> lock(runtimes->mutex);
  std::unique_ptr<GpuRuntime>& runtime = runtimes->by_index[device_index];
  if (!runtime) runtime = make_gpu_runtime(kKind, device_index);
  return *runtime;
}

constexpr DeviceLibrary kLibrary{kDeviceLibraryVersion, kKind, &runtime_of};

}  // namespace
}  // namespace symm

extern "C" __attribute__((visibility("default"))) const symm::DeviceLibrary* symm_device_library() {
  return &symm::kLibrary;
}
