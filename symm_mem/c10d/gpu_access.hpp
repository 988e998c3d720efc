// The device library's runtime of a GPU that torch names, and torch's streams there.
//
// Device-generic: only what c10 has for every kind of device, and the device library.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "symm_mem/device/device_runtime.hpp"
#include "symm_mem/process/fork_guard.hpp"

namespace symm {

// What torch calls "cuda": kHip in a ROCm build of torch, else kCuda.
DeviceKind gpu_kind();

// The runtime of a GPU. Throws Error(kUnsupported) with the sentence of the device library.
GpuRuntime& gpu_runtime(c10::Device device);

// The host's runtime, or that of a GPU. Throws Error(kUnsupported) for any other device.
DeviceRuntime& device_runtime(c10::Device device);

// `device` with a number: that of the current device where it has none; the host has none.
c10::Device with_index(c10::Device device);

// This thread's current stream on `device`, a GPU.
c10::Stream current_stream(c10::Device device);

// True while that stream is captured into a graph. Throws as gpu_runtime().
bool is_captured(c10::Device device);

// Waits until all that was put on `device` has ended, well or not; at once for the host. Never
// throws; without Python's interpreter lock.
void wait_for_device(c10::Device device) noexcept;

// Something that maps memory of a device, host or GPU. Memory of a GPU is unmapped at once, so
// nothing on the device may use it any more: let_go() waits for that. A forked child has no use of
// the device and leaves what is mapped for ever.
class DeviceOwned {
 public:
  DeviceOwned(c10::Device device, std::shared_ptr<void> what,
              std::uint32_t generation = fork_generation())
      : device_(device), what_(std::move(what)), generation_(generation) {}

  void let_go() noexcept;

 private:
  c10::Device device_;
  std::shared_ptr<void> what_;
  std::uint32_t generation_;  // of the process that made it
};

}  // namespace symm
