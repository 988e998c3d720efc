// The driver half of gpu_api.hpp: memory that is created, shared and mapped in separate steps.
// Types under one name for each vendor, and the list of entry points that a device library resolves
// at first use, so that it loads on a machine without a driver.
//
// Host only; owns nothing.
#pragma once

#include "kernels/gpu/vendor/gpu_api.hpp"

#if !SYMM_GPU_AMD

#include <cuda.h>

namespace symm {

// Names in messages: the driver, its library, and the variable that limits the GPUs of a process.
inline constexpr char kGpuDriverName[] = "the NVIDIA driver";
inline constexpr char kGpuDriverFile[] = "libcuda.so.1";
inline constexpr char kGpuVersionEntry[] = "cuDriverGetVersion";
inline constexpr char kGpuVisibility[] = "CUDA_VISIBLE_DEVICES";
inline constexpr char kGpuVersionName[] = "CUDA";
// The multiplier of a version's major number, and of its minor number.
inline constexpr int kGpuVersionMajor = 1000;
inline constexpr int kGpuVersionMinor = 10;
// A driver serves every minor version of its major one, and every older one.
inline constexpr int kGpuDriverNeeded = CUDA_VERSION / kGpuVersionMajor * kGpuVersionMajor;
inline constexpr bool kGpuDriverServesOlderBuilds = true;

}  // namespace symm

#endif

// The entry points of SYMM_GPU_DRIVER_ENTRIES that have one name on both vendors.
// clang-format off
#define SYMM_GPU_DRIVER_SHARED(entry)                                                        \
  entry(device_get, SYMM_GPU_DRIVER_NAME(DeviceGet))                                         \
  entry(device_get_name, SYMM_GPU_DRIVER_NAME(DeviceGetName))                                \
  entry(device_get_uuid, SYMM_GPU_DRIVER_NAME(DeviceGetUuid))                                \
  entry(thread_exchange_capture_mode, SYMM_GPU_DRIVER_NAME(ThreadExchangeStreamCaptureMode)) \
  entry(stream_synchronize, SYMM_GPU_DRIVER_NAME(StreamSynchronize))                         \
  entry(memset_async, SYMM_GPU_DRIVER_NAME(MemsetD8Async))                                   \
  entry(mem_get_info, SYMM_GPU_DRIVER_NAME(MemGetInfo))                                      \
  entry(mem_get_granularity, SYMM_GPU_DRIVER_NAME(MemGetAllocationGranularity))              \
  entry(mem_create, SYMM_GPU_DRIVER_NAME(MemCreate))                                         \
  entry(mem_release, SYMM_GPU_DRIVER_NAME(MemRelease))                                       \
  entry(mem_retain_handle, SYMM_GPU_DRIVER_NAME(MemRetainAllocationHandle))                  \
  entry(mem_get_address_range, SYMM_GPU_DRIVER_NAME(MemGetAddressRange))                     \
  entry(mem_get_properties, SYMM_GPU_DRIVER_NAME(MemGetAllocationPropertiesFromHandle))      \
  entry(mem_export, SYMM_GPU_DRIVER_NAME(MemExportToShareableHandle))                        \
  entry(mem_address_reserve, SYMM_GPU_DRIVER_NAME(MemAddressReserve))                        \
  entry(mem_address_free, SYMM_GPU_DRIVER_NAME(MemAddressFree))                              \
  entry(mem_map, SYMM_GPU_DRIVER_NAME(MemMap))                                               \
  entry(mem_unmap, SYMM_GPU_DRIVER_NAME(MemUnmap))                                           \
  entry(mem_set_access, SYMM_GPU_DRIVER_NAME(MemSetAccess))
// clang-format on

#if SYMM_GPU_HIP
#include "kernels/gpu/vendor/gpu_driver_hip.hpp"
#else
#define SYMM_GPU_DRIVER_NAME(name) cu##name

#include <cstddef>
#include <cstdint>
#include <string>

namespace symm {

using gpuResult_t = CUresult;
using gpuContext_t = CUcontext;
using gpuDevice_t = CUdevice;
using gpuDevicePointer_t = CUdeviceptr;
using gpuUuid_t = CUuuid;
using gpuMemHandle_t = CUmemGenericAllocationHandle;
using gpuMemAllocationProp = CUmemAllocationProp;
using gpuMemAccessDesc = CUmemAccessDesc;
using gpuFabricHandle = CUmemFabricHandle;
using gpuMemHandleType = CUmemAllocationHandleType;
using gpuMulticastObjectProp = CUmulticastObjectProp;
using gpuDeviceAttribute = CUdevice_attribute;
using gpuLinkAttribute = CUdevice_P2PAttribute;
using gpuDriverStream_t = CUstream;
using gpuThreadCaptureMode = CUstreamCaptureMode;

inline constexpr gpuResult_t gpuDriverSuccess = CUDA_SUCCESS;
inline constexpr gpuResult_t gpuDriverNoDevice = CUDA_ERROR_NO_DEVICE;
inline constexpr gpuResult_t gpuDriverInvalidValue = CUDA_ERROR_INVALID_VALUE;
inline constexpr gpuResult_t gpuDriverInvalidHandle = CUDA_ERROR_INVALID_HANDLE;
inline constexpr gpuResult_t gpuDriverOutOfMemory = CUDA_ERROR_OUT_OF_MEMORY;

// The allocation properties of symmetric memory.
inline constexpr auto gpuMemAllocationType = CU_MEM_ALLOCATION_TYPE_PINNED;
inline constexpr auto gpuMemLocationTypeDevice = CU_MEM_LOCATION_TYPE_DEVICE;
inline constexpr auto gpuMemAccessReadWrite = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
inline constexpr auto gpuMemGranularityMinimum = CU_MEM_ALLOC_GRANULARITY_MINIMUM;
inline constexpr auto gpuMemHandlePosix = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
inline constexpr auto gpuMemHandleFabric = CU_MEM_HANDLE_TYPE_FABRIC;

inline constexpr auto gpuMulticastGranularityMinimum = CU_MULTICAST_GRANULARITY_MINIMUM;

inline constexpr auto gpuThreadCaptureRelaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
inline constexpr unsigned gpuDriverStreamNonBlocking = CU_STREAM_NON_BLOCKING;

inline constexpr auto gpuAttributeVmm = CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
inline constexpr auto gpuAttributePosixHandles =
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
inline constexpr auto gpuAttributeFabricHandles = CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED;
inline constexpr auto gpuAttributeMulticast = CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED;
inline constexpr auto gpuAttributeMultiprocessors = CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
inline constexpr auto gpuAttributeMajor = CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
inline constexpr auto gpuAttributeMinor = CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR;
// Between two GPUs: 1 where one can do atomic operations in the other's memory, which on NVIDIA's
// takes NVLink all the way.
inline constexpr auto gpuLinkHasAtomics = CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;

inline gpuDevicePointer_t gpu_device_pointer(const std::byte* pointer) {
  return reinterpret_cast<gpuDevicePointer_t>(pointer);
}
inline std::byte* gpu_host_pointer(gpuDevicePointer_t pointer) {
  return reinterpret_cast<std::byte*>(pointer);
}
inline void gpu_request_handles(gpuMemAllocationProp& properties, gpuMemHandleType types) {
  properties.requestedHandleTypes = types;
}
inline gpuMemHandleType gpu_requested_handles(const gpuMemAllocationProp& properties) {
  return properties.requestedHandleTypes;
}
// True where the driver has contexts: a thread has one of them current, or none.
inline constexpr bool kGpuHasContexts = true;
// The reason that symm cannot use the driver in this process, or "".
inline std::string gpu_driver_conflict() { return ""; }
// The reason that a device cannot hold symmetric memory although it has virtual memory management,
// or "".
inline std::string gpu_memory_problem(gpuDevice_t) { return ""; }

}  // namespace symm

// entry(name of symm, name of the vendor); entries of symm's own are functions of this header.
#define SYMM_GPU_DRIVER_OWN_ENTRIES(entry)
// clang-format off
#define SYMM_GPU_DRIVER_ENTRIES(entry)                        \
  SYMM_GPU_DRIVER_SHARED(entry)                               \
  entry(driver_get_version, cuDriverGetVersion)               \
  entry(init, cuInit)                                         \
  entry(get_error_name, cuGetErrorName)                       \
  entry(get_error_string, cuGetErrorString)                   \
  entry(device_get_count, cuDeviceGetCount)                   \
  entry(device_get_attribute, cuDeviceGetAttribute)           \
  entry(device_get_link, cuDeviceGetP2PAttribute)             \
  entry(primary_context_retain, cuDevicePrimaryCtxRetain)     \
  entry(context_get_current, cuCtxGetCurrent)                 \
  entry(context_push, cuCtxPushCurrent)                       \
  entry(context_pop, cuCtxPopCurrent)                         \
  entry(context_synchronize, cuCtxSynchronize)                \
  entry(stream_create, cuStreamCreate)                        \
  entry(mem_import, cuMemImportFromShareableHandle)           \
  entry(multicast_get_granularity, cuMulticastGetGranularity) \
  entry(multicast_create, cuMulticastCreate)                  \
  entry(multicast_add_device, cuMulticastAddDevice)           \
  entry(multicast_bind_memory, cuMulticastBindMem)            \
  entry(multicast_unbind, cuMulticastUnbind)
// clang-format on

#endif
