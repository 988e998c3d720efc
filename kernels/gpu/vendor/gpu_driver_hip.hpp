// HIP's half of gpu_driver_api.hpp, which includes it. HIP has one library for what CUDA divides
// into a runtime and a driver; this header supplies what it lacks or does differently.
//
// NOTE [Memory on AMD]
// By HIP's documents, memory of a GPU is coherent with others while kernels run only where it is
// fine-grained, which many GPUs implement by not caching it; other memory is coherent after a
// synchronization by the host. Flags, tiles and the data of peers are all read while kernels
// run. hipMemCreate allocates memory of the second kind, but HIP 7 has the type uncached, which the
// runtime's source allocates with the flags of fine-grained and of uncached memory. So all
// symmetric memory is of that type. A runtime without it is refused, and memory of another library
// that is not of that type is not shared in place. That a GPU behaves as the documents say has not
// been seen: no AMD kernel has been run.
//
// Host only; owns nothing.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/gpu/vendor/gpu_api.hpp"

namespace symm {

using gpuResult_t = hipError_t;
// Contexts are devices here: HIP has no contexts of its own.
using gpuContext_t = struct HipDeviceContext*;
using gpuDevice_t = hipDevice_t;
using gpuDevicePointer_t = hipDeviceptr_t;
using gpuUuid_t = hipUUID;
using gpuMemHandle_t = hipMemGenericAllocationHandle_t;
using gpuMemAllocationProp = hipMemAllocationProp;
using gpuMemAccessDesc = hipMemAccessDesc;
using gpuMemHandleType = hipMemAllocationHandleType;
using gpuDriverStream_t = hipStream_t;
using gpuThreadCaptureMode = hipStreamCaptureMode;

struct gpuFabricHandle {
  unsigned char bytes[64];
};
struct gpuMulticastObjectProp {
  unsigned numDevices;
  std::size_t size;
  unsigned long long handleTypes;
};
// The device attributes that symm reads; hip_device_get_attribute() maps them to HIP's.
enum gpuDeviceAttribute {
  gpuAttributeVmm,
  gpuAttributePosixHandles,
  gpuAttributeFabricHandles,
  gpuAttributeMulticast,
  gpuAttributeMultiprocessors,
  gpuAttributeMajor,
  gpuAttributeMinor,
};
using gpuLinkAttribute = hipDeviceP2PAttr;
inline constexpr auto gpuLinkHasAtomics = hipDevP2PAttrNativeAtomicSupported;

inline constexpr gpuResult_t gpuDriverSuccess = hipSuccess;
inline constexpr gpuResult_t gpuDriverNoDevice = hipErrorNoDevice;
inline constexpr gpuResult_t gpuDriverInvalidValue = hipErrorInvalidValue;
inline constexpr gpuResult_t gpuDriverInvalidHandle = hipErrorInvalidHandle;
inline constexpr gpuResult_t gpuDriverOutOfMemory = hipErrorOutOfMemory;

// hipMemAllocationTypeUncached, which older headers lack.
inline constexpr auto gpuMemAllocationType = static_cast<hipMemAllocationType>(0x40000000);
inline constexpr auto gpuMemLocationTypeDevice = hipMemLocationTypeDevice;
inline constexpr auto gpuMemAccessReadWrite = hipMemAccessFlagsProtReadWrite;
inline constexpr auto gpuMemGranularityMinimum = hipMemAllocationGranularityMinimum;
inline constexpr auto gpuMemHandlePosix = hipMemHandleTypePosixFileDescriptor;
inline constexpr auto gpuMemHandleFabric = static_cast<hipMemAllocationHandleType>(8);
inline constexpr unsigned gpuMulticastGranularityMinimum = 0;

inline constexpr auto gpuThreadCaptureRelaxed = hipStreamCaptureModeRelaxed;
inline constexpr unsigned gpuDriverStreamNonBlocking = hipStreamNonBlocking;

// On NVIDIA these are the driver's, in gpu_driver_api.hpp; HIP reports CUDA's version there, which
// is later than any that is compared with it.
#if SYMM_GPU_AMD
#define SYMM_HIP_TEXT_OF(value) #value
#define SYMM_HIP_TEXT(value) SYMM_HIP_TEXT_OF(value)
inline constexpr char kGpuDriverName[] = "the HIP runtime";
inline constexpr char kGpuDriverFile[] = "libamdhip64.so." SYMM_HIP_TEXT(HIP_VERSION_MAJOR);
inline constexpr char kGpuVersionEntry[] = "hipRuntimeGetVersion";
inline constexpr char kGpuVisibility[] = "HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES";
inline constexpr char kGpuVersionName[] = "HIP";
#undef SYMM_HIP_TEXT
#undef SYMM_HIP_TEXT_OF
inline constexpr int kGpuVersionMajor = 10'000'000;
inline constexpr int kGpuVersionMinor = 100'000;
// Structures change their layout from one major version to the next.
inline constexpr int kGpuDriverNeeded = HIP_VERSION_MAJOR * kGpuVersionMajor;
inline constexpr bool kGpuDriverServesOlderBuilds = false;
#endif
inline constexpr bool kGpuHasContexts = false;

inline gpuDevicePointer_t gpu_device_pointer(const std::byte* pointer) {
  return reinterpret_cast<gpuDevicePointer_t>(const_cast<std::byte*>(pointer));
}
inline std::byte* gpu_host_pointer(gpuDevicePointer_t pointer) {
  return reinterpret_cast<std::byte*>(pointer);
}
inline void gpu_request_handles(gpuMemAllocationProp& properties, gpuMemHandleType types) {
#if HIP_VERSION_MAJOR >= 7
  properties.requestedHandleTypes = types;
#else
  properties.requestedHandleType = types;
#endif
}
inline gpuMemHandleType gpu_requested_handles(const gpuMemAllocationProp& properties) {
#if HIP_VERSION_MAJOR >= 7
  return properties.requestedHandleTypes;
#else
  return properties.requestedHandleType;
#endif
}

namespace hip {

inline constexpr int kFirstWithPlainDescriptors = 7 * kGpuVersionMajor + kGpuVersionMinor;

inline int runtime_version() {
  int version = 0;
  return hipRuntimeGetVersion(&version) == hipSuccess ? version : 0;
}

// Without a device hipInit() reports an invalid argument.
inline gpuResult_t init(unsigned flags) {
  int count = 0;
  const gpuResult_t result = hipGetDeviceCount(&count);
  if (result != hipSuccess) return result;
  return count < 1 ? hipErrorNoDevice : hipInit(flags);
}

inline gpuResult_t get_error_name(gpuResult_t result, const char** name) {
  *name = hipGetErrorName(result);
  return hipSuccess;
}
inline gpuResult_t get_error_string(gpuResult_t result, const char** text) {
  *text = hipGetErrorString(result);
  return hipSuccess;
}

inline gpuResult_t device_get_attribute(int* value, gpuDeviceAttribute which, gpuDevice_t device) {
  *value = 0;
  switch (which) {
    case gpuAttributeVmm:
    case gpuAttributePosixHandles:
#if HIP_VERSION_MAJOR >= 6
      return hipDeviceGetAttribute(value, hipDeviceAttributeVirtualMemoryManagementSupported,
                                   device);
#else
      return hipSuccess;  // declared in the header, but not implemented on Linux
#endif
    case gpuAttributeFabricHandles:
    case gpuAttributeMulticast:
      return hipSuccess;
    case gpuAttributeMultiprocessors:
      return hipDeviceGetAttribute(value, hipDeviceAttributeMultiprocessorCount, device);
    case gpuAttributeMajor:
      return hipDeviceGetAttribute(value, hipDeviceAttributeComputeCapabilityMajor, device);
    case gpuAttributeMinor:
      return hipDeviceGetAttribute(value, hipDeviceAttributeComputeCapabilityMinor, device);
  }
  return hipErrorInvalidValue;
}

// The devices that were current before a push.
inline std::vector<int>& devices_before() {
  thread_local std::vector<int> devices;
  return devices;
}
inline gpuContext_t context_of(int device) {
  return reinterpret_cast<gpuContext_t>(static_cast<std::uintptr_t>(device) + 1);
}
inline gpuResult_t primary_context_retain(gpuContext_t* context, gpuDevice_t device) {
  *context = context_of(device);
  return hipSuccess;
}
inline gpuResult_t context_get_current(gpuContext_t* context) {
  int device = 0;
  const gpuResult_t result = hipGetDevice(&device);
  *context = result == hipSuccess ? context_of(device) : nullptr;
  return result;
}
inline gpuResult_t context_push(gpuContext_t context) {
  int before = 0;
  gpuResult_t result = hipGetDevice(&before);
  if (result != hipSuccess) return result;
  result = hipSetDevice(static_cast<int>(reinterpret_cast<std::uintptr_t>(context) - 1));
  if (result == hipSuccess) devices_before().push_back(before);
  return result;
}
inline gpuResult_t context_pop(gpuContext_t* context) {
  std::vector<int>& before = devices_before();
  if (before.empty()) return hipErrorInvalidContext;
  static_cast<void>(context_get_current(context));
  const int device = before.back();
  before.pop_back();
  return hipSetDevice(device);
}

// Before 7.1 a descriptor is given by its address.
inline gpuResult_t mem_import(gpuMemHandle_t* handle, void* shareable, gpuMemHandleType type) {
  int descriptor = static_cast<int>(reinterpret_cast<std::uintptr_t>(shareable));
  if (type == gpuMemHandlePosix && runtime_version() < kFirstWithPlainDescriptors) {
    shareable = &descriptor;
  }
  return hipMemImportFromShareableHandle(handle, shareable, type);
}

// The calls on multicast objects.
inline gpuResult_t not_supported(...) { return hipErrorNotSupported; }

}  // namespace hip

// Two runtimes in one process do not know each other's memory and streams: PyTorch may load one of
// another version than the one that symm was built with.
inline std::string gpu_driver_conflict() {
  for (int major = 4; major < 100; ++major) {
    if (major == HIP_VERSION_MAJOR) continue;
    const std::string file = "libamdhip64.so." + std::to_string(major);
    void* const loaded = ::dlopen(file.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (loaded == nullptr) continue;
    ::dlclose(loaded);
    return "this process uses " + file + ", and this build of symm is for " + kGpuDriverFile +
           "; build symm with the HIP that PyTorch uses";
  }
  return "";
}

// The reason that `device` cannot hold symmetric memory although it has virtual memory management,
// or "".
inline std::string gpu_memory_problem(gpuDevice_t device) {
  gpuMemAllocationProp properties{};
  properties.type = gpuMemAllocationType;
  properties.location.type = gpuMemLocationTypeDevice;
  properties.location.id = device;
  std::size_t granularity = 0;
  if (hipMemGetAllocationGranularity(&granularity, &properties, gpuMemGranularityMinimum) ==
      hipSuccess) {
    return "";
  }
  return "its HIP runtime makes no uncached memory that can be shared; HIP does so since version 7";
}

}  // namespace symm

// clang-format off
#define SYMM_GPU_DRIVER_NAME(name) hip##name
#define SYMM_HIP_ENTRIES(entry)                    \
  SYMM_GPU_DRIVER_SHARED(entry)                    \
  entry(device_get_count, hipGetDeviceCount)       \
  entry(context_synchronize, hipDeviceSynchronize) \
  entry(device_get_link, hipDeviceGetP2PAttribute) \
  entry(stream_create, hipStreamCreateWithFlags)
#define SYMM_HIP_OWN_ENTRIES(entry)                          \
  entry(init, hip::init)                                     \
  entry(get_error_name, hip::get_error_name)                 \
  entry(get_error_string, hip::get_error_string)             \
  entry(device_get_attribute, hip::device_get_attribute)     \
  entry(primary_context_retain, hip::primary_context_retain) \
  entry(context_get_current, hip::context_get_current)       \
  entry(context_push, hip::context_push)                     \
  entry(context_pop, hip::context_pop)                       \
  entry(mem_import, hip::mem_import)                         \
  entry(multicast_get_granularity, hip::not_supported)       \
  entry(multicast_create, hip::not_supported)                \
  entry(multicast_add_device, hip::not_supported)            \
  entry(multicast_bind_memory, hip::not_supported)           \
  entry(multicast_unbind, hip::not_supported)
#if SYMM_GPU_AMD
#define SYMM_GPU_DRIVER_ENTRIES(entry)            \
  entry(driver_get_version, hipRuntimeGetVersion) \
  SYMM_HIP_ENTRIES(entry)
#define SYMM_GPU_DRIVER_OWN_ENTRIES(entry) SYMM_HIP_OWN_ENTRIES(entry)
#else
// HIP's functions are inline there and no library has them.
#define SYMM_GPU_DRIVER_ENTRIES(entry)
#define SYMM_GPU_DRIVER_OWN_ENTRIES(entry)       \
  entry(driver_get_version, hipDriverGetVersion) \
  SYMM_HIP_ENTRIES(entry)                        \
  SYMM_HIP_OWN_ENTRIES(entry)
#endif
// clang-format on
