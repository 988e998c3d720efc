// What the next node on a stream in a graph capture follows, as CUDA's runtime tells and takes it.
// Its calls have other parameters since CUDA 13. HIP's runtime has such calls too, but what edges
// cost there has not been measured, and no AMD GPU was there to see them at work: not used.
//
// Host only; owns nothing.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/gpu/vendor/gpu_api.hpp"

namespace symm {

inline constexpr bool kGpuTellsDependencies = SYMM_GPU_HIP == 0;

using gpuGraphNode_t = SYMM_GPU_NAME(GraphNode_t);

// Whether a call that may fail has not; a later check does not find the error then.
inline bool gpu_succeeds(gpuError_t error) {
  if (error == gpuSuccess) return true;
  static_cast<void>(gpuGetLastError());
  return false;
}

// All that the next node on `stream` follows. False where the stream is in no capture, or where
// what it follows is more than nodes (an edge with data); `nodes` is then empty.
inline bool gpu_capture_dependencies([[maybe_unused]] gpuStream_t stream,
                                     std::vector<gpuGraphNode_t>* nodes) {
  nodes->clear();
#if SYMM_GPU_HIP
  return false;
#else
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaGraphNode_t* found = nullptr;
  std::size_t count = 0;
#if CUDART_VERSION >= 13000
  const cudaError_t error =
      cudaStreamGetCaptureInfo(stream, &status, nullptr, nullptr, &found, nullptr, &count);
#else
  const cudaError_t error =
      cudaStreamGetCaptureInfo_v2(stream, &status, nullptr, nullptr, &found, &count);
#endif
  if (!gpu_succeeds(error) || status != cudaStreamCaptureStatusActive) return false;
  nodes->assign(found, found + count);
  return true;
#endif
}

// All that `node` directly follows. False as above.
inline bool gpu_node_dependencies([[maybe_unused]] gpuGraphNode_t node,
                                  std::vector<gpuGraphNode_t>* nodes) {
  nodes->clear();
#if SYMM_GPU_HIP
  return false;
#else
  const auto ask = [&](cudaGraphNode_t* into, std::size_t* count) {
#if CUDART_VERSION >= 13000
    return gpu_succeeds(cudaGraphNodeGetDependencies(node, into, nullptr, count));
#else
    return gpu_succeeds(cudaGraphNodeGetDependencies(node, into, count));
#endif
  };
  std::size_t count = 0;
  if (!ask(nullptr, &count)) return false;
  nodes->resize(count);
  return count == 0 || ask(nodes->data(), &count);
#endif
}

// From now on the next node on `stream`, which is in a capture, follows `nodes` and no others.
// False where the runtime refuses it, and then nothing has changed.
inline bool gpu_set_capture_dependencies([[maybe_unused]] gpuStream_t stream,
                                         [[maybe_unused]] std::vector<gpuGraphNode_t>& nodes) {
#if SYMM_GPU_HIP
  return false;
#elif CUDART_VERSION >= 13000
  return gpu_succeeds(cudaStreamUpdateCaptureDependencies(
      stream, nodes.data(), nullptr, nodes.size(), cudaStreamSetCaptureDependencies));
#else
  return gpu_succeeds(cudaStreamUpdateCaptureDependencies(stream, nodes.data(), nodes.size(),
                                                          cudaStreamSetCaptureDependencies));
#endif
}

}  // namespace symm
