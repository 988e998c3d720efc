// The parameters of a multimem kernel (NOTE [Multimem] in multimem.cu) besides those of every
// collective. Plain data; pointers are device addresses of this process.
//
// CollectiveParams::location is then that of the output, for reduce_scatter of the input.
// all_reduce has two locations: `factor` holds the bits of the input's, so that the location
// exchange sends both.
#pragma once

#include <cstddef>

#include "kernels/protocol/device_layout.hpp"

namespace symm {

// Threads of a block.
inline constexpr int kMultimemThreads = 512;

struct MultimemParams {
  const std::byte* input_multicast;
  std::byte* output_multicast;
  // By rank, the memory of the multicast addresses: for the end of a message that does not fill 16
  // bytes.
  const std::byte* inputs[kMaxDeviceRanks];
  std::byte* outputs[kMaxDeviceRanks];
};

}  // namespace symm
