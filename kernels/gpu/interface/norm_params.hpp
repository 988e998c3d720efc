// An all_reduce with the RMS norm of its rows (RowNorm in collective.hpp), as its kernels get it.
//
// Host and device; free of vendor headers; owns nothing.
#pragma once

#include <cstddef>
#include <cstdint>

namespace symm {

inline constexpr unsigned kNormThreads = 512;
// Rows of a block, which it keeps in shared memory between the sum and the norm.
inline constexpr std::uint32_t kNormBlockBytes = 32 * 1024;

// NOTE [Parts of a row]
// The squares of a row are added up by parts, of at most so many units of 16 bytes a thread, and
// the sums of its parts in their order. How a row is divided follows from its bytes alone:
// whichever kernel norms it, its bits are the same.
inline constexpr int kNormUnits = 2;
inline constexpr std::uint32_t kNormPartBytes = kNormUnits * kNormThreads * 16;

// Passed to the kernels by value. Matrices of `rows` rows of `row_bytes` bytes.
struct NormParams {
  const std::byte* input;     // of this rank
  const std::byte* residual;  // may be null
  const std::byte* weight;    // [row_bytes]
  std::byte* total;           // the sum, with the residual; may be `input`
  std::byte* result;
  double eps;
  std::uint64_t rows;
  std::uint64_t columns;
  std::uint32_t row_bytes;
  std::uint32_t row_parts;
  std::uint32_t part_bytes;      // a multiple of 16; the last part may be shorter
  std::uint32_t rows_per_block;  // of norm_wire_kernel; 0: a block has a part of a row
};

}  // namespace symm
