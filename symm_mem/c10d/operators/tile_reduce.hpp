// torch.ops.symm_mem.tile_reduce and multi_root_tile_reduce, on every device: a part of a matrix,
// such as a quadrant, summed over the ranks without a copy. The arguments are those of PyTorch's
// NVSHMEM kernels; it takes no multicast memory here.
//
// Tiles have two dimensions and any strides. Sums are made in group-rank order, narrow types in
// float32 and rounded once, as all_reduce of a symm group makes them.
//
// Collective over the group that is named. An operator returns when the result is there and no peer
// reads this rank's tiles any more; on a GPU it is work on the current stream, which may be
// captured, and that holds for what follows it there. Calls of one group come from one thread at a
// time. The tile that is written may be the root's own input; that it overlaps no other tile that
// is read is the caller's care. Wrong arguments raise c10::Error before anything is written, a
// dtype that has no sum c10::NotImplementedError; what ends a wait is raised by
// SymmetricMemory::barrier.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace symm {

// `root`, a group rank, gets the sum of the ranks' `in_tile` in its `out_tile`, which elsewhere is
// left alone. `in_tile` is symmetric, at the same offset on every rank; `out_tile` need not be.
// Both have one shape, one dtype and the same strides.
void tile_reduce(const at::Tensor& in_tile, const at::Tensor& out_tile, std::int64_t root,
                 const std::string& group_name, const std::string& reduce_op);

// Several at once: group rank `roots[i]` gets the sum of the ranks' `in_tiles[i]` in its
// `out_tile`. A rank is root of one tile at most. Every rank passes all tiles in the same order;
// the shape, dtype and strides of `out_tile` are those of the tile that this rank is root of.
void multi_root_tile_reduce(const std::vector<at::Tensor>& in_tiles, const at::Tensor& out_tile,
                            const std::vector<std::int64_t>& roots, const std::string& group_name,
                            const std::string& reduce_op);

}  // namespace symm
