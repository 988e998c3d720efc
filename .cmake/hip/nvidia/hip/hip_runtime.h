// Stands before HIP's own <hip/hip_runtime.h> where the host code of symm is compiled for an NVIDIA
// GPU (SYMM_HIP_PLATFORM=nvidia): with it the headers of HIP 5.2 compile beside CUDA 13, and what
// HIP 7 has beyond them is there, over the driver of CUDA.
//
// Only for running the host code of libsymm_hip where no AMD GPU is. HIP_VERSION_MAJOR says 7, as
// what is added here behaves as in HIP 7.1; versions that calls tell at run time are CUDA's.
#pragma once

#include <cuda.h>
#include <cuda_fp16.h>
#include <cuda_profiler_api.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstring>

// CUDA 13 no longer has these, or has them with other parameters. HIP's functions that name them
// compile, and fail where called.
struct SymmHipDeviceProp : cudaDeviceProp {
  int clockRate, memoryClockRate, computeMode;
  int cooperativeMultiDeviceLaunch, kernelExecTimeoutEnabled;
};
template <class, int, cudaTextureReadMode>
struct texture;
#pragma push_macro("cuCtxCreate")
#undef cuCtxCreate
#define cuCtxCreate(...) CUDA_ERROR_NOT_SUPPORTED
#define cudaDeviceProp SymmHipDeviceProp
#define cudaDevAttrCooperativeMultiDeviceLaunch cudaDevAttrCooperativeLaunch
#define cudaBindTexture(...) cudaErrorNotSupported
#define cudaBindTexture2D(...) cudaErrorNotSupported
#define cudaGetTextureAlignmentOffset(...) cudaErrorNotSupported
#define cudaGraphAddDependencies(...) cudaErrorNotSupported
#define cudaGraphExecUpdate(...) cudaErrorNotSupported
#define cudaGraphGetEdges(...) cudaErrorNotSupported
#define cudaGraphNodeGetDependencies(...) cudaErrorNotSupported
#define cudaGraphNodeGetDependentNodes(...) cudaErrorNotSupported
#define cudaGraphRemoveDependencies(...) cudaErrorNotSupported
#define cudaLaunchCooperativeKernelMultiDevice(...) cudaErrorNotSupported
#define cudaMemAdvise(...) cudaErrorNotSupported
#define cudaMemPrefetchAsync(...) cudaErrorNotSupported
#define cudaStreamGetCaptureInfo_v2(...) cudaErrorNotSupported
#define cudaStreamUpdateCaptureDependencies(...) cudaErrorNotSupported
// Replaced below.
#define hipDeviceGetAttribute hipDeviceGetAttributeOfHip5
#define hipDeviceGetUuid hipDeviceGetUuidOfHip5
#define hipGetDeviceProperties hipGetDevicePropertiesOfHip5

// Captures and graphs are there for nvcc alone, though nothing in them needs it.
#if !defined(__CUDACC__)
#define __CUDACC__
#include <hip/hip_runtime_api.h>
#undef __CUDACC__
#endif
#include_next <hip/hip_runtime.h>

#undef hipGetDeviceProperties
#undef hipDeviceGetUuid
#undef hipDeviceGetAttribute
#undef cudaStreamUpdateCaptureDependencies
#undef cudaStreamGetCaptureInfo_v2
#undef cudaMemPrefetchAsync
#undef cudaMemAdvise
#undef cudaLaunchCooperativeKernelMultiDevice
#undef cudaGraphRemoveDependencies
#undef cudaGraphNodeGetDependentNodes
#undef cudaGraphNodeGetDependencies
#undef cudaGraphGetEdges
#undef cudaGraphExecUpdate
#undef cudaGraphAddDependencies
#undef cudaGetTextureAlignmentOffset
#undef cudaBindTexture2D
#undef cudaBindTexture
#undef cudaDevAttrCooperativeMultiDeviceLaunch
#undef cudaDeviceProp
#undef cuCtxCreate
#pragma pop_macro("cuCtxCreate")

// HIP's headers say that they compile for a device wherever nvcc does; symm takes it for AMD's.
#undef __HIP_DEVICE_COMPILE__
#undef __shfl
#undef __shfl_up
#undef __shfl_down
#undef __shfl_xor
#undef HIP_VERSION_MAJOR
#define HIP_VERSION_MAJOR 7

// The attributes of HIP 5.2 and one more.
enum SymmHipAttribute { hipDeviceAttributeVirtualMemoryManagementSupported };
inline hipError_t hipDeviceGetAttribute(int* value, hipDeviceAttribute_t which, int device) {
  return hipDeviceGetAttributeOfHip5(value, which, device);
}
inline hipError_t hipDeviceGetAttribute(int* value, SymmHipAttribute, int device) {
  return hipCUResultTohipError(
      cuDeviceGetAttribute(value, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device));
}

// HIP 5.2 copies a UUID as a string, of which a zero is the end.
inline hipError_t hipDeviceGetUuid(hipUUID* uuid, hipDevice_t device) {
  CUuuid found{};
  const hipError_t result = hipCUResultTohipError(cuDeviceGetUuid(&found, device));
  static_assert(sizeof(found) == sizeof(*uuid));
  if (result == hipSuccess) std::memcpy(uuid, &found, sizeof(found));
  return result;
}

// HIP 5.2 leaves the UUID out of what it copies.
inline hipError_t hipGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return hipCUDAErrorTohipError(cudaGetDeviceProperties(properties, device));
}

inline hipError_t hipThreadExchangeStreamCaptureMode(hipStreamCaptureMode* mode) {
  return hipCUDAErrorTohipError(cudaThreadExchangeStreamCaptureMode(mode));
}
inline hipError_t hipLaunchHostFunc(hipStream_t stream, hipHostFn_t function, void* argument) {
  return hipCUDAErrorTohipError(cudaLaunchHostFunc(stream, function, argument));
}

// Virtual memory management.
using hipMemAllocationType = cudaMemAllocationType;
inline constexpr auto hipMemLocationTypeDevice = cudaMemLocationTypeDevice;
inline constexpr auto hipMemAccessFlagsProtReadWrite = cudaMemAccessFlagsProtReadWrite;
inline constexpr auto hipMemHandleTypePosixFileDescriptor = cudaMemHandleTypePosixFileDescriptor;
enum hipMemAllocationGranularity_flags {
  hipMemAllocationGranularityMinimum = CU_MEM_ALLOC_GRANULARITY_MINIMUM,
  hipMemAllocationGranularityRecommended = CU_MEM_ALLOC_GRANULARITY_RECOMMENDED,
};
using hipMemGenericAllocationHandle_t = struct SymmHipAllocation*;
struct hipMemAllocationProp {
  hipMemAllocationType type;
  hipMemAllocationHandleType requestedHandleTypes;
  hipMemLocation location;
  void* win32HandleMetaData;
};

namespace symm_hip {

inline CUmemGenericAllocationHandle number_of(hipMemGenericAllocationHandle_t handle) {
  return reinterpret_cast<CUmemGenericAllocationHandle>(handle);
}
inline hipMemGenericAllocationHandle_t handle_of(CUmemGenericAllocationHandle number) {
  return reinterpret_cast<hipMemGenericAllocationHandle_t>(number);
}
// Uncached memory is what accesses of a peer's kernels always see: on NVIDIA all memory.
inline constexpr auto kUncached = static_cast<hipMemAllocationType>(0x40000000);
inline CUmemAllocationProp properties_of(const hipMemAllocationProp& properties) {
  CUmemAllocationProp wanted{};
  wanted.type = properties.type == kUncached ? CU_MEM_ALLOCATION_TYPE_PINNED
                                             : static_cast<CUmemAllocationType>(properties.type);
  wanted.requestedHandleTypes =
      static_cast<CUmemAllocationHandleType>(properties.requestedHandleTypes);
  wanted.location.type = static_cast<CUmemLocationType>(properties.location.type);
  wanted.location.id = properties.location.id;
  return wanted;
}

}  // namespace symm_hip

inline hipError_t hipMemGetAllocationGranularity(std::size_t* granularity,
                                                 const hipMemAllocationProp* properties,
                                                 hipMemAllocationGranularity_flags option) {
  const CUmemAllocationProp wanted = symm_hip::properties_of(*properties);
  return hipCUResultTohipError(cuMemGetAllocationGranularity(
      granularity, &wanted, static_cast<CUmemAllocationGranularity_flags>(option)));
}
inline hipError_t hipMemCreate(hipMemGenericAllocationHandle_t* handle, std::size_t bytes,
                               const hipMemAllocationProp* properties, unsigned long long flags) {
  const CUmemAllocationProp wanted = symm_hip::properties_of(*properties);
  CUmemGenericAllocationHandle number = 0;
  const hipError_t result = hipCUResultTohipError(cuMemCreate(&number, bytes, &wanted, flags));
  if (result == hipSuccess) *handle = symm_hip::handle_of(number);
  return result;
}
inline hipError_t hipMemRelease(hipMemGenericAllocationHandle_t handle) {
  return hipCUResultTohipError(cuMemRelease(symm_hip::number_of(handle)));
}
inline hipError_t hipMemRetainAllocationHandle(hipMemGenericAllocationHandle_t* handle,
                                               void* address) {
  CUmemGenericAllocationHandle number = 0;
  const hipError_t result = hipCUResultTohipError(cuMemRetainAllocationHandle(&number, address));
  if (result == hipSuccess) *handle = symm_hip::handle_of(number);
  return result;
}
inline hipError_t hipMemGetAllocationPropertiesFromHandle(hipMemAllocationProp* properties,
                                                          hipMemGenericAllocationHandle_t handle) {
  CUmemAllocationProp found{};
  const hipError_t result = hipCUResultTohipError(
      cuMemGetAllocationPropertiesFromHandle(&found, symm_hip::number_of(handle)));
  if (result != hipSuccess) return result;
  properties->type = found.type == CU_MEM_ALLOCATION_TYPE_PINNED
                         ? symm_hip::kUncached
                         : static_cast<hipMemAllocationType>(found.type);
  properties->requestedHandleTypes =
      static_cast<hipMemAllocationHandleType>(found.requestedHandleTypes);
  properties->location.type = static_cast<cudaMemLocationType>(found.location.type);
  properties->location.id = found.location.id;
  properties->win32HandleMetaData = nullptr;
  return hipSuccess;
}
inline hipError_t hipMemExportToShareableHandle(void* shareable,
                                                hipMemGenericAllocationHandle_t handle,
                                                hipMemAllocationHandleType type,
                                                unsigned long long flags) {
  return hipCUResultTohipError(cuMemExportToShareableHandle(
      shareable, symm_hip::number_of(handle), static_cast<CUmemAllocationHandleType>(type), flags));
}
inline hipError_t hipMemImportFromShareableHandle(hipMemGenericAllocationHandle_t* handle,
                                                  void* shareable,
                                                  hipMemAllocationHandleType type) {
  CUmemGenericAllocationHandle number = 0;
  const hipError_t result = hipCUResultTohipError(cuMemImportFromShareableHandle(
      &number, shareable, static_cast<CUmemAllocationHandleType>(type)));
  if (result == hipSuccess) *handle = symm_hip::handle_of(number);
  return result;
}
inline hipError_t hipMemAddressReserve(hipDeviceptr_t* base, std::size_t bytes,
                                       std::size_t alignment, hipDeviceptr_t wish,
                                       unsigned long long flags) {
  return hipCUResultTohipError(cuMemAddressReserve(base, bytes, alignment, wish, flags));
}
inline hipError_t hipMemAddressFree(hipDeviceptr_t base, std::size_t bytes) {
  return hipCUResultTohipError(cuMemAddressFree(base, bytes));
}
inline hipError_t hipMemMap(hipDeviceptr_t base, std::size_t bytes, std::size_t offset,
                            hipMemGenericAllocationHandle_t handle, unsigned long long flags) {
  return hipCUResultTohipError(cuMemMap(base, bytes, offset, symm_hip::number_of(handle), flags));
}
inline hipError_t hipMemUnmap(hipDeviceptr_t base, std::size_t bytes) {
  return hipCUResultTohipError(cuMemUnmap(base, bytes));
}
inline hipError_t hipMemSetAccess(hipDeviceptr_t base, std::size_t bytes,
                                  const hipMemAccessDesc* access, std::size_t count) {
  CUmemAccessDesc granted{};
  for (std::size_t i = 0; i < count; ++i) {
    granted.location.type = static_cast<CUmemLocationType>(access[i].location.type);
    granted.location.id = access[i].location.id;
    granted.flags = static_cast<CUmemAccess_flags>(access[i].flags);
    const hipError_t result = hipCUResultTohipError(cuMemSetAccess(base, bytes, &granted, 1));
    if (result != hipSuccess) return result;
  }
  return hipSuccess;
}
