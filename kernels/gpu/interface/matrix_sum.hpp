// A sum over ranks of a part of a matrix (torch.ops.symm_mem.tile_reduce), as the host asks for it
// and as its kernel gets it.
//
// Host and device; free of vendor headers; owns nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/protocol/device_layout.hpp"

namespace symm {

// Where the elements lie, alike on every rank: `lines` lines of `runs` runs of `run_bytes` bytes,
// which are whole elements side by side. Strides are in bytes.
struct MatrixPart {
  std::uint64_t lines;
  std::uint64_t runs;
  std::uint64_t run_bytes;
  std::int64_t line_stride;
  std::int64_t run_stride;
};

// Passed to the kernel by value. Addresses of the first element in this process, aligned to its
// size.
struct MatrixSum {
  MatrixPart part;
  std::byte* output;                         // of this rank; may be its own input
  const std::byte* inputs[kMaxDeviceRanks];  // by rank, which is the order of the sum
};

}  // namespace symm
