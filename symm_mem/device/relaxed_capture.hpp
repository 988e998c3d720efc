// A scope in which a thread may do what a graph capture forbids.
#pragma once

#include "symm_mem/device/device_runtime.hpp"

namespace symm {

// Lets this thread do what a graph capture in this or another thread forbids, while it lives.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(GpuRuntime& runtime)
      : runtime_(runtime), before_(runtime.relax_capture_mode()) {}
  ~RelaxedCapture() { runtime_.restore_capture_mode(before_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  GpuRuntime& runtime_;
  const int before_;
};

}  // namespace symm
