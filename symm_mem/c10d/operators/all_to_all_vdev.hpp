// torch.ops.symm_mem.all_to_all_vdev and its two-dimensional forms, on every device: rows of
// `input` go to the other ranks in numbers that only the tensors of splits hold, and arrive in
// `out`. The arguments and the results are those of PyTorch's NVSHMEM kernels.
//
// A row is what lies below the first dimension; splits and offsets count rows and are int64. World
// size is W, and `ne`, the number of experts of a rank, follows from the shapes.
//
// Collective over the group that is named; every rank passes tensors of the same shapes, the
// symmetric ones at the same offset of their allocations; nothing checks that. `input` and the
// splits must be symmetric, `out` and `out_splits_offsets` need not be. An operator returns when
// its results are there and no peer reads this rank's memory any more; on a GPU it is work on the
// current stream, which may be captured, and that holds for what follows it there. Calls of one
// group come from one thread at a time. Rows of `out` into which nothing falls keep their value.
//
// Wrong arguments raise c10::Error before anything is written. What the splits say is compared on
// every rank: where those of one rank are negative, exceed its input or fill another's `out`, all
// ranks raise the same, which names that rank, and `out` and `out_splits_offsets` stay as they
// were. On a GPU they raise at the group's next signal, of which none follows (NOTE [Signals that
// fail] in signal_kernels.hpp). What ends a wait is raised by SymmetricMemory::barrier.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

namespace symm {

// `in_splits` [W]: rows for each rank, which lie one after the other in `input`.
// `out_splits_offsets` [2, W] gets the rows from each rank, and where they begin in `out`: one
// after the other, in rank order.
void all_to_all_vdev(const at::Tensor& input, const at::Tensor& out, const at::Tensor& in_splits,
                     const at::Tensor& out_splits_offsets, const std::string& group_name);

// Dispatch. `in_splits` [W * ne]: rows for expert 0 of rank 0, for its expert 1, and so on.
// `out_splits_offsets` [2, ne * W] gets what came: for expert 0 from rank 0, from rank 1, and so
// on. The rows of an expert lie one after the other; the next expert begins at the next multiple of
// `major_align` (1 where it is none), and also where an expert got nothing `major_align` rows are
// left for it.
void all_to_all_vdev_2d(const at::Tensor& input, const at::Tensor& out, const at::Tensor& in_splits,
                        const at::Tensor& out_splits_offsets, const std::string& group_name,
                        std::optional<std::int64_t> major_align);

// Combine, the way back. `in_splits_offsets` [2, ne * W]: rows of expert 0 for rank 0, for rank 1,
// and so on, and where they begin in `input`. `out_splits_offsets` [2, W * ne] gets what came: from
// expert 0 of rank 0, from its expert 1, and so on, one after the other.
void all_to_all_vdev_2d_offset(const at::Tensor& input, const at::Tensor& out,
                               const at::Tensor& in_splits_offsets,
                               const at::Tensor& out_splits_offsets, const std::string& group_name);

}  // namespace symm
