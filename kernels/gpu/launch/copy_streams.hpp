// Copies by copy engines, one stream a peer, in the order of the caller's stream.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/core/collective.hpp"
#include "kernels/gpu/interface/call_params.hpp"
#include "kernels/gpu/vendor/gpu_api.hpp"

namespace symm {

// The copies of rank `rank` in all_gather, broadcast or all_to_all, its own share last;
// `outputs[r]` is the start of rank r's output: one array of all shares, which for all_to_all are
// equal.
std::vector<DeviceCopy> copies_of(const CollectiveArgs& args, int rank,
                                  std::span<std::byte* const> outputs);

// Owns its streams and events, which belong to the device that was current at construction.
class CopyStreams {
 public:
  explicit CopyStreams(int peers);
  ~CopyStreams();
  CopyStreams(const CopyStreams&) = delete;
  CopyStreams& operator=(const CopyStreams&) = delete;

  // Orders `copies` after the earlier and before the later work of `stream`; may be captured.
  void run(const std::vector<DeviceCopy>& copies, gpuStream_t stream);

  // Copies from or to any memory of the host and wait for the copy; use no stream of the caller.
  void copy_to_device(void* destination, const void* source, std::size_t bytes);
  void copy_to_host(void* destination, const void* source, std::size_t bytes);

 private:
  void copy_and_wait(void* destination, const void* source, std::size_t bytes, gpuMemcpyKind kind);

  std::vector<gpuStream_t> streams_;
  std::vector<gpuEvent_t> joined_;
  gpuEvent_t forked_ = nullptr;
};

}  // namespace symm
