// One name for what CUDA and HIP call differently: the runtime's types and calls, and the few
// things that device code says in a vendor's words. Below this header, device and host sources of
// the GPU are the same for both.
#pragma once

#include <cstdint>

#include "kernels/core/platform.hpp"

#if defined(__HIP__) || defined(__HIP_PLATFORM_AMD__)
#include <hip/hip_runtime.h>
#define SYMM_GPU_HIP 1
#define SYMM_GPU_NAME(name) hip##name
#else
#include <cuda_runtime.h>
#define SYMM_GPU_HIP 0
#define SYMM_GPU_NAME(name) cuda##name
#endif

namespace symm {

using gpuError_t = SYMM_GPU_NAME(Error_t);
using gpuStream_t = SYMM_GPU_NAME(Stream_t);
using gpuEvent_t = SYMM_GPU_NAME(Event_t);
using gpuMemcpyKind = SYMM_GPU_NAME(MemcpyKind);
using gpuStreamCaptureStatus = SYMM_GPU_NAME(StreamCaptureStatus);
using gpuStreamCaptureMode = SYMM_GPU_NAME(StreamCaptureMode);
using gpuFuncAttributes = SYMM_GPU_NAME(FuncAttributes);

inline constexpr gpuError_t gpuSuccess = SYMM_GPU_NAME(Success);

inline const char* gpuGetErrorString(gpuError_t error) {
  return SYMM_GPU_NAME(GetErrorString)(error);
}
inline gpuError_t gpuGetLastError() { return SYMM_GPU_NAME(GetLastError)(); }
inline gpuError_t gpuGetDevice(int* device) { return SYMM_GPU_NAME(GetDevice)(device); }
inline gpuError_t gpuSetDevice(int device) { return SYMM_GPU_NAME(SetDevice)(device); }
inline gpuError_t gpuDeviceSynchronize() { return SYMM_GPU_NAME(DeviceSynchronize)(); }
inline gpuError_t gpuMemcpy(void* destination, const void* source, std::size_t bytes,
                            gpuMemcpyKind kind) {
  return SYMM_GPU_NAME(Memcpy)(destination, source, bytes, kind);
}
inline gpuError_t gpuMemcpyAsync(void* destination, const void* source, std::size_t bytes,
                                 gpuMemcpyKind kind, gpuStream_t stream) {
  return SYMM_GPU_NAME(MemcpyAsync)(destination, source, bytes, kind, stream);
}
inline gpuError_t gpuStreamCreateNonBlocking(gpuStream_t* stream) {
  return SYMM_GPU_NAME(StreamCreateWithFlags)(stream, SYMM_GPU_NAME(StreamNonBlocking));
}
inline gpuError_t gpuStreamDestroy(gpuStream_t stream) {
  return SYMM_GPU_NAME(StreamDestroy)(stream);
}
inline gpuError_t gpuStreamSynchronize(gpuStream_t stream) {
  return SYMM_GPU_NAME(StreamSynchronize)(stream);
}
inline gpuError_t gpuStreamGetCaptureInfo(gpuStream_t stream, gpuStreamCaptureStatus* status,
                                          unsigned long long* id) {
  return SYMM_GPU_NAME(StreamGetCaptureInfo)(stream, status, id);
}
inline gpuError_t gpuThreadExchangeStreamCaptureMode(gpuStreamCaptureMode* mode) {
  return SYMM_GPU_NAME(ThreadExchangeStreamCaptureMode)(mode);
}
inline gpuError_t gpuStreamWaitEvent(gpuStream_t stream, gpuEvent_t event) {
  return SYMM_GPU_NAME(StreamWaitEvent)(stream, event, 0);
}
inline gpuError_t gpuEventCreateUntimed(gpuEvent_t* event) {
  return SYMM_GPU_NAME(EventCreateWithFlags)(event, SYMM_GPU_NAME(EventDisableTiming));
}
inline gpuError_t gpuEventDestroy(gpuEvent_t event) { return SYMM_GPU_NAME(EventDestroy)(event); }
inline gpuError_t gpuEventRecord(gpuEvent_t event, gpuStream_t stream) {
  return SYMM_GPU_NAME(EventRecord)(event, stream);
}
inline gpuError_t gpuHostRegisterMapped(void* memory, std::size_t bytes) {
  return SYMM_GPU_NAME(HostRegister)(
      memory, bytes, SYMM_GPU_NAME(HostRegisterMapped) | SYMM_GPU_NAME(HostRegisterPortable));
}
inline gpuError_t gpuHostUnregister(void* memory) { return SYMM_GPU_NAME(HostUnregister)(memory); }
inline gpuError_t gpuHostGetDevicePointer(void** device, void* host) {
  return SYMM_GPU_NAME(HostGetDevicePointer)(device, host, 0);
}
inline gpuError_t gpuFuncGetAttributes(gpuFuncAttributes* attributes, const void* function) {
  return SYMM_GPU_NAME(FuncGetAttributes)(attributes, function);
}
inline gpuError_t gpuLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                                  std::size_t shared_bytes, gpuStream_t stream) {
  return SYMM_GPU_NAME(LaunchKernel)(function, grid, block, arguments, shared_bytes, stream);
}

inline constexpr auto gpuStreamCaptureStatusNone = SYMM_GPU_NAME(StreamCaptureStatusNone);
inline constexpr auto gpuStreamCaptureStatusActive = SYMM_GPU_NAME(StreamCaptureStatusActive);
inline constexpr auto gpuStreamCaptureModeRelaxed = SYMM_GPU_NAME(StreamCaptureModeRelaxed);
inline constexpr auto gpuErrorStreamCaptureImplicit = SYMM_GPU_NAME(ErrorStreamCaptureImplicit);

inline constexpr gpuMemcpyKind gpuMemcpyHostToDevice = SYMM_GPU_NAME(MemcpyHostToDevice);
inline constexpr gpuMemcpyKind gpuMemcpyDeviceToDevice = SYMM_GPU_NAME(MemcpyDeviceToDevice);

}  // namespace symm

// The device being compiled for has loads and stores on multicast addresses.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define SYMM_MULTIMEM 1
#else
#define SYMM_MULTIMEM 0
#endif

#if SYMM_GPU_COMPILER

// SYMM_GRID_CONSTANT: a parameter that is read where the launch put it, without a copy of a
// thread's own. SYMM_LAUNCH_BOUNDS: threads of a block, and blocks that must fit on one
// multiprocessor together (HIP's own second argument counts something else).
#if SYMM_GPU_HIP
#define SYMM_GRID_CONSTANT
#define SYMM_LAUNCH_BOUNDS(threads, blocks) __launch_bounds__(threads)
#else
#define SYMM_GRID_CONSTANT __grid_constant__
#define SYMM_LAUNCH_BOUNDS(threads, blocks) __launch_bounds__(threads, blocks)
#endif

namespace symm {

// Nanoseconds of a clock that all blocks share.
__device__ inline std::uint64_t device_clock_ns() {
#if SYMM_DEVICE_PASS && SYMM_GPU_HIP
  return __builtin_amdgcn_s_memrealtime() * 10;  // counts at 100 MHz
#elif SYMM_DEVICE_PASS
  std::uint64_t value;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value));
  return value;
#else
  return 0;
#endif
}

}  // namespace symm

#endif
