// Errors of the GPU's runtime as symm::Error, and the calling thread's current device.
#pragma once

#include <string>

#include "kernels/core/error.hpp"
#include "kernels/gpu/vendor/gpu_api.hpp"

namespace symm {

// Throws Error(kSystem) with the attempted action and the runtime's message.
inline void check_gpu(gpuError_t status, const char* what) {
  if (status == gpuSuccess) [[likely]]
    return;
  (void)gpuGetLastError();
  throw Error(ErrorCode::kSystem,
              std::string(what) + ": the GPU's runtime answered: " + gpuGetErrorString(status));
}

// Makes `device` current in the thread for the lifetime of the object.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    check_gpu(gpuGetDevice(&before_), "asking for the current device");
    if (before_ == device) {
      before_ = -1;
    } else {
      check_gpu(gpuSetDevice(device), "choosing a device");
    }
  }
  ~DeviceGuard() {
    if (before_ >= 0) (void)gpuSetDevice(before_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = -1;
};

}  // namespace symm
