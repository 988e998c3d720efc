// How the device library behaves towards its callers: threads with any or no current device, graph
// captures, streams that are held up.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/core/error.hpp"
#include "kernels/gpu/vendor/gpu_capture.hpp"
#include "kernels/gpu/vendor/gpu_driver_api.hpp"
#include "test/support/expect_error.hpp"
#include "test/support/gpu.hpp"

namespace symm {
namespace {

using test::error_of;
using test::expect_error;
using test::gpu_words;
using test::read_gpu;
using test::write_gpu;

// The context that the driver calls current in this thread; null for none.
void* current_context() {
  using Entry = int (*)(void**);
  static const auto entry = [] {
    void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    return reinterpret_cast<Entry>(driver == nullptr ? nullptr
                                                     : ::dlsym(driver, "cuCtxGetCurrent"));
  }();
  void* context = nullptr;
  if (entry == nullptr || entry(&context) != 0) throw std::runtime_error("no current context");
  return context;
}

class GpuContext : public test::GpuTest {
 protected:
  // One of everything.
  static void use(GpuRuntime& runtime) {
    const auto memory = runtime.allocate(1);
    const auto mapping = runtime.map(memory);
    const auto range = runtime.reserve(memory->bytes());
    const auto second = runtime.map_at(
        runtime.import_memory(runtime.export_descriptor(*memory), memory->bytes()), range, 0);
    runtime.capture_id(nullptr);
    runtime.capture_id(nullptr);
  }

  class Stream {
   public:
    Stream() { SYMM_GPU_CHECK(gpuStreamCreateNonBlocking(&stream_)); }
    ~Stream() { static_cast<void>(gpuStreamDestroy(stream_)); }
    operator gpuStream_t() const { return stream_; }

   private:
    gpuStream_t stream_ = nullptr;
  };

  static void begin_capture(gpuStream_t stream) {
    SYMM_GPU_CHECK(
        SYMM_GPU_NAME(StreamBeginCapture)(stream, SYMM_GPU_NAME(StreamCaptureModeGlobal)));
  }
  static gpuError_t end_capture(gpuStream_t stream) {
    SYMM_GPU_NAME(Graph_t) graph = nullptr;
    const gpuError_t error = SYMM_GPU_NAME(StreamEndCapture)(stream, &graph);
    if (graph != nullptr) SYMM_GPU_CHECK(SYMM_GPU_NAME(GraphDestroy)(graph));
    return error;
  }

  // What is put on `after` from now on follows what is on `before`.
  void order(gpuStream_t before, gpuStream_t after) {
    gpuEvent_t event = nullptr;
    SYMM_GPU_CHECK(gpuEventCreateUntimed(&event));
    SYMM_GPU_CHECK(gpuEventRecord(event, before));
    SYMM_GPU_CHECK(gpuStreamWaitEvent(after, event));
    SYMM_GPU_CHECK(gpuEventDestroy(event));
    runtime_->drop_implied_dependencies(after);
  }
  static std::vector<gpuGraphNode_t> next_follows(gpuStream_t stream) {
    std::vector<gpuGraphNode_t> nodes;
    EXPECT_TRUE(gpu_capture_dependencies(stream, &nodes));
    return nodes;
  }
};

TEST_F(GpuContext, AThreadWithoutContextKeepsNone) {
  if (!kGpuHasContexts) GTEST_SKIP() << "a thread of HIP has a device and no context";
  std::thread([&] {
    ASSERT_EQ(current_context(), nullptr);
    use(*runtime_);
    EXPECT_EQ(current_context(), nullptr);
  }).join();
}

TEST_F(GpuContext, TheCallersDeviceStaysCurrent) {
  if (gpu_count_ < 2) GTEST_SKIP() << "needs 2 GPUs, this process sees " << gpu_count_;
  GpuRuntime& other = test::gpu_library().runtime(1);
  EXPECT_NE(&other, runtime_);
  EXPECT_NE(other.identity().uuid, runtime_->identity().uuid);
  void* const before = current_context();
  use(other);
  int device = -1;
  SYMM_GPU_CHECK(gpuGetDevice(&device));
  EXPECT_EQ(device, 0);
  EXPECT_EQ(current_context(), before);
}

TEST_F(GpuContext, MemoryOfAnotherGpuIsReachable) {
  if (gpu_count_ < 2) GTEST_SKIP() << "needs 2 GPUs, this process sees " << gpu_count_;
  GpuRuntime& other = test::gpu_library().runtime(1);
  const auto memory = other.allocate(1);
  const auto owner = other.map(memory);
  const auto seen =
      runtime_->map(runtime_->import_memory(other.export_descriptor(*memory), memory->bytes()));
  write_gpu(seen->base(), gpu_words(7, 100));
  // The owner's place is open to the owner alone.
  SYMM_GPU_CHECK(gpuSetDevice(1));
  EXPECT_EQ(read_gpu<std::uint64_t>(owner->base(), 100), gpu_words(7, 100));
  SYMM_GPU_CHECK(gpuSetDevice(0));
}

TEST_F(GpuContext, CapturesAreToldApart) {
  const Stream first;
  const Stream second;
  EXPECT_EQ(runtime_->capture_id(first), 0u);
  EXPECT_EQ(runtime_->capture_id(first), 0u);
  begin_capture(first);
  EXPECT_NE(runtime_->capture_id(first), 0u);
  EXPECT_EQ(runtime_->capture_id(second), 0u);
  const std::uint64_t id = runtime_->capture_id(first);
  EXPECT_NE(id, 0u);
  EXPECT_EQ(runtime_->capture_id(first), id);
  EXPECT_EQ(runtime_->capture_id(second), 0u);
  SYMM_GPU_CHECK(end_capture(first));
  EXPECT_EQ(runtime_->capture_id(first), 0u);
  begin_capture(first);
  EXPECT_NE(runtime_->capture_id(first), id) << "another capture of the same stream";
  SYMM_GPU_CHECK(end_capture(first));
}

TEST_F(GpuContext, AStreamThatOnlyWaitsNamesTheLastNodeAlone) {
  if (!kGpuTellsDependencies) GTEST_SKIP() << "HIP's captures are left as they are";
  void* memory = nullptr;
  SYMM_GPU_CHECK(test::gpuMalloc(&memory, 64));
  const Stream waiting;
  const Stream working;
  const auto work = [&](gpuStream_t stream) {
    SYMM_GPU_CHECK(test::gpuMemsetAsync(memory, 1, 64, stream));
  };
  begin_capture(waiting);
  constexpr std::size_t kRounds = 5;
  for (std::size_t round = 0; round < kRounds; ++round) {
    order(waiting, working);
    work(working);
    order(working, waiting);
    ASSERT_EQ(next_follows(waiting).size(), 1u) << "round " << round;
  }
  // From the last node back to the first: each follows one.
  std::vector<gpuGraphNode_t> nodes = next_follows(waiting);
  std::size_t length = 0;
  for (; nodes.size() == 1; ++length) {
    const gpuGraphNode_t node = nodes.front();
    ASSERT_TRUE(gpu_node_dependencies(node, &nodes));
  }
  EXPECT_TRUE(nodes.empty());
  EXPECT_EQ(length, kRounds);
  // A few steps back as well.
  for (int i = 0; i < 3; ++i) work(waiting);
  order(waiting, working);
  EXPECT_EQ(next_follows(working), next_follows(waiting));
  // What goes on side by side is waited for side by side.
  work(waiting);
  work(working);
  order(working, waiting);
  EXPECT_EQ(next_follows(waiting).size(), 2u);
  EXPECT_EQ(end_capture(waiting), gpuSuccess);
  runtime_->drop_implied_dependencies(waiting);  // in no capture
  EXPECT_EQ(gpuGetLastError(), gpuSuccess);
  SYMM_GPU_CHECK(test::gpuFree(memory));
}

TEST_F(GpuContext, AnInvalidatedCaptureIsAnError) {
  const Stream stream;
  begin_capture(stream);
  EXPECT_NE(gpuStreamSynchronize(stream), gpuSuccess);  // forbidden here, and so ends the capture
  expect_error(error_of([&] { runtime_->capture_id(stream); }), ErrorCode::kSystem,
               {"invalidated", "cuda:0"});
  expect_error(error_of([&] { runtime_->capture_id(stream); }), ErrorCode::kSystem,
               {"invalidated"});
  EXPECT_NE(end_capture(stream), gpuSuccess);
  static_cast<void>(gpuGetLastError());
  EXPECT_EQ(runtime_->capture_id(stream), 0u);
}

TEST_F(GpuContext, ColdWorkLeavesACaptureOfThisThreadWhole) {
  const Stream stream;
  begin_capture(stream);
  {
    const auto memory = runtime_->allocate(1);
    const auto mapping = runtime_->map(memory);
    const auto imported =
        runtime_->import_memory(runtime_->export_descriptor(*memory), memory->bytes());
  }
  EXPECT_NE(runtime_->capture_id(stream), 0u);
  EXPECT_EQ(end_capture(stream), gpuSuccess);
}

TEST_F(GpuContext, CaptureModeIsRelaxedAndRestored) {
  const Stream stream;
  gpuEvent_t event = nullptr;
  SYMM_GPU_CHECK(gpuEventCreateUntimed(&event));
  SYMM_GPU_CHECK(gpuEventRecord(event, stream));
  const Stream captured;
  begin_capture(captured);
  const int before = runtime_->relax_capture_mode();
  EXPECT_EQ(SYMM_GPU_NAME(EventSynchronize)(event), gpuSuccess);
  const int relaxed = runtime_->relax_capture_mode();
  EXPECT_NE(relaxed, before);
  runtime_->restore_capture_mode(before);
  EXPECT_EQ(runtime_->relax_capture_mode(), before);
  runtime_->restore_capture_mode(before);
  EXPECT_EQ(end_capture(captured), gpuSuccess);
  SYMM_GPU_CHECK(gpuEventDestroy(event));
}

// Stands for a kernel that spins until a peer has come: whoever waits for the whole device here
// waits for ever.
TEST_F(GpuContext, AStreamThatIsHeldUpHoldsUpNothing) {
  use(*runtime_);
  const Stream stream;
  std::atomic<bool> release{false};
  SYMM_GPU_CHECK(SYMM_GPU_NAME(LaunchHostFunc)(
      stream,
      [](void* flag) {
        while (!static_cast<std::atomic<bool>*>(flag)->load()) std::this_thread::yield();
      },
      &release));
  std::shared_ptr<PhysicalMemory> memory = runtime_->allocate(1);
  std::shared_ptr<Mapping> mapping = runtime_->map(memory);
  std::shared_ptr<Mapping> seen =
      runtime_->map(runtime_->import_memory(runtime_->export_descriptor(*memory), memory->bytes()));
  EXPECT_EQ(runtime_->capture_id(stream), 0u);
  EXPECT_EQ(SYMM_GPU_NAME(StreamQuery)(stream), SYMM_GPU_NAME(ErrorNotReady));
  static_cast<void>(gpuGetLastError());
  release.store(true);
  runtime_->synchronize();
  EXPECT_EQ(SYMM_GPU_NAME(StreamQuery)(stream), gpuSuccess) << "synchronize() waits for all";
}

}  // namespace
}  // namespace symm
