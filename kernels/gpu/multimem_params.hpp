// What a multimem kernel is given. Plain data; pointers are device addresses of this process.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/core/collective.hpp"
#include "kernels/gpu/signal_params.hpp"

namespace symm {

struct MultimemParams {
  CollectiveKind kind;
  std::int32_t root;
  std::uint64_t bytes;  // of the message or of one share
  const std::byte* input_multicast;
  std::byte* output_multicast;
  const std::byte* input;  // this rank's own, for all_gather and broadcast
  std::byte* output;       // this rank's own, for reduce_scatter
  // By rank, the memory behind the multicast addresses: for the end of a message that does not fill
  // 16 bytes.
  const std::byte* inputs[kMaxDeviceRanks];
  std::byte* outputs[kMaxDeviceRanks];
};

}  // namespace symm
