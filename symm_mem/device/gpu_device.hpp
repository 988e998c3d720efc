// One GPU of this process, and its context for any thread.
//
// NOTE [Contexts]
// All work is done in the device's primary context, the one of PyTorch and of the vendor's runtime.
// It is retained once and for the life of the process. A GpuScope pushes it and pops it again, so
// that a thread comes out with the context that it had, or with none: setting the current device
// back would instead make a context on a device that the thread never used.
#pragma once

#include <cstdint>
#include <string>

#include "symm_mem/device/device_runtime.hpp"
#include "symm_mem/device/gpu_driver.hpp"
#include "symm_mem/process/fork_guard.hpp"

namespace symm {

class GpuDevice {
 public:
  // Starts the driver if need be, and makes the primary context. Throws Error: kUnsupported with
  // one sentence where there is no such device or it cannot share memory, kSystem.
  GpuDevice(DeviceKind kind, int index);
  GpuDevice(const GpuDevice&) = delete;
  GpuDevice& operator=(const GpuDevice&) = delete;

  const GpuDriver& driver() const { return driver_; }
  const GpuIdentity& identity() const { return identity_; }
  gpuDevice_t handle() const { return handle_; }
  gpuContext_t context() const { return context_; }

  // For messages: "NVIDIA H100 (cuda:0, GPU-01234567-89ab-cdef-0123-456789abcdef)".
  const std::string& label() const { return label_; }

  // False in a forked child, where the parent's context must not be touched.
  bool usable() const noexcept { return generation_ == fork_generation(); }

  int attribute(gpuDeviceAttribute which) const;
  // As GpuRuntime::gpus_with_lines().
  std::vector<GpuUuid> gpus_with_lines() const;
  bool has_descriptors() const { return attribute(gpuAttributePosixHandles) != 0; }
  bool has_fabric_handles() const { return attribute(gpuAttributeFabricHandles) != 0; }

 private:
  const GpuDriver& driver_;
  gpuDevice_t handle_{};
  gpuContext_t context_ = nullptr;
  GpuIdentity identity_;
  std::string label_;
  std::uint32_t generation_ = fork_generation();
};

// While it lives the device's context is this thread's current one. Throws Error(kUnsupported) in a
// forked child, kSystem. Costs one look where the context is current already.
class GpuScope {
 public:
  explicit GpuScope(const GpuDevice& device);
  ~GpuScope();
  GpuScope(const GpuScope&) = delete;
  GpuScope& operator=(const GpuScope&) = delete;

 private:
  const GpuDriver& driver_;
  bool pushed_ = false;
};

// A GpuScope for work that another thread's capture would forbid to this thread, or that would end
// that capture: allocating, synchronising a stream of one's own.
class GpuColdScope {
 public:
  explicit GpuColdScope(const GpuDevice& device);
  ~GpuColdScope();

 private:
  GpuScope scope_;
  const GpuDriver& driver_;
  gpuThreadCaptureMode mode_ = gpuThreadCaptureRelaxed;
};

}  // namespace symm
