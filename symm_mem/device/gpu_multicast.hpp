// Multicast objects of a GPU's driver.
#pragma once

#include <memory>

#include "symm_mem/device/gpu_device.hpp"
#include "symm_mem/device/multicast_object.hpp"

namespace symm {

// `device` must outlive the result and every object.
std::unique_ptr<MulticastDevice> make_gpu_multicast(const GpuDevice& device);

}  // namespace symm
