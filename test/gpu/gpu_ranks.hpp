// Ranks of a group that are threads and share GPU 0, each with a stream and memory of its own, and
// whole communicators between them.
//
// Freeing device memory waits for the whole device, hence for kernels of other ranks that wait for
// this one: so every rank allocates before the first collective and frees after the last.
#pragma once

#include <gtest/gtest.h>

#include <barrier>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "backend/engine/communicator.hpp"
#include "test/support/gpu.hpp"
#include "test/support/gpu_calls.hpp"
#include "test/support/joined_segment.hpp"
#include "test/support/memory_store.hpp"
#include "test/support/rank_threads.hpp"

namespace symm::test {

class GpuRank {
 public:
  static constexpr std::size_t kRegionBytes = std::size_t{40} << 20;

  GpuRank(Communicator& communicator, std::barrier<>& meeting)
      : communicator(communicator), meeting_(meeting) {
    SYMM_GPU_CHECK(gpuSetDevice(0));
    SYMM_GPU_CHECK(gpuStreamCreateNonBlocking(&stream_));
    void* memory = nullptr;
    SYMM_GPU_CHECK(gpuMalloc(&memory, 2 * kRegionBytes));
    memory_ = static_cast<std::byte*>(memory);
    take_queue();
    meet();
  }
  ~GpuRank() {
    (void)gpuStreamSynchronize(stream_);
    if (std::uncaught_exceptions() > 0) {
      meeting_.arrive_and_drop();  // the others need not wait for a rank that has failed
    } else {
      meeting_.arrive_and_wait();
    }
    (void)gpuFree(memory_);
    (void)gpuStreamDestroy(stream_);
  }
  GpuRank(const GpuRank&) = delete;
  GpuRank& operator=(const GpuRank&) = delete;

  int number() const { return communicator.rank(); }
  int world() const { return communicator.world_size(); }
  DeviceGroup& engine() { return communicator.device_group({DeviceKind::kCuda, 0}); }
  gpuStream_t stream() const { return stream_; }
  std::byte* input() const { return memory_; }
  std::byte* output() const { return memory_ + kRegionBytes; }

  // On the rank's stream, captured or not.
  DeviceLaunch to(std::chrono::milliseconds timeout = {}) {
    return {stream_, timeout, engine().runtime().capture_id(stream_) != 0};
  }
  void launch(const CollectiveArgs& args, std::chrono::milliseconds timeout = {}) {
    engine().launch(args, to(timeout));
  }
  // Everything on this rank's stream has ended well.
  void finish() {
    SYMM_GPU_CHECK(gpuStreamSynchronize(stream_));
    engine().check();
  }
  void meet() { meeting_.arrive_and_wait(); }

  void write(std::byte* destination, const std::vector<std::byte>& bytes) {
    SYMM_GPU_CHECK(
        gpuMemcpyAsync(destination, bytes.data(), bytes.size(), gpuMemcpyHostToDevice, stream_));
    SYMM_GPU_CHECK(gpuStreamSynchronize(stream_));
  }
  std::vector<std::byte> read(const std::byte* source, std::size_t bytes) {
    std::vector<std::byte> result(bytes);
    SYMM_GPU_CHECK(gpuMemcpyAsync(result.data(), source, bytes, gpuMemcpyDeviceToHost, stream_));
    SYMM_GPU_CHECK(gpuStreamSynchronize(stream_));
    return result;
  }

  Communicator& communicator;

 private:
  // Gives the stream a hardware queue of its own: where threads launched the first kernels of their
  // streams at the same moment, calls of several launches stood still (docs/gpu.md, "Limits of
  // streams").
  void take_queue() {
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    SYMM_GPU_CHECK(gpuMemsetAsync(memory_, 0, 1, stream_));
    SYMM_GPU_CHECK(gpuStreamSynchronize(stream_));
  }

  std::barrier<>& meeting_;
  gpuStream_t stream_ = nullptr;
  std::byte* memory_ = nullptr;
};

class GpuRanksTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!IsSkipped()) set_device_library(DeviceKind::kCuda, &gpu_library());
  }

  struct Settings {
    Algorithm algorithm = Algorithm::kAuto;
    std::size_t workspace_bytes = 64u << 20;
  };

  // Calls body on every rank; every rank must come to its end.
  void run_group(int world, const std::function<void(GpuRank&)>& body, const Settings& settings) {
    ASSERT_TRUE(kQueuesAreSeparate);
    MemoryStore store;
    std::barrier<> meeting(world);
    const auto errors = errors_of_ranks(world, [&](int rank) {
      CommunicatorConfig config;
      config.group_name = "gpu";
      config.rank = rank;
      config.world_size = world;
      config.timeout = std::chrono::milliseconds(20'000);
      config.algorithm = settings.algorithm;
      config.device_workspace_bytes = settings.workspace_bytes;
      const auto communicator = std::make_unique<Communicator>(store, config);
      GpuRank one(*communicator, meeting);
      body(one);
    });
    for (const auto& error : errors) {
      if (error) ADD_FAILURE() << error->what();
    }
  }
  void run_group(int world, const std::function<void(GpuRank&)>& body) {
    run_group(world, body, {});
  }
};

}  // namespace symm::test
