// Ranks that signal each other on GPU 0: pads, data, kernels and two streams for each.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/gpu/interface/signal_kernels.hpp"
#include "kernels/protocol/signal_pad.hpp"
#include "test/support/gpu.hpp"
#include "test/support/gpu_calls.hpp"

namespace symm::test {

// What `body` puts on `stream`, as a graph.
class SignalGraph {
 public:
  SignalGraph(gpuStream_t stream, const std::function<void()>& body) {
    SYMM_GPU_CHECK(gpuStreamBeginCapture(stream, gpuStreamCaptureModeThreadLocal));
    body();
    gpuGraph_t graph = nullptr;
    SYMM_GPU_CHECK(gpuStreamEndCapture(stream, &graph));
    SYMM_GPU_CHECK(gpuGraphInstantiate(&graph_, graph));
    SYMM_GPU_CHECK(gpuGraphDestroy(graph));
  }
  ~SignalGraph() {
    if (graph_ != nullptr) (void)gpuGraphExecDestroy(graph_);
  }
  SignalGraph(SignalGraph&& other) noexcept : graph_(std::exchange(other.graph_, nullptr)) {}
  SignalGraph& operator=(SignalGraph&&) = delete;

  void launch(gpuStream_t stream) { SYMM_GPU_CHECK(gpuGraphLaunch(graph_, stream)); }

 private:
  gpuGraphExec_t graph_ = nullptr;
};

class SignalRig {
 public:
  static constexpr std::size_t kPadBytes = 1024;
  static constexpr std::size_t kPadSlots = kPadBytes / sizeof(SignalSlot);
  static constexpr std::size_t kWords = 4096;  // of a rank's data
  static constexpr int kFirstStream = 0;
  static constexpr int kSecondStream = 1;
  using Words = std::vector<std::int32_t>;

  // `traps`: as in SignalKernelsConfig.
  SignalRig(GpuRuntime& runtime, int world, bool traps = false) : world_(world) {
    EXPECT_TRUE(kQueuesAreSeparate);
    const auto count = static_cast<std::size_t>(world);
    for (int rank = 0; rank < world; ++rank) {
      Rank& r = ranks_.emplace_back();
      r.kernels = runtime.make_signal_kernels(
          {.rank = rank, .world_size = world, .poll_period = 64, .traps = traps});
      for (gpuStream_t& stream : r.streams) {
        SYMM_GPU_CHECK(gpuStreamCreateNonBlocking(&stream));
      }
      SYMM_GPU_CHECK(gpuMalloc(&r.pad, kPadBytes));
      SYMM_GPU_CHECK(gpuMemset(r.pad, 0, kPadBytes));
      SYMM_GPU_CHECK(gpuMalloc(&r.data, kWordBytes));
      SYMM_GPU_CHECK(gpuMalloc(&r.seen, count * kWordBytes));
      SYMM_GPU_CHECK(gpuMemset(r.seen, 0xa5, count * kWordBytes));
      r.staged = std::aligned_alloc(4096, kWordBytes);
      SYMM_GPU_CHECK(gpuHostRegisterMapped(r.staged, kWordBytes));
      addresses_.push_back(static_cast<std::byte*>(r.pad));
    }
    SYMM_GPU_CHECK(gpuDeviceSynchronize());
  }
  ~SignalRig() {
    abort_all();
    (void)gpuDeviceSynchronize();
    for (Rank& r : ranks_) {
      r.kernels.reset();
      for (gpuStream_t stream : r.streams) (void)gpuStreamDestroy(stream);
      for (void* memory : {r.pad, r.data, r.seen}) (void)gpuFree(memory);
      (void)gpuHostUnregister(r.staged);
      std::free(r.staged);
    }
  }
  SignalRig(const SignalRig&) = delete;
  SignalRig& operator=(const SignalRig&) = delete;

  int world() const { return world_; }
  SignalPads pads() const { return {addresses_, kPadBytes}; }
  SignalKernels& kernels(int rank) { return *at(rank).kernels; }
  void destroy_kernels(int rank) { at(rank).kernels.reset(); }
  gpuStream_t stream(int rank, int which = kFirstStream) const { return at(rank).streams[which]; }
  SignalOptions options(int rank, int channel, int which = kFirstStream) const {
    return {stream(rank, which), channel, std::chrono::seconds(20)};
  }
  SignalOptions options(int rank, int channel, std::chrono::milliseconds timeout) const {
    return {stream(rank), channel, timeout};
  }

  // Words of a rank's data, no two rounds alike.
  static Words filled(int value) { return Words(kWords, 0x01010101 * (value % 100 + 1)); }
  void fill(int rank, int value) {
    SYMM_GPU_CHECK(gpuMemsetAsync(at(rank).data, value % 100 + 1, kWordBytes, stream(rank)));
  }
  // The same from the host's memory, which stage() writes.
  void stage(int rank, int value) {
    const Words words = filled(value);
    std::copy(words.begin(), words.end(), static_cast<std::int32_t*>(at(rank).staged));
  }
  void upload(int rank) { copy(at(rank).data, at(rank).staged, stream(rank)); }
  // Copies `peer`'s data on the stream of `rank`, to where seen() looks.
  void copy_data(int rank, int peer) { copy(seen_at(rank, peer), at(peer).data, stream(rank)); }
  Words seen(int rank, int peer) const {
    return read_gpu<std::int32_t>(seen_at(rank, peer), kWords);
  }
  std::vector<SignalSlot> pad(int rank) const {
    return read_gpu<SignalSlot>(addresses_[static_cast<std::size_t>(rank)], kPadSlots);
  }

  // True where the stream is still at work a while later: long enough for a kernel that waits for
  // nothing to have ended. Too short a while can hide a fault, never make one.
  bool stays_busy(int rank, int which = kFirstStream) const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
    while (std::chrono::steady_clock::now() < end) {
      if (gpuStreamQuery(stream(rank, which)) != gpuErrorNotReady) return false;
    }
    return true;
  }

  // Waits for every rank; ranks that do not end are told to give up, and the test fails.
  void finish(int which) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    for (int rank = 0; rank < world_; ++rank) {
      while (gpuStreamQuery(stream(rank, which)) == gpuErrorNotReady) {
        if (std::chrono::steady_clock::now() > deadline) {
          ADD_FAILURE() << "the ranks did not come to an end";
          abort_all();
          break;
        }
        std::this_thread::yield();
      }
      SYMM_GPU_CHECK(gpuStreamSynchronize(stream(rank, which)));
      at(rank).kernels->check();
    }
  }
  void finish() {
    finish(kFirstStream);
    finish(kSecondStream);
  }

  void expect_at_rest() const {
    for (int rank = 0; rank < world_; ++rank) {
      EXPECT_EQ(pad(rank), std::vector<SignalSlot>(kPadSlots, 0)) << "pad of rank " << rank;
    }
  }

 private:
  static constexpr std::size_t kWordBytes = kWords * sizeof(std::int32_t);

  struct Rank {
    std::unique_ptr<SignalKernels> kernels;
    gpuStream_t streams[2] = {};
    void* pad = nullptr;
    void* data = nullptr;
    void* seen = nullptr;
    void* staged = nullptr;
  };
  Rank& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  const Rank& at(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }
  std::byte* seen_at(int rank, int peer) const {
    return static_cast<std::byte*>(at(rank).seen) + static_cast<std::size_t>(peer) * kWordBytes;
  }
  static void copy(void* to, const void* from, gpuStream_t stream) {
    SYMM_GPU_CHECK(gpuMemcpyAsync(to, from, kWordBytes, gpuMemcpyDefault, stream));
  }
  void abort_all() {
    for (Rank& r : ranks_) {
      if (r.kernels) r.kernels->abort(Error(ErrorCode::kAborted, "the test ends"));
    }
  }

  int world_;
  std::vector<Rank> ranks_;
  std::vector<std::byte*> addresses_;
};

}  // namespace symm::test
