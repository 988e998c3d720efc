// What a multimem kernel (NOTE [Multimem] in multimem.cu) is given besides a collective's other
// parameters. Plain data; pointers are device addresses of this process.
//
// CollectiveParams::place is then the place of the output, for reduce_scatter of the input, and
// `factor` the bits of the input's place for all_reduce, which has two: so every rank announces
// both.
#pragma once

#include <cstddef>

#include "kernels/protocol/device_layout.hpp"

namespace symm {

// Threads of a block.
inline constexpr int kMultimemThreads = 512;

struct MultimemParams {
  const std::byte* input_multicast;
  std::byte* output_multicast;
  // By rank, the memory behind the multicast addresses: for the end of a message that does not fill
  // 16 bytes.
  const std::byte* inputs[kMaxDeviceRanks];
  std::byte* outputs[kMaxDeviceRanks];
};

}  // namespace symm
