// What GpuGroupKernels launches, on a machine without a GPU: stand-ins for the runtime and for the
// kernels, in launched.cpp. A kernel is an address that tells its table and place.
#pragma once

#include <string>
#include <vector>

#include "kernels/gpu/interface/kernel_table.hpp"
#include "kernels/gpu/interface/lone_message_params.hpp"

namespace symm::test {

struct Launched {
  std::string kernel;  // its name; empty for an address that is no kernel
  unsigned blocks;     // of all dimensions
  unsigned threads;
};

// In order, since the last call.
std::vector<Launched> take_launched();

}  // namespace symm::test
