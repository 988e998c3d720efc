#include "symm_mem/c10d/gpu_access.hpp"

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Logging.h>

#include "kernels/core/error.hpp"
#include "symm_mem/device/device_library.hpp"
#include "symm_mem/process/blocking_section.hpp"

namespace symm {

DeviceKind gpu_kind() {
  return at::detail::getCUDAHooks().hasROCM() ? DeviceKind::kHip : DeviceKind::kCuda;
}

GpuRuntime& gpu_runtime(c10::Device device) {
  return device_library(gpu_kind()).runtime(device.index());
}

DeviceRuntime& device_runtime(c10::Device device) {
  if (device.is_cpu()) return host_runtime();
  if (device.is_cuda()) return gpu_runtime(device);
  throw Error(ErrorCode::kUnsupported, "device: expected cpu or cuda, got ", device.str());
}

c10::Device with_index(c10::Device device) {
  if (device.is_cpu() || device.has_index()) return device;
  return c10::impl::VirtualGuardImpl(device.type()).getDevice();
}

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

void wait_for_device(c10::Device device) noexcept {
  if (device.is_cpu()) return;
  blocking_section([&] {
    try {
      const RelaxedCapture relaxed(gpu_runtime(device));
      c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
    } catch (const std::exception& error) {
      LOG(WARNING) << "symm: " << device.str() << " reports an error: " << error.what();
    }
  });
}

void DeviceOwned::let_go() noexcept {
  if (!device_.is_cpu() && fork_generation() != generation_) {
    [[maybe_unused]] const auto* leaked = new std::shared_ptr<void>(std::move(what_));
    return;
  }
  wait_for_device(device_);
  what_.reset();
}

bool is_captured(c10::Device device) {
  return gpu_runtime(device).capture_id(current_stream(device).native_handle()) != 0;
}

}  // namespace symm
