// The signals of one group on one GPU of this rank. Kernels that wait for a peer cannot see that
// its process has ended: a task of the group's watchdog ends them, and the next operation raises
// an error that names the ranks. A peer that has left in good order has put what it was to put, so
// only waits for that peer end. This rank leaves once its own signals are done. Thread safe.
#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include "kernels/gpu/interface/signal_kernels.hpp"
#include "symm_mem/device/device_runtime.hpp"
#include "symm_mem/group/failure_exit.hpp"
#include "symm_mem/group/local_group.hpp"

namespace symm {

// SYMM_SIGNAL_TRAP. 1: a signal on a GPU that does not come ends the device's context (NOTE [Traps]
// in signal_kernels.hpp); 0: as unset. Throws Error(kInvalidArgument) that names the variable.
bool signal_trap_in_environment();

class DeviceSignals final : public WatchdogTask {
 public:
  // Loads the kernels. Cold, local. `group` must outlive the object. Reads SYMM_SIGNAL_TRAP.
  DeviceSignals(GpuRuntime& runtime, LocalGroup& group);
  // Ends what waits and waits for the device; a forked child leaves it alone.
  ~DeviceSignals() override;

  SignalKernels& kernels() { return *kernels_; }

  void look(bool at_connections) override;

  // What SYMM_ON_FAILURE=abort ends the process for: nothing once this rank has left, and nothing
  // because a peer has left in good order, until a kernel gives up for it.
  std::optional<Error> failure() const;

 private:
  LocalGroup& group_;
  GpuRuntime& runtime_;
  std::unique_ptr<SignalKernels> kernels_;
  std::atomic<bool> aborted_{false};  // the group has failed, or a peer has died
  std::unique_ptr<FailureExit> failure_exit_;
};

}  // namespace symm
