// GroupKernels by this library's kernels. Torch-free; compiled into a device library alone.
#pragma once

#include <memory>

#include "kernels/gpu/interface/group_kernels.hpp"

namespace symm {

// For `device_index` of this process, whose context is the calling thread's when the object is used
// and destroyed too, or is made so. Loads every kernel, so that a later launch never has to. Throws
// Error(kSystem) with the runtime's words.
std::unique_ptr<GroupKernels> make_gpu_group_kernels(const GroupKernelsConfig& config,
                                                     int device_index);

}  // namespace symm
