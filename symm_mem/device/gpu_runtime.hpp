// Symmetric memory on a GPU, and the kernels that use it. Part of a device library.
#pragma once

#include <memory>

#include "symm_mem/device/device_runtime.hpp"

namespace symm {

// Throws Error: kUnsupported with one sentence (no driver, too old a driver, no such GPU, no
// shareable memory), kSystem. The runtime must live until the process ends.
std::unique_ptr<GpuRuntime> make_gpu_runtime(DeviceKind kind, int device_index);

}  // namespace symm
