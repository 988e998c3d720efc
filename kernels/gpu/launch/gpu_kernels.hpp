// GroupKernels and SignalKernels by this library's kernels. Torch-free; compiled into a device
// library alone.
#pragma once

#include <memory>

#include "kernels/gpu/interface/group_kernels.hpp"
#include "kernels/gpu/interface/signal_kernels.hpp"
#include "kernels/gpu/interface/signal_params.hpp"

namespace symm {

// For `device_index` of this process: construction, use and destruction make that device current in
// the calling thread, and restore the one before. Load every kernel, so that a later launch never
// has to. Throw Error(kSystem) with the runtime's message.
std::unique_ptr<GroupKernels> make_gpu_group_kernels(const GroupKernelsConfig& config,
                                                     int device_index);

// `state` is zero-filled memory of that device, which the object owns. Throws also
// Error(kInvalidArgument) where there are more ranks than kMaxDeviceRanks.
std::unique_ptr<SignalKernels> make_gpu_signal_kernels(const SignalKernelsConfig& config,
                                                       int device_index,
                                                       std::shared_ptr<SignalState> state);

}  // namespace symm
