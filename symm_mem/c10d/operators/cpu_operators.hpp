// torch.ops.symm_mem.* for CPU tensors: the operators of PyTorch's symmetric memory that need no
// multicast, with the arguments, checks and kinds of exception of PyTorch's CUDA kernels.
//
// They are collective over the group that is named, except where "local" is said. An operator
// returns when its result is there and no peer reads this rank's memory any more. Sums are made in
// group-rank order, in float32, and rounded once, so every rank gets the bits that all_reduce of a
// symm group gives. Every rank must pass a tensor of the same shape at the same offset of its
// allocation; as on CUDA, nothing checks that. Calls of one group come from one thread at a
// time. Wrong arguments raise c10::Error before anything is written, a dtype other than float32
// and bfloat16 c10::NotImplementedError; what ends a wait is raised by SymmetricMemory::barrier.
//
// What PyTorch's CUDA kernels can do for 2, 4 and 8 ranks only is done for any number of them, and
// an output that overlaps what peers read is refused. cpu_operator_library.cpp makes the kernels
// known to torch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace symm {

// The sum of the ranks' input, which is symmetric and keeps its value.
at::Tensor one_shot_all_reduce(const at::Tensor& input, const std::string& reduce_op,
                               const std::string& group_name);
at::Tensor one_shot_all_reduce_out(const at::Tensor& input, const std::string& reduce_op,
                                   const std::string& group_name, const at::Tensor& out);

// The same of local_input, which is copied to symm_buffer first. Where it is shorter, the rest of
// the buffer takes part unchanged.
at::Tensor one_shot_all_reduce_copy(const at::Tensor& symm_buffer, const at::Tensor& local_input,
                                    const std::string& reduce_op, const std::string& group_name);
at::Tensor one_shot_all_reduce_copy_out(const at::Tensor& symm_buffer,
                                        const at::Tensor& local_input, const std::string& reduce_op,
                                        const std::string& group_name, const at::Tensor& out);

// Every rank sums a share of the elements. The second form leaves this rank's share of the sum in
// input, where the other ranks take it from.
at::Tensor two_shot_all_reduce_(const at::Tensor& input, const std::string& reduce_op,
                                const std::string& group_name);
at::Tensor two_shot_all_reduce_out(const at::Tensor& input, const std::string& reduce_op,
                                   const std::string& group_name, const at::Tensor& output);

// This rank's share of the sum: of a flat input, or of its last dimension.
at::Tensor reduce_scatter_out(const at::Tensor& input, const std::string& group_name,
                              bool split_last_dim, const at::Tensor& output);

// Local. Writes `val` to `count` elements of a flat uint32 tensor from `offset` on; peers may poll
// them, and each is stored at once.
at::Tensor memset32_(const at::Tensor& input, std::int64_t offset, std::int64_t val,
                     std::int64_t count);

// Local. Writes one element; who sees it also sees what this rank has written before.
at::Tensor stream_write_value32_(const at::Tensor& input, std::int64_t offset, std::int64_t val);

// Local. The "sum" or "avg" of contiguous tensors of one shape and any dtype that symm reduces, in
// their order. Not one of PyTorch's: what torch_symm/_operators.py reduces with.
at::Tensor reduce_parts(at::TensorList parts, const std::string& reduce_op);

}  // namespace symm
