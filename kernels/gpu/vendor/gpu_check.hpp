// Errors of the GPU's runtime as symm::Error, the calling thread's current device, and host memory
// that a device maps.
#pragma once

#include <cstddef>
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

// Modules load lazily, and a first launch may then synchronise the device, which never ends while
// another stream's kernel waits for a peer: so a kernel is loaded before its first launch.
inline void load_kernel(const void* kernel) {
  gpuFuncAttributes attributes;
  check_gpu(gpuFuncGetAttributes(&attributes, kernel), "loading a kernel");
}

// Puts a kernel on `stream`, which is a gpuStream_t. `params`: of the types that the kernel takes.
template <class... Params>
void launch_kernel(const void* kernel, dim3 blocks, unsigned threads, void* stream,
                   const Params&... params) {
  check_gpu(gpuLaunch(kernel, blocks, dim3(threads), static_cast<gpuStream_t>(stream), params...),
            "launching a kernel");
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

// Host memory, not owned, that the current device reads and writes while the object lives.
class MappedMemory {
 public:
  MappedMemory(void* host, std::size_t bytes, const char* what) : host_(host) {
    check_gpu(gpuHostRegisterMapped(host_, bytes), what);
    const gpuError_t mapped = gpuHostGetDevicePointer(&device_, host_);
    if (mapped == gpuSuccess) return;
    (void)gpuHostUnregister(host_);
    check_gpu(mapped, what);
  }
  ~MappedMemory() { (void)gpuHostUnregister(host_); }
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;

  void* device_address() const { return device_; }

 private:
  void* host_;
  void* device_ = nullptr;
};

}  // namespace symm
