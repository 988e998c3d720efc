// Handles of GPU memory and of multicast objects: made, imported, and which kinds a device asks
// for.
#pragma once

#include <string>

#include "symm_mem/device/gpu_device.hpp"
#include "symm_mem/device/memory_handle.hpp"

namespace symm {

// `kinds` as the driver's bit mask, and back.
gpuMemHandleType gpu_handle_types(HandleKinds kinds);
HandleKinds handle_kinds_of(gpuMemHandleType types);

// A new handle of `memory`; `what` names it in messages ("4096 bytes of memory"). Throws
// Error(kSystem).
MemoryHandle export_gpu_handle(const GpuDevice& device, gpuMemHandle_t memory, HandleKind kind,
                               const std::string& what);

// What `handle` refers to; the caller must release it. Throws Error: kSecurity where it is no
// handle of such memory, else kSystem.
gpuMemHandle_t import_gpu_handle(const GpuDevice& device, const MemoryHandle& handle);

}  // namespace symm
