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
void sum_tile(const PeerBuffers& tiles, Dtype dtype, const at::Tensor& out) {
  if (out.numel() == 0) return;
  const int inner = out.stride(1) == 1 || out.size(1) == 1 ? 1 : 0;
  const int outer = 1 - inner;
  std::int64_t run = out.stride(inner) == 1 || out.size(inner) == 1 ? out.size(inner) : 1;
  std::int64_t lines = out.size(outer);
  if (run == out.size(inner) && out.stride(outer) == run) {
    run *= lines;
    lines = 1;
  }
  const std::int64_t runs = out.numel() / run / lines;  // of a line
  RankSum sum(tiles, dtype);
  auto* const result = static_cast<std::byte*>(out.mutable_data_ptr());
  for (std::int64_t line = 0; line < lines; ++line) {
    for (std::int64_t part = 0; part < runs; ++part) {
      const auto first =
          static_cast<std::size_t>(line * out.stride(outer) + part * out.stride(inner));
      sum(result + first * tiles.element_bytes(), first, static_cast<std::size_t>(run));
    }
  }
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
