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

// Of few_rows_kernel (kernels/gpu/wire/few_rows.cuh): tiles that a warp has at once, by kernel. In
// the first two a block has one part of a row, or a row of one part; in the last any whole rows.
inline constexpr std::uint32_t kFewRowsTiles[] = {1, 2, 4};
inline constexpr int kFewRowsKernels = 3;
inline constexpr std::uint32_t kFewRowsWarps = 18;  // of a block at most: for 8192 bytes by lines

// Passed to the kernels by value. Matrices of `rows` rows of `row_bytes` bytes.
struct NormParams {
  const std::byte* input;     // of this rank
  const std::byte* residual;  // may be null
  const std::byte* weight;    // [row_bytes]
  std::byte* total;           // the sum, with the residual; may be `input`
  std::byte* result;
  double eps;
  double inverse_columns;
  float eps_float32;
  float inverse_columns_float32;
  std::uint64_t rows;
  std::uint32_t row_bytes;
  std::uint32_t row_parts;
  std::uint32_t part_bytes;      // a multiple of 16; the last part may be shorter
  std::uint32_t rows_per_block;  // over a wire; 0: a block has a part of a row
  // Of few_rows_kernel: a number of a block times this, >> 16, is the number of its row.
  std::uint32_t inverse_parts;
};

}  // namespace symm
