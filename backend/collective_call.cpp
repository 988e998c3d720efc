#include "backend/collective_call.hpp"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "backend/nan_check.hpp"

namespace symm {

namespace {

std::size_t count_of(const at::Tensor& tensor) { return static_cast<std::size_t>(tensor.numel()); }

std::size_t ranks_of(const TensorChecks& checks) {
  return static_cast<std::size_t>(checks.world_size());
}

struct Range {
  std::uintptr_t begin;
  std::uintptr_t end;
};

Range range_of(const void* data, std::size_t count, std::size_t element_bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  return {begin, begin + count * element_bytes};
}

bool overlap(const Range& a, const Range& b) {
  return a.begin < b.end && b.begin < a.end && a.begin != a.end && b.begin != b.end;
}

bool any_overlap(const std::vector<Part>& parts, std::size_t element_bytes) {
  // Shares of one tensor come in ascending order, so sorting is seldom needed.
  const auto disjoint_in_order = [](const auto& ranges) {
    for (std::size_t i = 1; i < ranges.size(); ++i) {
      if (ranges[i].begin < ranges[i - 1].end) return false;
    }
    return true;
  };
  c10::SmallVector<Range, 16> ranges;
  for (const Part& part : parts) {
    if (part.count > 0) ranges.push_back(range_of(part.data, part.count, element_bytes));
  }
  if (disjoint_in_order(ranges)) return false;
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  return !disjoint_in_order(ranges);
}

}  // namespace

at::Tensor plain(const at::Tensor& tensor) {
  if (tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg()) return tensor;
  return tensor.resolve_conj().resolve_neg().contiguous();
}

CallBuilder::CallBuilder(CollectiveCall& call, CollectiveKind kind, int rank, int world_size,
                         std::int64_t global_rank, int gpu, const NanCheck& nan_check)
    : checks_(collective_name(kind), rank, world_size, global_rank),
      nan_check_(nan_check),
      call_(call),
      gpu_(gpu) {
  call_.args.kind = kind;
}

CallBuilder& CallBuilder::reduce(const c10d::ReduceOp& op) {
  reduces_ = true;
  call_.args.op = checks_.reduce_op(op, call_.args.factor);
  return *this;
}

CallBuilder& CallBuilder::root(std::int64_t root, const char* name) {
  checks_.rank_in_range(root, name);
  call_.args.root = static_cast<int>(root);
  return *this;
}

void CallBuilder::join(const at::Tensor& tensor, const Argument& argument) {
  if (scalar_type_ != at::ScalarType::Undefined) {
    checks_.same_device(tensor, argument, call_.device);
    checks_.same_dtype(tensor, argument, scalar_type_);
    return;
  }
  checks_.group_device(tensor, argument, gpu_);
  call_.device = tensor.device();
  scalar_type_ = tensor.scalar_type();
  call_.args.dtype = reduces_ ? checks_.arithmetic_dtype(tensor, argument)
                              : checks_.movable_dtype(tensor, argument);
}

const at::Tensor& CallBuilder::kept_input(const at::Tensor& tensor, const Argument& argument) {
  checks_.readable(tensor, argument);
  join(tensor, argument);
  call_.inputs.push_back(plain(tensor));
  nan_check_.check(checks_, call_.inputs.back(), argument);
  return call_.inputs.back();
}

void* CallBuilder::kept_output(const at::Tensor& tensor, const Argument& argument) {
  checks_.writable(tensor, argument);
  join(tensor, argument);
  call_.outputs.push_back(tensor);
  return tensor.mutable_data_ptr();
}

CallBuilder& CallBuilder::in_place(const at::Tensor& tensor, Argument argument) {
  checks_.usable(tensor, argument);
  join(tensor, argument);
  if (!tensor.is_non_overlapping_and_dense()) [[unlikely]] {
    checks_.writable(tensor, argument);  // a tensor with one element may count as contiguous only
  }
  const bool reads =
      call_.args.kind != CollectiveKind::kBroadcast || call_.args.root == checks_.rank();
  if (reads) nan_check_.check(checks_, tensor, argument);
  call_.args.count = count_of(tensor);
  call_.args.output = tensor.mutable_data_ptr();
  call_.args.input = call_.args.output;
  call_.args.layout = layout_hash(tensor);
  call_.outputs.push_back(tensor);
  return *this;
}

CallBuilder& CallBuilder::input(const at::Tensor& tensor, Argument argument) {
  const at::Tensor& kept = kept_input(tensor, argument);
  call_.args.count = count_of(kept);
  call_.args.input = kept.const_data_ptr();
  return *this;
}

CallBuilder& CallBuilder::output(const at::Tensor& tensor, Argument argument) {
  call_.args.output = kept_output(tensor, argument);
  call_.args.count = count_of(tensor);
  return *this;
}

CallBuilder& CallBuilder::input_list(const std::vector<at::Tensor>& tensors, const char* name) {
  checks_.list_size(tensors.size(), ranks_of(checks_), name);
  call_.input_parts.reserve(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& kept = kept_input(tensors[i], {name, i});
    call_.input_parts.push_back({const_cast<void*>(kept.const_data_ptr()), count_of(kept)});
  }
  return *this;
}

CallBuilder& CallBuilder::output_list(const std::vector<at::Tensor>& tensors, const char* name) {
  checks_.list_size(tensors.size(), ranks_of(checks_), name);
  call_.output_parts.reserve(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    call_.output_parts.push_back({kept_output(tensors[i], {name, i}), count_of(tensors[i])});
  }
  return *this;
}

// The number of elements divides by the world size.
void CallBuilder::add_shares(std::vector<Part>& parts, const at::Tensor& tensor) {
  const std::size_t ranks = ranks_of(checks_);
  const std::size_t share = count_of(tensor) / ranks;
  const std::size_t share_bytes = share * tensor.element_size();
  auto* const data = static_cast<std::byte*>(const_cast<void*>(tensor.const_data_ptr()));
  parts.reserve(ranks);
  for (std::size_t r = 0; r < ranks; ++r) parts.push_back({data + r * share_bytes, share});
}

CallBuilder& CallBuilder::input_shares(const at::Tensor& tensor, Argument argument) {
  const at::Tensor& kept = kept_input(tensor, argument);
  checks_.element_count(count_of(kept), call_.args.count * ranks_of(checks_), argument);
  add_shares(call_.input_parts, kept);
  return *this;
}

CallBuilder& CallBuilder::output_shares(const at::Tensor& tensor, Argument argument) {
  kept_output(tensor, argument);
  checks_.element_count(count_of(tensor), call_.args.count * ranks_of(checks_), argument);
  add_shares(call_.output_parts, tensor);
  return *this;
}

void CallBuilder::add_rows(std::vector<Part>& parts, const at::Tensor& tensor,
                           const std::vector<std::int64_t>& rows, const char* name,
                           const char* rows_name) {
  const std::size_t ranks = ranks_of(checks_);
  const std::int64_t total_rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  if (rows.empty()) {
    if (total_rows % checks_.world_size() != 0) {
      checks_.fail(ErrorCode::kInvalidArgument, {name},
                   "expected dimension 0 to divide by the world size " + std::to_string(ranks) +
                       " where no split sizes are given, got " + std::to_string(total_rows));
    }
    add_shares(parts, tensor);
    return;
  }
  checks_.list_size(rows.size(), ranks, rows_name);
  std::int64_t sum = 0;
  for (std::size_t r = 0; r < ranks; ++r) {
    if (rows[r] < 0 || rows[r] > total_rows) {
      checks_.fail(ErrorCode::kInvalidArgument, {rows_name, r},
                   "expected 0 to " + std::to_string(total_rows) + ", the size of dimension 0 of " +
                       name + ", got " + std::to_string(rows[r]));
    }
    sum += rows[r];
  }
  if (sum != total_rows) {
    checks_.fail(ErrorCode::kInvalidArgument, {rows_name},
                 "expected a sum of " + std::to_string(total_rows) +
                     ", the size of dimension 0 of " + name + ", got " + std::to_string(sum));
  }
  const std::size_t row = total_rows == 0 ? 0 : count_of(tensor) / total_rows;
  auto* next = static_cast<std::byte*>(const_cast<void*>(tensor.const_data_ptr()));
  parts.reserve(ranks);
  for (const std::int64_t share : rows) {
    const std::size_t count = row * static_cast<std::size_t>(share);
    parts.push_back({next, count});
    next += count * tensor.element_size();
  }
}

CallBuilder& CallBuilder::input_rows(const at::Tensor& tensor,
                                     const std::vector<std::int64_t>& rows, const char* name,
                                     const char* rows_name) {
  const at::Tensor& kept = kept_input(tensor, {name});
  add_rows(call_.input_parts, kept, rows, name, rows_name);
  return *this;
}

CallBuilder& CallBuilder::output_rows(const at::Tensor& tensor,
                                      const std::vector<std::int64_t>& rows, const char* name,
                                      const char* rows_name) {
  kept_output(tensor, {name});
  add_rows(call_.output_parts, tensor, rows, name, rows_name);
  return *this;
}

void CallBuilder::check_part(std::size_t rank, const char* name) const {
  const std::vector<Part>& parts =
      call_.input_parts.empty() ? call_.output_parts : call_.input_parts;
  checks_.element_count(parts[rank].count, call_.args.count, {name, rank});
}

CallBuilder& CallBuilder::even_parts(const char* name) {
  for (std::size_t r = 0; r < ranks_of(checks_); ++r) check_part(r, name);
  return *this;
}

CallBuilder& CallBuilder::own_part(const char* name) {
  check_part(static_cast<std::size_t>(checks_.rank()), name);
  return *this;
}

void CallBuilder::check_overlap() const {
  const CollectiveArgs& args = call_.args;
  const std::size_t bytes = dtype_bytes(args.dtype);
  const auto own = static_cast<std::size_t>(checks_.rank());
  const auto refuse = [&](const char* which) {
    checks_.fail(ErrorCode::kInvalidArgument, {which},
                 "expected memory of its own, got tensors that overlap each other");
  };
  const bool lone_input = args.input && call_.input_parts.empty();
  const bool lone_output = args.output && call_.output_parts.empty();
  if (lone_input && lone_output && args.input != args.output &&
      overlap(range_of(args.input, args.count, bytes), range_of(args.output, args.count, bytes))) {
    refuse("input and output");
  }
  if (any_overlap(call_.output_parts, bytes)) refuse("the output tensors");

  // In place means exactly the own part.
  const auto check_against_parts = [&](const void* data, const std::vector<Part>& parts) {
    const Range lone = range_of(data, args.count, bytes);
    for (std::size_t r = 0; r < parts.size(); ++r) {
      if (r == own && parts[r].data == data) continue;
      if (overlap(lone, range_of(parts[r].data, parts[r].count, bytes))) refuse("input and output");
    }
  };
  if (lone_input) check_against_parts(args.input, call_.output_parts);
  if (lone_output) check_against_parts(args.output, call_.input_parts);

  if (!call_.input_parts.empty() && !call_.output_parts.empty()) {
    for (const Part& in : call_.input_parts) {
      const Range range = range_of(in.data, in.count, bytes);
      for (const Part& out : call_.output_parts) {
        if (overlap(range, range_of(out.data, out.count, bytes))) refuse("input and output");
      }
    }
  }
}

void CallBuilder::finish() {
  check_overlap();
  call_.args.input_parts = call_.input_parts;
  call_.args.output_parts = call_.output_parts;
}

CallSides sides_of(const CollectiveCall& call) {
  const std::size_t stages = call.copies_before.size() + call.copies_after.size();
  CallSides sides{at::ArrayRef<at::Tensor>(call.inputs.data(), call.inputs.size() - stages),
                  call.outputs};
  switch (call.args.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduce:
    case CollectiveKind::kBroadcast:
      if (sides.inputs.empty()) sides.inputs = sides.outputs;
      if (sides.outputs.empty()) sides.outputs = sides.inputs;
      break;
    default:
      break;
  }
  return sides;
}

void copy_tensors(const std::vector<TensorCopy>& copies) {
  if (copies.empty()) return;
  const at::NoGradGuard no_grad;
  for (const TensorCopy& copy : copies) copy.to.copy_(copy.from, /*non_blocking=*/true);
}

}  // namespace symm
