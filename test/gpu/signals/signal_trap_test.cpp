// Signals that end the device's context where they do not come (NOTE [Traps] in
// signal_kernels.hpp). A context that has trapped is gone for its process, so each test is a child
// of its own, and the parent never touches the GPU: hence the name DeathTest (gpu_processes_test).
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/protocol/signal_pad.hpp"
#include "test/gpu/signals/signal_rig.hpp"
#include "test/support/expect_error.hpp"
#include "test/support/forked_child.hpp"

namespace symm::test {
namespace {

using std::chrono::milliseconds;

constexpr int kNoGpu = 77;  // exit status of a child that found none

void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

// Throws unless `call` raises `code` with all of `words`.
void require_error(ErrorCode code, const std::vector<std::string>& words,
                   const std::function<void()>& call) {
  const auto error = error_of(call);
  require(error.has_value() && error->code() == code, "an error of another kind");
  const std::string text = error->what();
  for (const std::string& word : words) {
    require(text.find(word) != std::string::npos, "no '" + word + "' in: " + text);
  }
}

// The device is in error, and rank 0's signals still say why.
void require_trapped(SignalRig& rig, ErrorCode code, const std::vector<std::string>& words) {
  require(gpuDeviceSynchronize() != gpuSuccess, "the device reports no error");
  require_error(code, words, [&] { rig.kernels(0).check(); });
  require_error(code, words, [&] { rig.kernels(0).barrier(rig.pads(), rig.options(0, 0)); });
}

// The device has ended its work well, and goes on.
void require_usable() {
  SYMM_GPU_CHECK(gpuDeviceSynchronize());
  void* memory = nullptr;
  SYMM_GPU_CHECK(gpuMalloc(&memory, 4096));
  SYMM_GPU_CHECK(gpuMemset(memory, 1, 4096));
  SYMM_GPU_CHECK(gpuDeviceSynchronize());
  SYMM_GPU_CHECK(gpuFree(memory));
}

class SignalTrapAloneDeathTest : public ::testing::Test {
 protected:
  // `body` plays all ranks in a child, whose status also says that all was destroyed in the end.
  static void run(const std::function<void(GpuRuntime&)>& body) {
    ForkedChild child([&] {
      try {
        set_queues(kQueuesOfAChild);
        if (no_gpu_reason()) return kNoGpu;
        SYMM_GPU_CHECK(gpuSetDevice(0));
        body(gpu_library().runtime(0));
        return 0;
      } catch (const std::exception& error) {
        std::fprintf(stderr, "child: %s\n", error.what());
        return 1;
      }
    });
    const int status = child.wait();
    if (status == kNoGpu) GTEST_SKIP() << "no GPU is visible to the child";
    EXPECT_EQ(status, 0);
  }
};

TEST_F(SignalTrapAloneDeathTest, AWaitThatTimesOutEndsTheContext) {
  run([](GpuRuntime& runtime) {
    SignalRig rig(runtime, 2, true);
    rig.kernels(0).wait_signal(rig.pads(), 1, rig.options(0, 3, milliseconds(200)));
    require_trapped(rig, ErrorCode::kTimeout,
                    {"wait_signal on channel 3", "after 200 ms", "rank 0 waited for rank 1"});
    require(runtime.is_in_error(), "the runtime takes the device for one that works");
  });
}

TEST_F(SignalTrapAloneDeathTest, APutThatTimesOutEndsTheContext) {
  run([](GpuRuntime& runtime) {
    SignalRig rig(runtime, 2, true);
    rig.kernels(0).put_signal(rig.pads(), 1, rig.options(0, 6));
    rig.kernels(0).put_signal(rig.pads(), 1, rig.options(0, 6, milliseconds(200)));
    require_trapped(rig, ErrorCode::kTimeout,
                    {"put_signal on channel 6", "rank 0 waited for rank 1 to take"});
  });
}

TEST_F(SignalTrapAloneDeathTest, ABarrierThatTimesOutEndsTheContext) {
  run([](GpuRuntime& runtime) {
    SignalRig rig(runtime, 3, true);
    for (const int rank : {0, 2}) {
      rig.kernels(rank).barrier(rig.pads(), rig.options(rank, 1, milliseconds(300)));
    }
    require_trapped(rig, ErrorCode::kTimeout, {"barrier on channel 1", "waited for rank 1,"});
  });
}

TEST_F(SignalTrapAloneDeathTest, AReplayThatTimesOutEndsTheContext) {
  run([](GpuRuntime& runtime) {
    SignalRig rig(runtime, 2, true);
    SignalGraph graph(rig.stream(0), [&] {
      rig.kernels(0).wait_signal(rig.pads(), 1, rig.options(0, 2, milliseconds(200)));
    });
    graph.launch(rig.stream(0));
    require_trapped(rig, ErrorCode::kTimeout, {"wait_signal on channel 2", "rank 1"});
  });
}

TEST_F(SignalTrapAloneDeathTest, ALostRankEndsTheContext) {
  run([](GpuRuntime& runtime) {
    SignalRig rig(runtime, 3, true);
    rig.kernels(0).barrier(rig.pads(), rig.options(0, 0, milliseconds(0)));
    require(rig.stays_busy(0), "the barrier did not wait");
    rig.kernels(0).lose(std::uint64_t{1} << 2, Error(ErrorCode::kPeerLost, "rank 2 is gone"));
    require_trapped(rig, ErrorCode::kPeerLost, {"rank 2 is gone"});
  });
}

// Pads in the host's memory can be read when the context is gone.
TEST_F(SignalTrapAloneDeathTest, ABarrierIsWithdrawnBeforeTheTrap) {
  run([](GpuRuntime& runtime) {
    constexpr std::size_t kPadBytes = 4096;
    SignalRig rig(runtime, 2, true);
    SignalSlot* pads[2] = {};
    std::vector<std::byte*> addresses;
    for (SignalSlot*& pad : pads) {
      pad = static_cast<SignalSlot*>(std::aligned_alloc(4096, kPadBytes));
      for (std::size_t i = 0; i < kPadBytes / sizeof(SignalSlot); ++i) pad[i] = kSignalEmpty;
      void* address = nullptr;
      SYMM_GPU_CHECK(gpuHostRegisterMapped(pad, kPadBytes));
      SYMM_GPU_CHECK(gpuHostGetDevicePointer(&address, pad));
      addresses.push_back(static_cast<std::byte*>(address));
    }
    rig.kernels(0).barrier({addresses, kPadBytes}, rig.options(0, 1, milliseconds(200)));
    require_trapped(rig, ErrorCode::kTimeout, {"barrier on channel 1"});
    require(pads[1][signal_slot(1, 2, 0)] == kSignalWithdrawn, "the signal is still there");
  });
}

TEST_F(SignalTrapAloneDeathTest, ASignalInTimeEndsNothing) {
  run([](GpuRuntime& runtime) {
    SignalRig rig(runtime, 2, true);
    for (int round = 0; round < 20; ++round) {
      for (int rank = 0; rank < 2; ++rank) {
        rig.kernels(rank).barrier(rig.pads(), rig.options(rank, 0));
      }
    }
    rig.kernels(0).put_signal(rig.pads(), 1, rig.options(0, 1));
    rig.kernels(1).wait_signal(rig.pads(), 0, rig.options(1, 1));
    require_usable();
    for (int rank = 0; rank < 2; ++rank) rig.kernels(rank).check();
  });
}

// What this rank's host ends of its own accord.
TEST_F(SignalTrapAloneDeathTest, AbortAndDestructionLeaveTheContextAlone) {
  run([](GpuRuntime& runtime) {
    SignalRig rig(runtime, 2, true);
    rig.kernels(0).barrier(rig.pads(), rig.options(0, 0, milliseconds(0)));
    rig.kernels(1).wait_signal(rig.pads(), 0, rig.options(1, 1, milliseconds(0)));
    require(rig.stays_busy(0) && rig.stays_busy(1), "the signals did not wait");
    rig.kernels(0).abort(Error(ErrorCode::kAborted, "the program gave up"));
    rig.destroy_kernels(1);
    require_usable();
    require_error(ErrorCode::kAborted, {"the program gave up"}, [&] { rig.kernels(0).check(); });
  });
}

TEST_F(SignalTrapAloneDeathTest, ARowExchangeThatTimesOutLeavesTheContextAlone) {
  run([](GpuRuntime& runtime) {
    SignalRig rig(runtime, 2, true);
    void* memory = nullptr;
    SYMM_GPU_CHECK(gpuMalloc(&memory, 1 << 16));
    auto* const bytes = static_cast<std::byte*>(memory);
    const std::vector<std::byte*> both(2, bytes);
    auto* const words = reinterpret_cast<std::int64_t*>(memory);
    rig.kernels(0).exchange_rows(rig.pads(),
                                 {.input_rows = 1,
                                  .output_rows = 1,
                                  .row_bytes = 16,
                                  .inputs = both,
                                  .splits = both,
                                  .output = bytes,
                                  .results = words,
                                  .scratch = words},
                                 rig.options(0, 2, milliseconds(200)));
    require_usable();
    require_error(ErrorCode::kTimeout, {"all_to_all_vdev on channel 2"},
                  [&] { rig.kernels(0).check(); });
    SYMM_GPU_CHECK(gpuFree(memory));
  });
}

}  // namespace
}  // namespace symm::test
