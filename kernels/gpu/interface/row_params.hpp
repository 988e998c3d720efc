// The parameters of the kernels of a row exchange, and their memory of the device.
//
// Host and device; free of vendor headers; owns nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/core/platform.hpp"
#include "kernels/protocol/device_layout.hpp"
#include "kernels/protocol/row_exchange.hpp"

namespace symm {

// Passed by value, like SignalParams. Pointers are device addresses of this process; rows may have
// any size and address.
struct RowParams {
  RowExchangeShape shape;
  std::uint64_t row_bytes;
  std::byte* output;
  std::int64_t* results;  // [2, slots]: counts and begins of the output
  std::int64_t* scratch;  // row_scratch_words(shape), in any state
  // By rank.
  const std::byte* inputs[kMaxDeviceRanks];
  const std::int64_t* splits[kMaxDeviceRanks];  // [slots]; kCombine: [2, slots]
};

// What the first kernel tells the second: the counts and begins of what all ranks send
// [W, slots], sums of parts [W, slots], where the slots of this rank's output begin [slots], a
// verdict and a ticket of blocks.
SYMM_INLINE constexpr std::size_t row_scratch_words(const RowExchangeShape& shape) {
  const auto world = static_cast<std::size_t>(shape.world_size);
  return (3 * world + 1) * world * static_cast<std::size_t>(shape.experts) + 2;
}

}  // namespace symm
