#include "kernels/gpu/launch/norm_launch.hpp"

#include <algorithm>

namespace symm {

namespace {

// That a rank sends in one hop. Two hops send less in larger groups; from where on they and a norm
// behind them would be faster has not been measured.
constexpr std::uint64_t kMostSent = 2 * 1024 * 1024;
constexpr std::uint32_t kUnit = 16;  // rows begin at one in shared memory

}  // namespace

NormParams norm_params(const CollectiveArgs& args) {
  const RowNorm& given = args.norm;
  NormParams norm{};
  norm.input = static_cast<const std::byte*>(args.input);
  norm.residual = static_cast<const std::byte*>(given.residual);
  norm.weight = static_cast<const std::byte*>(given.weight);
  norm.total = static_cast<std::byte*>(args.output);
  norm.result = static_cast<std::byte*>(given.result);
  norm.eps = given.eps;
  norm.rows = args.count / given.columns;
  norm.inverse_columns = 1.0 / static_cast<double>(given.columns);
  norm.eps_float32 = static_cast<float>(norm.eps);
  norm.inverse_columns_float32 = static_cast<float>(norm.inverse_columns);
  const std::uint64_t row_bytes = given.columns * dtype_bytes(args.dtype);
  const std::uint64_t most_parts = divided_up(row_bytes, kNormPartBytes);
  const std::uint64_t part_bytes = divided_up(row_bytes, most_parts * kUnit) * kUnit;
  norm.row_bytes = static_cast<std::uint32_t>(row_bytes);
  norm.row_parts = static_cast<std::uint32_t>(divided_up(row_bytes, part_bytes));
  norm.part_bytes = static_cast<std::uint32_t>(part_bytes);
  return norm;
}

bool has_whole_rows(const NormParams& norm) {
  const auto is_whole = [](const void* data) {
    return reinterpret_cast<std::uintptr_t>(data) % kUnit == 0;
  };
  return norm.row_bytes % kUnit == 0 && is_whole(norm.input) && is_whole(norm.residual) &&
         is_whole(norm.weight) && is_whole(norm.total) && is_whole(norm.result);
}

bool fits_norm_launch(NormParams& norm, const NormFacts& facts, WireLaunch& launch) {
  const auto peers = static_cast<std::uint64_t>(std::max(facts.world_size - 1, 1));
  if (norm.rows == 0 || norm.row_bytes % kUnit != 0) return false;
  if (norm.rows * norm.row_bytes * peers > kMostSent) return false;
  const auto most_blocks = static_cast<std::uint64_t>(facts.most_blocks);
  // Few long rows: blocks share a row.
  const bool shares = norm.row_parts > 1 && norm.rows * norm.row_parts <= most_blocks;
  const std::uint64_t rows = divided_up(norm.rows, most_blocks);
  const std::uint64_t bytes = shares ? norm.part_bytes : rows * norm.row_bytes;
  const std::uint64_t tiles = divided_up(bytes, wire_tile(facts.wire).bytes);
  if (bytes > kNormBlockBytes || tiles > facts.box_tiles) return false;
  norm.rows_per_block = shares ? 0 : static_cast<std::uint32_t>(rows);
  // Exact as far as there are blocks.
  static_assert(kMaxWireBlocks * kMaxWireBlocks <= 1 << 16);
  norm.inverse_parts = (1u << 16) / norm.row_parts + 1;
  launch.blocks =
      static_cast<unsigned>(shares ? norm.rows * norm.row_parts : divided_up(norm.rows, rows));
  launch.threads = kNormThreads;
  launch.tiles_per_block = static_cast<std::uint32_t>(tiles);
  launch.sends_same = true;
  launch.combines = true;
  return true;
}

}  // namespace symm
