// SignalKernels by this library's kernels. Torch-free; compiled into a device library alone.
#pragma once

#include <memory>

#include "kernels/gpu/interface/signal_kernels.hpp"
#include "kernels/gpu/interface/signal_params.hpp"

namespace symm {

// For `device_index` of this process: construction, use and destruction make that device current in
// the calling thread, and restore the one before. `state` is zero-filled memory of that device,
// which the object owns. Loads every kernel, so that a launch never has to. Throws
// Error(kInvalidArgument) where there are more ranks than kMaxDeviceRanks, Error(kSystem) with the
// runtime's message.
std::unique_ptr<SignalKernels> make_gpu_signal_kernels(const SignalKernelsConfig& config,
                                                       int device_index,
                                                       std::shared_ptr<SignalState> state);

// signal.cu; its only parameter is SignalParams.
const void* signal_kernel_address();

}  // namespace symm
