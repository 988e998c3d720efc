// A GPU of this machine for torch-free tests, and copies between it and the host that fail loudly.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/core/error.hpp"
#include "kernels/gpu/vendor/gpu_api.hpp"
#include "symm_mem/device/device_library.hpp"
#include "test/support/gpu_calls.hpp"

namespace symm::test {

// How many hardware queues the streams of this process have; read by the driver when it starts.
inline bool set_queues(const char* number) {
  return ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", number, 1) == 0;
}
// Ranks of one process need queues of their own: a kernel that waits for a peer must not stand
// before the peer's in a queue. With 32 of them a context takes the driver more than a second, one
// after the other for all processes of the machine, with 8 less than a fifth of one: a forked child
// with few streams asks for those.
inline const bool kQueuesAreSeparate = set_queues("32");
inline constexpr auto kQueuesOfAChild = "8";

inline const DeviceLibrary& gpu_library() {
  return open_device_library(SYMM_TEST_CUDA_DIRECTORY, DeviceKind::kCuda);
}

// Why this machine has no GPU to test on, empty where it has one. Any other problem of the library
// is thrown: it must not pass for a machine without a GPU.
inline std::optional<std::string> no_gpu_reason() {
  const DeviceLibrary& library = gpu_library();
  try {
    library.runtime(0);
    return std::nullopt;
  } catch (const Error& error) {
    const std::string text = error.what();
    if (text.find("driver is not installed") == std::string::npos &&
        text.find("no GPU is visible") == std::string::npos) {
      throw;
    }
    return text;
  }
}

inline void gpu_check(gpuError_t error, const char* what) {
  if (error == gpuSuccess) return;
  throw std::runtime_error(std::string(what) + ": " + gpuGetErrorString(error));
}
#define SYMM_GPU_CHECK(call) ::symm::test::gpu_check((call), #call)

// Each test begins on device 0. Skipped with the reason where there is no GPU.
class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = no_gpu_reason()) GTEST_SKIP() << *reason;
    SYMM_GPU_CHECK(gpuSetDevice(0));
    SYMM_GPU_CHECK(SYMM_GPU_NAME(GetDeviceCount)(&gpu_count_));
    runtime_ = &gpu_library().runtime(0);
  }

  GpuRuntime* runtime_ = nullptr;
  int gpu_count_ = 0;
};

template <typename T>
std::vector<T> read_gpu(const std::byte* source, std::size_t count) {
  std::vector<T> values(count);
  SYMM_GPU_CHECK(SYMM_GPU_NAME(Memcpy)(values.data(), source, count * sizeof(T),
                                       SYMM_GPU_NAME(MemcpyDeviceToHost)));
  return values;
}

template <typename T>
void write_gpu(std::byte* destination, const std::vector<T>& values) {
  SYMM_GPU_CHECK(
      gpuMemcpy(destination, values.data(), values.size() * sizeof(T), gpuMemcpyHostToDevice));
  // A copy from pageable memory returns before the last of it has arrived.
  SYMM_GPU_CHECK(gpuStreamSynchronize(nullptr));
}

// Words of which no two are the same, whatever the owner and the place.
inline std::vector<std::uint64_t> gpu_words(int owner, std::size_t count, std::size_t first = 0) {
  std::vector<std::uint64_t> words(count);
  for (std::size_t i = 0; i < count; ++i) {
    words[i] =
        0x9e3779b97f4a7c15u * (static_cast<std::uint64_t>(owner) * 1'000'003 + first + i + 1);
  }
  return words;
}

}  // namespace symm::test
