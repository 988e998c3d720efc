// Ranks of a group on one GPU and in one thread: each has its segment in ordinary device memory,
// its kernels and its stream. Launches return at once, so one thread can start every rank's part.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "kernels/core/atomics.hpp"
#include "kernels/gpu/launch/gpu_kernels.hpp"
#include "test/support/gpu_calls.hpp"

namespace symm::test {

inline void check(gpuError_t status, const char* what) {
  if (status != gpuSuccess) {
    ADD_FAILURE() << what << ": " << gpuGetErrorString(status);
    std::abort();
  }
}

inline bool gpu_visible() {
  int count = 0;
  return gpuGetDeviceCount(&count) == gpuSuccess && count > 0;
}

// Device memory with a way in and out.
class DeviceBytes {
 public:
  explicit DeviceBytes(std::size_t bytes) : bytes_(bytes) {
    check(gpuMalloc(&data_, bytes + 64), "Malloc");
  }
  ~DeviceBytes() { (void)gpuFree(data_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  // Starts `offset` bytes after an aligned address.
  std::byte* at(std::size_t offset) const { return static_cast<std::byte*>(data_) + offset; }
  std::size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
};

// Waits for copies and fills without a stream: those of a rig do not wait for them, and a copy from
// memory that is not pinned may return before it has ended.
inline void finish_default_stream() { check(gpuStreamSynchronize(nullptr), "StreamSynchronize"); }

struct FreePage {
  void operator()(DevicePage* page) const { std::free(page); }
};
using PagePointer = std::unique_ptr<DevicePage, FreePage>;

inline PagePointer make_page() {
  void* page = std::aligned_alloc(4096, sizeof(DevicePage));
  std::memset(page, 0, sizeof(DevicePage));
  return PagePointer(static_cast<DevicePage*>(page));
}

class DeviceRig {
 public:
  struct Options {
    std::uint64_t workspace_bytes = 32u << 20;
    FirstCounts first{};
    WireKind wire = WireKind::kLL;
    bool poisons = true;
    decltype(GroupKernelsConfig::multimem_kernel) multimem_kernel = nullptr;
  };

  DeviceRig(int world, const Options& options)
      : world_(world),
        options_(options),
        layout_(DeviceLayout::of(world, options.workspace_bytes)) {
    for (int rank = 0; rank < world; ++rank) {
      Rank& r = ranks_.emplace_back();
      r.segment = std::make_unique<DeviceBytes>(layout_.total_bytes);
      check(gpuMemset(r.segment->at(0), 0, layout_.total_bytes), "Memset");
      r.page = make_page();
      check(gpuStreamCreateNonBlocking(&r.stream), "StreamCreate");
    }
    check(gpuDeviceSynchronize(), "DeviceSynchronize");
    for (int rank = 0; rank < world; ++rank) {
      ranks_[index(rank)].kernels = make_kernels(rank, page(rank));
    }
  }
  ~DeviceRig() {
    for (Rank& r : ranks_) store_release(&r.page->abort, std::uint32_t{1});
    check(gpuDeviceSynchronize(), "DeviceSynchronize");
    for (Rank& r : ranks_) {
      r.kernels.reset();
      check(gpuStreamDestroy(r.stream), "StreamDestroy");
    }
  }

  // The threads of an emulated block take turns where they look up from a wait.
  static constexpr std::uint32_t kPollPeriod =
      kGpuIsEmulated ? 16 : GroupKernelsConfig{}.poll_period;

  int world() const { return world_; }
  const DeviceLayout& layout() const { return layout_; }
  std::byte* segment(int rank) const { return ranks_[index(rank)].segment->at(0); }
  // Kernels of a rank over its segment and counters, with a page of their own. They end before
  // the rig and the page.
  std::unique_ptr<GroupKernels> make_kernels(int rank, DevicePage& page,
                                             std::uint32_t poll_period = kPollPeriod) const {
    GroupKernelsConfig config;
    config.rank = rank;
    config.world_size = world_;
    config.layout = layout_;
    config.page = &page;
    config.first = options_.first;
    config.poisons = options_.poisons;
    config.multimem_kernel = options_.multimem_kernel;
    config.poll_period = poll_period;
    auto kernels = make_gpu_group_kernels(config, 0);
    for (int peer = 0; peer < world_; ++peer) kernels->set_peer(peer, segment(peer), options_.wire);
    kernels->set_wire(options_.wire);
    return kernels;
  }
  GroupKernels& kernels(int rank) const { return *ranks_[index(rank)].kernels; }
  DevicePage& page(int rank) const { return *ranks_[index(rank)].page; }
  gpuStream_t stream(int rank) const { return ranks_[index(rank)].stream; }
  LaunchOptions options(int rank) const {
    return {.stream = stream(rank), .timeout = std::chrono::seconds(20)};
  }

  // Waits for every rank. A group that does not end in time is told to give up, and the test fails.
  void finish() {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(40);
    bool aborted = false;
    for (Rank& r : ranks_) {
      while (gpuStreamQuery(r.stream) == gpuErrorNotReady) {
        if (!aborted && std::chrono::steady_clock::now() > deadline) {
          aborted = true;
          ADD_FAILURE() << "the ranks did not come to an end";
          for (Rank& each : ranks_) store_release(&each.page->abort, std::uint32_t{1});
        }
        std::this_thread::yield();
      }
      check(gpuStreamSynchronize(r.stream), "StreamSynchronize");
    }
  }

  // True where the rank's stream is still at work a while later: long enough for a kernel that
  // waits for nothing to have ended.
  bool stays_busy(int rank) const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
    while (std::chrono::steady_clock::now() < end) {
      if (gpuStreamQuery(stream(rank)) != gpuErrorNotReady) return false;
    }
    return true;
  }

  // No kernel gave up.
  void expect_healthy() const {
    for (const Rank& r : ranks_) {
      EXPECT_EQ(load_acquire(&r.page->report.fault), 0u)
          << "waiting for rank " << r.page->report.peer << " in call " << r.page->report.sequence;
    }
  }

 private:
  struct Rank {
    std::unique_ptr<DeviceBytes> segment;
    PagePointer page;
    std::unique_ptr<GroupKernels> kernels;
    gpuStream_t stream = nullptr;
  };
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

  int world_;
  const Options options_;
  DeviceLayout layout_;
  std::vector<Rank> ranks_;
};

}  // namespace symm::test
