// The signals of one group on one GPU, and the thread that ends them when a rank is gone.
//
// Kernels that wait for a peer cannot see that its process has ended. A thread looks at the group's
// connections every few milliseconds, calls no function of the device, and makes such kernels
// leave; the next operation then raises which ranks are gone. Thread safe.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

#include "kernels/gpu/interface/signal_kernels.hpp"
#include "symm_mem/device/device_runtime.hpp"
#include "symm_mem/group/peer_link.hpp"

namespace symm {

class DeviceSignals {
 public:
  // Loads the kernels and starts the thread. Cold, local. `link` must outlive the object.
  DeviceSignals(GpuRuntime& runtime, PeerLink& link);
  // Makes kernels leave and waits for the device; a forked child leaves both alone.
  ~DeviceSignals();
  DeviceSignals(const DeviceSignals&) = delete;
  DeviceSignals& operator=(const DeviceSignals&) = delete;

  SignalKernels& kernels() { return *kernels_; }

 private:
  void watch();
  void look();

  PeerLink& link_;
  GpuRuntime& runtime_;
  const std::uint32_t fork_generation_;
  std::unique_ptr<SignalKernels> kernels_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::unique_ptr<std::thread> thread_;
};

}  // namespace symm
