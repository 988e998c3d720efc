// What only tests call of the GPU's runtime, under one name for each vendor; see gpu_api.hpp.
#pragma once

#include <cstddef>

#include "kernels/gpu/vendor/gpu_api.hpp"

namespace symm::test {

using gpuGraph_t = SYMM_GPU_NAME(Graph_t);
using gpuGraphExec_t = SYMM_GPU_NAME(GraphExec_t);

inline constexpr gpuMemcpyKind gpuMemcpyDefault = SYMM_GPU_NAME(MemcpyDefault);
inline constexpr auto gpuStreamCaptureModeThreadLocal = SYMM_GPU_NAME(StreamCaptureModeThreadLocal);

SYMM_GPU_CALL(Memcpy)
SYMM_GPU_CALL(MemGetInfo)
inline gpuError_t gpuGetDeviceCount(int* count) { return SYMM_GPU_NAME(GetDeviceCount)(count); }
inline gpuError_t gpuMalloc(void** memory, std::size_t bytes) {
  return SYMM_GPU_NAME(Malloc)(memory, bytes);
}
inline gpuError_t gpuFree(void* memory) { return SYMM_GPU_NAME(Free)(memory); }
inline gpuError_t gpuMemset(void* memory, int value, std::size_t bytes) {
  return SYMM_GPU_NAME(Memset)(memory, value, bytes);
}
inline gpuError_t gpuMemsetAsync(void* memory, int value, std::size_t bytes, gpuStream_t stream) {
  return SYMM_GPU_NAME(MemsetAsync)(memory, value, bytes, stream);
}
inline gpuError_t gpuEventCreate(gpuEvent_t* event) { return SYMM_GPU_NAME(EventCreate)(event); }
inline gpuError_t gpuEventElapsedTime(float* milliseconds, gpuEvent_t from, gpuEvent_t to) {
  return SYMM_GPU_NAME(EventElapsedTime)(milliseconds, from, to);
}
inline gpuError_t gpuStreamBeginCapture(gpuStream_t stream, gpuStreamCaptureMode mode) {
  return SYMM_GPU_NAME(StreamBeginCapture)(stream, mode);
}
inline gpuError_t gpuStreamEndCapture(gpuStream_t stream, gpuGraph_t* graph) {
  return SYMM_GPU_NAME(StreamEndCapture)(stream, graph);
}
inline gpuError_t gpuGraphInstantiate(gpuGraphExec_t* executable, gpuGraph_t graph) {
  return SYMM_GPU_NAME(GraphInstantiateWithFlags)(executable, graph, 0);
}
inline gpuError_t gpuGraphLaunch(gpuGraphExec_t executable, gpuStream_t stream) {
  return SYMM_GPU_NAME(GraphLaunch)(executable, stream);
}
inline gpuError_t gpuGraphDestroy(gpuGraph_t graph) { return SYMM_GPU_NAME(GraphDestroy)(graph); }
inline gpuError_t gpuGraphExecDestroy(gpuGraphExec_t executable) {
  return SYMM_GPU_NAME(GraphExecDestroy)(executable);
}

}  // namespace symm::test
