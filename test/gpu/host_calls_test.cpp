// By which calls these tests and the device library that they open reach the GPU.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "kernels/core/error.hpp"
#include "kernels/gpu/vendor/gpu_api.hpp"
#include "test/support/expect_error.hpp"
#include "test/support/gpu.hpp"

namespace symm {
namespace {

using test::error_of;
using test::expect_error;

// For whoever looks into the file.
[[gnu::used]] const char* const kHostCalls = kGpuHostCalls;

// The whole file of the opened library.
std::string library_bytes() {
  Dl_info found{};
  const auto runtime = reinterpret_cast<const void*>(test::gpu_library().runtime);
  if (::dladdr(runtime, &found) == 0) throw std::runtime_error("the library has no file");
  std::ifstream file(found.dli_fname, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::ptrdiff_t count_of(const std::string& bytes, const std::string& text) {
  std::ptrdiff_t count = 0;
  for (std::size_t at = bytes.find(text); at != std::string::npos; at = bytes.find(text, at + 1)) {
    ++count;
  }
  return count;
}

// The evidence of a run says by this for which calls it stands.
TEST(GpuHostCalls, TheLibrarysAreThoseOfTheTests) {
  RecordProperty("host_calls", kHostCalls);
  static_assert(std::is_same_v<gpuError_t, SYMM_GPU_NAME(Error_t)>);
  const std::string bytes = library_bytes();
  EXPECT_EQ(count_of(bytes, kGpuHostCalls), 1);
  EXPECT_EQ(count_of(bytes, "symm host calls: "), 1);
}

class GpuHostCallsTest : public test::GpuTest {};

// Names of errors are the driver's where CUDA's calls are made, and where HIP's are the runtime's.
TEST_F(GpuHostCallsTest, ErrorsHaveTheNamesThatTheCallsGive) {
  const auto error = error_of([&] { runtime_->allocate(std::size_t{1} << 46); });
  const bool is_hip = std::string(kHostCalls).find(": HIP on ") != std::string::npos;
  const std::string name = SYMM_GPU_NAME(GetErrorName)(SYMM_GPU_NAME(ErrorNotReady));
  const std::string runtime = name.substr(0, name.find("Error") + 5);  // cudaError or hipError
  expect_error(error, ErrorCode::kSystem, {is_hip ? runtime : "CUDA_ERROR_"});
  EXPECT_EQ(std::string(error->what()).find(is_hip ? "CUDA_ERROR_" : runtime), std::string::npos);
}

}  // namespace
}  // namespace symm
