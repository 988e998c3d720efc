#include "symm_mem/c10d/operators/tile_reduce.hpp"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <optional>

#include "kernels/core/reduce_op.hpp"
#include "symm_mem/c10d/operators/operand_checks.hpp"
#include "symm_mem/c10d/operators/peer_buffers.hpp"
#include "symm_mem/c10d/tensor_properties.hpp"

namespace symm {

namespace {

void check_two_dimensions(const char* op, const char* name, const at::Tensor& tile) {
  TORCH_CHECK(tile.dim() == 2, op, ": ", name, " must have two dimensions, got shape ",
              printed(tile.sizes()));
}

Dtype checked_pair(const char* op, const char* in_name, const at::Tensor& in_tile,
                   const at::Tensor& out_tile) {
  const at::ScalarType type = in_tile.scalar_type();
  TORCH_CHECK(out_tile.scalar_type() == type, op, ": out_tile must have the dtype of ", in_name,
              ", ", type, ", got ", out_tile.scalar_type());
  TORCH_CHECK(out_tile.device() == in_tile.device(), op, ": out_tile must be on the device of ",
              in_name, ", ", in_tile.device().str(), ", got ", out_tile.device().str());
  TORCH_CHECK(out_tile.sizes() == in_tile.sizes(), op, ": out_tile must have the shape of ",
              in_name, ", ", printed(in_tile.sizes()), ", got ", printed(out_tile.sizes()));
  TORCH_CHECK(out_tile.strides() == in_tile.strides(), op, ": out_tile must have the strides of ",
              in_name, ", ", printed(in_tile.strides()), ", got ", printed(out_tile.strides()));
  const std::optional<Dtype> dtype = dtype_of(type);
  TORCH_CHECK_NOT_IMPLEMENTED(dtype && op_supports(ReduceOp::kSum, *dtype), op, ": ", in_name,
                              ": there is no sum of ", type);
  return *dtype;
}

// Elements that lie next to each other are summed in one go: a row, a column of a transposed tile,
// or the whole of one without gaps.
MatrixPart part_of(const at::Tensor& tile) {
  const int inner = tile.stride(1) == 1 || tile.size(1) == 1 ? 1 : 0;
  const int outer = 1 - inner;
  std::int64_t run = tile.stride(inner) == 1 || tile.size(inner) == 1 ? tile.size(inner) : 1;
  std::int64_t lines = tile.size(outer);
  if (run == tile.size(inner) && tile.stride(outer) == run) {
    run *= lines;
    lines = 1;
  }
  const auto element = static_cast<std::int64_t>(tile.element_size());
  return {.lines = static_cast<std::uint64_t>(lines),
          .runs = static_cast<std::uint64_t>(tile.numel() / run / lines),
          .run_bytes = static_cast<std::uint64_t>(run * element),
          .line_stride = tile.stride(outer) * element,
          .run_stride = tile.stride(inner) * element};
}

void sum_on_host(const PeerBuffers& tiles, Dtype dtype, const MatrixPart& part, std::byte* result) {
  RankSum sum(tiles, dtype);
  for (std::uint64_t line = 0; line < part.lines; ++line) {
    for (std::uint64_t run = 0; run < part.runs; ++run) {
      const std::size_t first = line * static_cast<std::size_t>(part.line_stride) +
                                run * static_cast<std::size_t>(part.run_stride);
      sum(result + first, first / tiles.element_bytes(), part.run_bytes / tiles.element_bytes());
    }
  }
}

void sum_tile(const PeerBuffers& tiles, Dtype dtype, const at::Tensor& out) {
  if (out.numel() == 0) return;
  const MatrixPart part = part_of(out);
  auto* const result = static_cast<std::byte*>(out.mutable_data_ptr());
  if (out.is_cpu()) {
    sum_on_host(tiles, dtype, part, result);
    return;
  }
  tiles.launch([&](SignalKernels& kernels, const SignalPads&, const SignalOptions& options) {
    kernels.sum_matrices(dtype, part, tiles.addresses(), result, options);
  });
}

}  // namespace

void tile_reduce(const at::Tensor& in_tile, const at::Tensor& out_tile, std::int64_t root,
                 const std::string& group_name, const std::string& reduce_op) {
  constexpr auto* op = "tile_reduce";
  check_sum(op, reduce_op);
  check_two_dimensions(op, "in_tile", in_tile);
  check_two_dimensions(op, "out_tile", out_tile);
  const Dtype dtype = checked_pair(op, "in_tile", in_tile, out_tile);
  const PeerBuffers tiles(op, "in_tile", in_tile, group_name);
  TORCH_CHECK(root >= 0 && root < tiles.world_size(), op,
              ": root must be a rank of the group, 0 to ", std::to_string(tiles.world_size() - 1),
              ", got ", std::to_string(root));
  tiles.barrier();
  if (root == tiles.rank()) sum_tile(tiles, dtype, out_tile);
  tiles.barrier();
}

void multi_root_tile_reduce(const std::vector<at::Tensor>& in_tiles, const at::Tensor& out_tile,
                            const std::vector<std::int64_t>& roots, const std::string& group_name,
                            const std::string& reduce_op) {
  constexpr auto* op = "multi_root_tile_reduce";
  check_sum(op, reduce_op);
  check_two_dimensions(op, "out_tile", out_tile);
  TORCH_CHECK(!in_tiles.empty() && roots.size() == in_tiles.size(), op,
              ": roots must have one rank for each tile of in_tiles, of which there is one at "
              "least, got ",
              std::to_string(roots.size()), " roots of ", std::to_string(in_tiles.size()),
              " tiles");
  std::vector<PeerBuffers> tiles;
  for (const at::Tensor& tile : in_tiles) {
    check_two_dimensions(op, "each tile of in_tiles", tile);
    tiles.emplace_back(op, "each tile of in_tiles", tile, group_name);
  }
  const PeerBuffers& first = tiles.front();
  for (auto root = roots.begin(); root != roots.end(); ++root) {
    TORCH_CHECK(*root >= 0 && *root < first.world_size(), op,
                ": roots must be ranks of the group, 0 to ", std::to_string(first.world_size() - 1),
                ", got ", std::to_string(*root));
    TORCH_CHECK(std::find(roots.begin(), root, *root) == root, op,
                ": roots must name a rank once at most, got ", std::to_string(*root), " twice");
  }
  const auto mine = std::find(roots.begin(), roots.end(), first.rank());
  const auto index = static_cast<std::size_t>(mine - roots.begin());
  std::optional<Dtype> dtype;
  if (mine != roots.end()) {
    dtype = checked_pair(op, "this rank's tile of in_tiles", in_tiles[index], out_tile);
  }
  first.barrier();
  if (dtype) sum_tile(tiles[index], *dtype, out_tile);
  first.barrier();
}

}  // namespace symm
