// GroupKernels by this library's kernels. Torch-free; compiled into a device library alone.
#pragma once

#include <memory>

#include "kernels/gpu/interface/group_kernels.hpp"

namespace symm {

// For `device_index` of this process: construction, use and destruction make that device current in
// the calling thread, and restore the one before. Loads every kernel, so that a later launch never
// has to. Throws Error(kSystem) with the runtime's message.
std::unique_ptr<GroupKernels> make_gpu_group_kernels(const GroupKernelsConfig& config,
                                                     int device_index);

}  // namespace symm
