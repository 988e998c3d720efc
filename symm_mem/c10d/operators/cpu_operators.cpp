#include "symm_mem/c10d/operators/cpu_operators.hpp"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

#include "kernels/core/atomics.hpp"
#include "kernels/cpu/reduce_kernels.hpp"
#include "symm_mem/c10d/operators/operand_checks.hpp"
#include "symm_mem/c10d/operators/peer_buffers.hpp"
#include "symm_mem/c10d/tensor_properties.hpp"

namespace symm {

namespace {

// Numbers in messages: see NOTE [Numbers and iostreams] in kernels/core/decimal.hpp.
using std::to_string;

// The widest vector access that PyTorch's CUDA kernels make at a multiple of `bytes`.
std::size_t vector_alignment(std::size_t bytes) {
  for (const std::size_t alignment : {16, 8, 4, 2}) {
    if (bytes % alignment == 0) return alignment;
  }
  return 1;
}

std::size_t checked_alignment(const char* op, const char* name, const at::Tensor& tensor) {
  const auto least = std::max<std::size_t>(4, tensor.element_size());
  const std::size_t offset = tensor.storage_offset() * tensor.element_size();
  TORCH_CHECK(vector_alignment(offset) >= least, op, ": ", name, " (", tensor.scalar_type(),
              ") must start at a multiple of ", to_string(least), " bytes, got byte ",
              to_string(offset), " of its storage");
  TORCH_CHECK(vector_alignment(element_bytes_of(tensor)) >= least, op, ": the size of ", name, " (",
              tensor.scalar_type(), ") must be a multiple of ", to_string(least), " bytes, got ",
              to_string(element_bytes_of(tensor)));
  return std::min(vector_alignment(offset), vector_alignment(element_bytes_of(tensor)));
}

// Of the operators that PyTorch's kernels have for these two.
Dtype summed_dtype(const char* op, at::ScalarType type) {
  TORCH_CHECK_NOT_IMPLEMENTED(type == at::kFloat || type == at::kBFloat16, op,
                              ": input must be float32 or bfloat16, got ", type);
  return type == at::kFloat ? Dtype::kFloat32 : Dtype::kBFloat16;
}

// A rank's part of `numel` elements, `first` to `first + count`.
struct Share {
  Share(std::size_t numel, std::size_t granule, int rank, int world_size) {
    const std::size_t unit = granule * world_size;
    const std::size_t most = (numel + unit - 1) / unit * granule;
    first = std::min(numel, most * rank);
    count = std::min(most, numel - first);
  }
  std::size_t first;
  std::size_t count;
};

void check_local_input(const char* op, const at::Tensor& local_input, const at::Tensor& input) {
  check_contiguous(op, "local_input", local_input);
  TORCH_CHECK(local_input.numel() <= input.numel(), op,
              ": local_input must have no more elements than the symmetric buffer's ",
              to_string(input.numel()), ", got ", to_string(local_input.numel()));
}

at::Tensor one_shot(const at::Tensor& input, const std::optional<at::Tensor>& local_input,
                    const std::string& reduce_op, const std::string& group_name, at::Tensor out) {
  constexpr auto* op = "one_shot_all_reduce";
  check_contiguous(op, "input", input);
  check_contiguous(op, "out", out);
  check_same_sizes(op, "out", out, input);
  check_sum(op, reduce_op);
  if (local_input) check_local_input(op, *local_input, input);
  if (input.numel() == 0) {
    check_same_dtype(op, "out", out, input);
    return out;
  }
  const PeerBuffers buffers(op, "input", input, group_name);
  const std::size_t alignment = checked_alignment(op, "input", input);
  RankSum sum(buffers, summed_dtype(op, input.scalar_type()));
  check_same_dtype(op, "out", out, input);
  check_apart(op, "out", out, "input", input);
  if (local_input) {
    TORCH_CHECK(checked_alignment(op, "local_input", *local_input) == alignment, op,
                ": local_input and the symmetric buffer must have the same alignment");
    check_same_dtype(op, "local_input", *local_input, input);
    std::memmove(buffers.at(buffers.rank(), 0), local_input->const_data_ptr(),
                 element_bytes_of(*local_input));
  }
  buffers.barrier();
  sum(out.mutable_data_ptr(), 0, input.numel());
  buffers.barrier();
  return out;
}

void check_scattered_sizes(const char* op, const at::Tensor& input, const at::Tensor& output,
                           bool split_last_dim, std::int64_t world_size, std::int64_t unit) {
  TORCH_CHECK(input.numel() % unit == 0, op,
              ": the number of elements of input must be divisible by ", to_string(unit),
              " (the world size times the elements of an aligned access), got ",
              to_string(input.numel()));
  if (!split_last_dim) {
    TORCH_CHECK(input.dim() == 1, op, ": input must have one dimension, got shape ",
                printed(input.sizes()));
    TORCH_CHECK(output.dim() == 1 && output.numel() == input.numel() / world_size, op,
                ": output must have shape [", to_string(input.numel() / world_size), "], got ",
                printed(output.sizes()));
    return;
  }
  TORCH_CHECK(input.dim() >= 1, op, ": input must have a last dimension to split, got a scalar");
  auto expected = input.sizes().vec();
  expected.back() /= world_size;
  TORCH_CHECK(output.sizes() == at::IntArrayRef(expected), op, ": output must have shape ",
              printed(expected), ", got ", printed(output.sizes()));
  TORCH_CHECK(input.size(-1) % unit == 0, op, ": the last dimension of input must be divisible by ",
              to_string(unit), " (the world size times the elements of an aligned access), got ",
              to_string(input.size(-1)));
}

std::uint32_t* checked_words(const char* op, const at::Tensor& input, std::int64_t offset,
                             std::int64_t val, std::int64_t count) {
  TORCH_CHECK(input.dim() == 1 && input.is_contiguous() && input.scalar_type() == at::kUInt32, op,
              ": input must be a flat, contiguous uint32 tensor, got ", input.scalar_type(),
              " of shape ", printed(input.sizes()));
  TORCH_CHECK(offset >= 0, op, ": offset must be greater than or equal to 0, got ",
              to_string(offset));
  TORCH_CHECK(count > 0, op, ": count must be a positive integer, got ", to_string(count));
  TORCH_CHECK(val >= 0 && val <= std::numeric_limits<std::uint32_t>::max(), op,
              ": val must be in the range of [0, 4294967295] (uint32_t), got ", to_string(val));
  TORCH_CHECK(offset < input.numel() && count <= input.numel() - offset, op, ": offset + count (",
              to_string(offset), " + ", to_string(count), ") exceeded the numel of the input (",
              to_string(input.numel()), ")");
  return static_cast<std::uint32_t*>(input.mutable_data_ptr()) + offset;
}

}  // namespace

at::Tensor one_shot_all_reduce(const at::Tensor& input, const std::string& reduce_op,
                               const std::string& group_name) {
  return one_shot(input, std::nullopt, reduce_op, group_name, at::empty_like(input));
}

at::Tensor one_shot_all_reduce_out(const at::Tensor& input, const std::string& reduce_op,
                                   const std::string& group_name, const at::Tensor& out) {
  return one_shot(input, std::nullopt, reduce_op, group_name, out);
}

at::Tensor one_shot_all_reduce_copy(const at::Tensor& symm_buffer, const at::Tensor& local_input,
                                    const std::string& reduce_op, const std::string& group_name) {
  return one_shot(symm_buffer, local_input, reduce_op, group_name, at::empty_like(local_input));
}

at::Tensor one_shot_all_reduce_copy_out(const at::Tensor& symm_buffer,
                                        const at::Tensor& local_input, const std::string& reduce_op,
                                        const std::string& group_name, const at::Tensor& out) {
  return one_shot(symm_buffer, local_input, reduce_op, group_name, out);
}

at::Tensor two_shot_all_reduce_(const at::Tensor& input, const std::string& reduce_op,
                                const std::string& group_name) {
  constexpr auto* op = "two_shot_all_reduce_";
  check_contiguous(op, "input", input);
  check_sum(op, reduce_op);
  const PeerBuffers buffers(op, "input", input, group_name);
  const std::size_t alignment = checked_alignment(op, "input", input);
  if (input.numel() == 0) return input;
  RankSum sum(buffers, summed_dtype(op, input.scalar_type()));
  const int me = buffers.rank();
  const int world_size = buffers.world_size();
  const Share share(input.numel(), alignment / buffers.element_bytes(), me, world_size);
  buffers.barrier();
  sum(buffers.at(me, share.first), share.first, share.count);
  for (int step = 1; step < world_size; ++step) {
    std::memcpy(buffers.at((me + step) % world_size, share.first), buffers.at(me, share.first),
                share.count * buffers.element_bytes());
  }
  buffers.barrier();
  return input;
}

at::Tensor two_shot_all_reduce_out(const at::Tensor& input, const std::string& reduce_op,
                                   const std::string& group_name, const at::Tensor& output) {
  constexpr auto* op = "two_shot_all_reduce_out";
  check_contiguous(op, "input", input);
  check_sum(op, reduce_op);
  const PeerBuffers buffers(op, "input", input, group_name);
  const std::size_t alignment = checked_alignment(op, "input", input);
  check_contiguous(op, "output", output);
  TORCH_CHECK(alignment <= checked_alignment(op, "output", output), op,
              ": output must be aligned at least as input is, to ", to_string(alignment), " bytes");
  check_same_sizes(op, "output", output, input);
  check_same_dtype(op, "output", output, input);
  if (input.numel() == 0) return output;
  RankSum sum(buffers, summed_dtype(op, input.scalar_type()));
  check_apart(op, "output", output, "input", input);
  const int me = buffers.rank();
  const int world_size = buffers.world_size();
  const std::size_t granule = alignment / buffers.element_bytes();
  const Share mine(input.numel(), granule, me, world_size);
  buffers.barrier();
  sum(buffers.at(me, mine.first), mine.first, mine.count);
  buffers.barrier();
  auto* const result = static_cast<std::byte*>(output.mutable_data_ptr());
  for (int step = 0; step < world_size; ++step) {
    const int peer = (me + step) % world_size;
    const Share share(input.numel(), granule, peer, world_size);
    std::memcpy(result + share.first * buffers.element_bytes(), buffers.at(peer, share.first),
                share.count * buffers.element_bytes());
  }
  buffers.barrier();
  return output;
}

at::Tensor reduce_scatter_out(const at::Tensor& input, const std::string& group_name,
                              bool split_last_dim, const at::Tensor& output) {
  constexpr auto* op = "reduce_scatter_out";
  check_contiguous(op, "input", input);
  check_contiguous(op, "output", output);
  const PeerBuffers buffers(op, "input", input, group_name);
  const std::size_t granule = checked_alignment(op, "input", input) / buffers.element_bytes();
  check_scattered_sizes(op, input, output, split_last_dim, buffers.world_size(),
                        static_cast<std::int64_t>(granule) * buffers.world_size());
  check_same_dtype(op, "output", output, input);
  if (input.numel() == 0) return output;
  RankSum sum(buffers, summed_dtype(op, input.scalar_type()));
  check_apart(op, "output", output, "input", input);
  const std::size_t row = split_last_dim ? input.size(-1) : input.numel();
  const std::size_t part = row / buffers.world_size();
  auto* result = static_cast<std::byte*>(output.mutable_data_ptr());
  buffers.barrier();
  for (std::size_t first = 0; first < static_cast<std::size_t>(input.numel()); first += row) {
    sum(result, first + part * buffers.rank(), part);
    result += part * buffers.element_bytes();
  }
  buffers.barrier();
  return output;
}

at::Tensor memset32_(const at::Tensor& input, std::int64_t offset, std::int64_t val,
                     std::int64_t count) {
  std::uint32_t* const words = checked_words("memset32_", input, offset, val, count);
  for (std::int64_t i = 0; i < count; ++i) {
    store_relaxed(words + i, static_cast<std::uint32_t>(val));
  }
  return input;
}

at::Tensor stream_write_value32_(const at::Tensor& input, std::int64_t offset, std::int64_t val) {
  store_release(checked_words("stream_write_value32_", input, offset, val, 1),
                static_cast<std::uint32_t>(val));
  return input;
}

at::Tensor reduce_parts(at::TensorList parts, const std::string& reduce_op) {
  constexpr auto* op = "reduce_parts";
  TORCH_CHECK_VALUE(!parts.empty(), op, ": parts must not be empty");
  TORCH_CHECK_VALUE(reduce_op == "sum" || reduce_op == "avg", op,
                    ": reduce_op must be 'sum' or 'avg', got '", reduce_op, "'");
  const ReduceOp reduction = reduce_op == "sum" ? ReduceOp::kSum : ReduceOp::kAvg;
  const at::Tensor& first = parts[0];
  const std::optional<Dtype> dtype = dtype_of(first.scalar_type());
  TORCH_CHECK_NOT_IMPLEMENTED(dtype && op_supports(reduction, *dtype), op, ": '", reduce_op,
                              "' is not there for ", first.scalar_type());
  std::vector<const void*> sources;
  for (const at::Tensor& part : parts) {
    check_contiguous(op, "each part", part);
    check_same_dtype(op, "each part", part, first);
    check_same_sizes(op, "each part", part, first);
    sources.push_back(part.const_data_ptr());
  }
  at::Tensor result = at::empty_like(first);
  const int count = static_cast<int>(sources.size());
  kernels_for(*dtype, reduction)
      .reduce(result.mutable_data_ptr(), sources.data(), count, nullptr, count, result.numel());
  return result;
}

}  // namespace symm
