// What a caller asks of a collective, on one rank.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/core/dtype.hpp"
#include "kernels/core/reduce_op.hpp"

namespace symm {

enum class CollectiveKind : std::uint8_t {
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kGather,
  kScatter,
  kReduceScatter,
  kAllToAll,
  kBarrier,
};
inline constexpr int kCollectiveKindCount = 9;

inline constexpr std::array<std::string_view, kCollectiveKindCount> kCollectiveKindNames = {
    "all_reduce", "reduce",         "broadcast",  "all_gather", "gather",
    "scatter",    "reduce_scatter", "all_to_all", "barrier"};

constexpr std::string_view collective_name(CollectiveKind kind) {
  return kCollectiveKindNames[static_cast<std::size_t>(kind)];
}

// True where the elements of the ranks are combined by a ReduceOp.
constexpr bool reduces(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduce ||
         kind == CollectiveKind::kReduceScatter;
}

// True where one rank's input or output is not as the others'.
constexpr bool has_root(CollectiveKind kind) {
  return kind == CollectiveKind::kReduce || kind == CollectiveKind::kBroadcast ||
         kind == CollectiveKind::kGather || kind == CollectiveKind::kScatter;
}

// One rank's share of a tensor list or of a split tensor. `count` is in elements; `data` may be
// null where count is 0. Alignment is arbitrary.
struct Part {
  void* data = nullptr;
  std::size_t count = 0;
};

// What an all_reduce makes of its result besides: the RMS norm of each row,
//   output = sum of the ranks' inputs + residual, each rounded to the dtype
//   result = output / sqrt(mean(output^2 of the row) + eps) * weight, rounded once
// All memory is this rank's own, and the same on every rank but for `residual`, of which that is
// the caller's care. On a GPU only; float16, bfloat16, float32 and float64.
struct RowNorm {
  std::size_t columns = 0;  // of a row, which divides count; 0: no norm
  double eps = 0.0;
  const void* weight = nullptr;    // [columns]
  const void* residual = nullptr;  // [count], or null
  void* result = nullptr;          // [count]; overlaps nothing else
};

// Buffers by collective (r is a group rank, N the world size; all memory belongs to the caller and
// must stay valid until the call has returned):
//
//   kind            input          output         input_parts        output_parts
//   all_reduce      count          count          -                  -
//   reduce          count          count at root  -                  -
//   broadcast       count at root  count          -                  -
//   all_gather      count          -              -                  [N], r's share at r
//   gather          count          -              -                  [N] at root
//   scatter         -              count          [N] at root        -
//   reduce_scatter  -              count          [N], share for r   -
//   all_to_all      -              -              [N], to r          [N], from r
//   barrier         -              -              -                  -
//
// output may equal input (in place); for all_gather output_parts[rank].data may equal input, and
// for reduce_scatter output may equal input_parts[rank].data. Other overlap is refused.
// all_gather and reduce_scatter accept shares of different size; every rank must then pass the
// same list of counts.
struct CollectiveArgs {
  CollectiveKind kind = CollectiveKind::kBarrier;
  Dtype dtype = Dtype::kUInt8;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;         // group rank
  double factor = 1.0;  // this rank's PREMUL_SUM factor
  std::size_t count = 0;
  const void* input = nullptr;
  void* output = nullptr;
  std::span<const Part> input_parts;
  std::span<const Part> output_parts;
  // Hash of a dense, non-contiguous layout that all ranks must share; 0 for contiguous tensors.
  std::uint32_t layout = 0;
  RowNorm norm{};  // of an all_reduce
};

// True where results take the place of what `rank` contributes to them.
inline bool reduces_in_place(const CollectiveArgs& args, int rank) {
  if (!reduces(args.kind)) return false;
  const auto own = static_cast<std::size_t>(rank);
  return args.output == (args.input_parts.empty() ? args.input : args.input_parts[own].data);
}

// Bytes of this rank's outputs.
inline std::size_t output_bytes(const CollectiveArgs& args) {
  std::size_t count = args.output != nullptr ? args.count : 0;
  for (const Part& part : args.output_parts) count += part.count;
  return count * dtype_bytes(args.dtype);
}

}  // namespace symm
