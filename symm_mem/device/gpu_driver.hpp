// The entry points of the GPU's driver, found when they are first asked for.
#pragma once

#include <string>

#include "kernels/gpu/vendor/gpu_driver_api.hpp"

namespace symm {

struct GpuDriver {
#define SYMM_MEMBER(member, vendor) decltype(&vendor) member = nullptr;
  SYMM_GPU_DRIVER_ENTRIES(SYMM_MEMBER)
#undef SYMM_MEMBER
#define SYMM_OWN_MEMBER(member, function) decltype(&function) member = &function;
  SYMM_GPU_DRIVER_OWN_ENTRIES(SYMM_OWN_MEMBER)
#undef SYMM_OWN_MEMBER

  // "CUDA_ERROR_INVALID_VALUE (invalid argument)".
  std::string describe(gpuResult_t result) const;

  // Throws Error(kSystem, "<action> failed: <description>") unless `result` is success.
  void check(gpuResult_t result, const std::string& action) const;
};

// The driver, started; at least one GPU is visible. Throws Error(kUnsupported) with one sentence
// that says what is missing: a driver, a newer one, or a GPU; a later call looks again. The library
// of the driver stays open. Thread safe.
const GpuDriver& gpu_driver();

// GPUs that this process sees; at least 1.
int gpu_count(const GpuDriver& driver);

}  // namespace symm
