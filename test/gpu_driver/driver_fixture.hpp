// The CUDA device library over the stand-in for the driver.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <stdexcept>

#include "symm_mem/device/device_library.hpp"
#include "test/support/fake_gpu_driver.hpp"

namespace symm::test {

inline void* fake_driver() {
  // Whoever opens libcuda.so.1 later gets this one, whose soname that is.
  static void* const handle = ::dlopen(SYMM_TEST_FAKE_DRIVER, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw std::runtime_error(::dlerror());
  return handle;
}

template <typename Function>
Function driver_entry(const char* name) {
  return reinterpret_cast<Function>(::dlsym(fake_driver(), name));
}

inline FakeGpuDriverState& state() {
  return *driver_entry<FakeGpuDriverState*>("fake_gpu_driver_state");
}

inline GpuRuntime& runtime(int index) {
  fake_driver();
  return open_device_library(SYMM_TEST_CUDA_DIRECTORY, DeviceKind::kCuda).runtime(index);
}

class GpuDriver : public ::testing::Test {
 protected:
  // Devices 0 to `count` - 1, made so that a test may use them all.
  static void use_devices(int count) {
    state().device_count = count;
    for (int device = 0; device < count; ++device) runtime(device);
  }
  void SetUp() override {
    runtime_ = &runtime(0);
    before_ = state();
  }
  void TearDown() override {
    EXPECT_EQ(state().handles, before_.handles);
    EXPECT_EQ(state().ranges, before_.ranges);
    EXPECT_EQ(state().mappings, before_.mappings);
    EXPECT_EQ(state().multicast_bindings, before_.multicast_bindings);
    EXPECT_EQ(state().multicast_early, 0);
    EXPECT_EQ(state().calls_elsewhere, 0);
    EXPECT_EQ(current_context(), nullptr);
    static_cast<FakeGpuDriverSettings&>(state()) = before_;
  }
  static void* current_context() {
    void* context = nullptr;
    driver_entry<int (*)(void**)>("cuCtxGetCurrent")(&context);
    return context;
  }
  std::size_t granule() const { return runtime_->granularity(); }

  GpuRuntime* runtime_ = nullptr;
  FakeGpuDriverState before_;
};

}  // namespace symm::test
