#include "symm_mem/c10d/operators/all_to_all_vdev.hpp"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/protocol/row_exchange.hpp"
#include "symm_mem/c10d/operators/operand_checks.hpp"
#include "symm_mem/c10d/operators/peer_buffers.hpp"
#include "symm_mem/c10d/tensor_properties.hpp"

namespace symm {

namespace {

using std::to_string;

constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();

// An operator, and its alignment of experts in the output; 0 for none.
struct VdevForm {
  RowExchangeForm form;
  std::int32_t major_align = 0;

  const char* op() const { return row_exchange_name(form); }
  const char* splits() const { return splits_name(form); }
};

// The tensors of a call, once they were checked.
struct Operands {
  const at::Tensor& input;
  const at::Tensor& out;
  const at::Tensor& results;
  PeerBuffers inputs;
  PeerBuffers splits;

  std::size_t row() const { return c10::multiply_integers(input.sizes().slice(1)); }
  std::size_t row_bytes() const { return row() * input.element_size(); }
};

void check_operands(const VdevForm& form, const at::Tensor& input, const at::Tensor& out,
                    const at::Tensor& splits, const at::Tensor& results) {
  const char* const op = form.op();
  const char* const splits_name = form.splits();
  const bool is_combine = form.form == RowExchangeForm::kCombine;
  check_contiguous(op, "input", input);
  check_contiguous(op, "out", out);
  check_contiguous(op, splits_name, splits);
  check_contiguous(op, "out_splits_offsets", results);
  TORCH_CHECK(input.dim() >= 1, op, ": input must have rows, got a scalar");
  check_same_dtype(op, "out", out, input);
  TORCH_CHECK(out.dim() >= 1 && c10::multiply_integers(out.sizes().slice(1)) ==
                                    c10::multiply_integers(input.sizes().slice(1)),
              op, ": out must have rows of as many elements as those of input, shape ",
              printed(input.sizes()), ", got shape ", printed(out.sizes()));
  for (const auto& [name, tensor] :
       {std::pair(splits_name, &splits), std::pair("out_splits_offsets", &results)}) {
    TORCH_CHECK(tensor->scalar_type() == at::kLong, op, ": ", name, " must be int64, got ",
                tensor->scalar_type());
  }
  const bool has_shape = is_combine ? splits.dim() == 2 && splits.size(0) == 2 : splits.dim() == 1;
  TORCH_CHECK(has_shape, op, ": ", splits_name, " must have shape ",
              is_combine ? "[2, splits]" : "[splits]", ", got ", printed(splits.sizes()));
  TORCH_CHECK(results.dim() == 2 && results.size(0) == 2 && results.size(1) == splits.size(-1), op,
              ": out_splits_offsets must have shape [2, ", to_string(splits.size(-1)),
              "], as many columns as ", splits_name, " has splits, got ", printed(results.sizes()));
  for (const auto& [name, tensor] : {std::pair("out", &out), std::pair(splits_name, &splits),
                                     std::pair("out_splits_offsets", &results)}) {
    check_same_device(op, name, *tensor, input);
  }
  check_apart(op, "out", out, "input", input);
  check_apart(op, "out", out, splits_name, splits);
  check_apart(op, "out_splits_offsets", results, "input", input);
  check_apart(op, "out_splits_offsets", results, splits_name, splits);
}

void check_number_of_splits(const VdevForm& form, const at::Tensor& splits, int world_size) {
  const char* const op = form.op();
  const std::int64_t count = splits.size(-1);
  if (form.form == RowExchangeForm::kVector) {
    TORCH_CHECK(count == world_size, op, ": ", form.splits(), " must have a split for each of the ",
                to_string(world_size), " ranks, got ", to_string(count));
    return;
  }
  TORCH_CHECK(count > 0 && count % world_size == 0, op, ": ", form.splits(),
              " must have a multiple of ", to_string(world_size),
              " splits, as many for each rank of the group, got ", to_string(count));
  TORCH_CHECK(count <= kMost / world_size, op, ": ", form.splits(), " must have at most ",
              to_string(kMost / world_size), " splits, got ", to_string(count));
}

// What every rank sends, as its tensor of splits holds it.
struct SentRows {
  std::vector<std::int64_t> counts;  // [W, slots]
  std::vector<std::int64_t> begins;  // the same, given or worked out
};

SentRows read_splits(const RowExchangeShape& shape, const PeerBuffers& splits) {
  const auto slots = static_cast<std::size_t>(shape.slots());
  const std::size_t all = slots * static_cast<std::size_t>(shape.world_size);
  SentRows sent{std::vector<std::int64_t>(all), std::vector<std::int64_t>(all)};
  for (int rank = 0; rank < shape.world_size; ++rank) {
    const std::size_t first = slots * static_cast<std::size_t>(rank);
    std::memcpy(&sent.counts[first], splits.at(rank, 0), slots * sizeof(std::int64_t));
    if (!shape.is_combine()) continue;
    std::memcpy(&sent.begins[first], splits.at(rank, slots), slots * sizeof(std::int64_t));
  }
  return sent;
}

void fill_in_begins(const RowExchangeShape& shape, SentRows& sent) {
  std::int64_t next = 0;
  for (std::size_t i = 0; i < sent.counts.size(); ++i) {
    if (i % static_cast<std::size_t>(shape.slots()) == 0) next = 0;
    sent.begins[i] = next;
    next += sent.counts[i];
  }
}

void exchange_on_host(const Operands& given, const RowExchangeShape& shape) {
  given.inputs.barrier();
  SentRows sent = read_splits(shape, given.splits);
  SplitFault fault = find_wrong_split(shape, sent.counts.data(), sent.begins.data());
  if (fault.problem == SplitProblem::kNone) fault = find_full_output(shape, sent.counts.data());
  if (fault.problem != SplitProblem::kNone) {
    given.inputs.barrier();  // nobody reads splits any more
    TORCH_CHECK(false, row_exchange_name(shape.form), ": ", describe(shape, fault));
  }
  if (!shape.is_combine()) fill_in_begins(shape, sent);
  const std::size_t row_bytes = given.row_bytes();
  auto* const result = static_cast<std::byte*>(given.out.mutable_data_ptr());
  auto* const numbers = given.results.mutable_data_ptr<std::int64_t>();
  const int me = given.inputs.rank();
  lay_out_output(
      shape, sent.counts.data(), me, [&](int slot, std::int64_t count, std::int64_t begin) {
        numbers[slot] = count;
        numbers[shape.slots() + slot] = begin;
        if (count == 0 || row_bytes == 0) return;
        const int sender = shape.sender(slot);
        const std::int64_t from = sent.begins[static_cast<std::size_t>(
            sender * shape.slots() + shape.slot_of_sender(slot, me))];
        std::memcpy(result + static_cast<std::size_t>(begin) * row_bytes,
                    given.inputs.at(sender, static_cast<std::size_t>(from) * given.row()),
                    static_cast<std::size_t>(count) * row_bytes);
      });
  given.inputs.barrier();
}

void exchange_on_gpu(const Operands& given, const RowExchangeShape& shape) {
  given.inputs.launch([&](SignalKernels& kernels, const SignalPads& pads,
                          const SignalOptions& options) {
    // PyTorch's allocator hands the memory on in the order of the stream.
    const at::Tensor scratch = at::empty(
        {static_cast<std::int64_t>(kernels.scratch_words(shape.experts))}, given.results.options());
    const std::vector<std::byte*> inputs = given.inputs.addresses();
    const std::vector<std::byte*> splits = given.splits.addresses();
    kernels.exchange_rows(pads,
                          {.form = shape.form,
                           .experts = shape.experts,
                           .major_align = shape.major_align,
                           .input_rows = shape.input_rows,
                           .output_rows = shape.output_rows,
                           .row_bytes = given.row_bytes(),
                           .inputs = inputs,
                           .splits = splits,
                           .output = static_cast<std::byte*>(given.out.mutable_data_ptr()),
                           .results = given.results.mutable_data_ptr<std::int64_t>(),
                           .scratch = scratch.mutable_data_ptr<std::int64_t>()},
                          options);
  });
}

void exchange_rows(const VdevForm& form, const at::Tensor& input, const at::Tensor& out,
                   const at::Tensor& splits, const at::Tensor& results,
                   const std::string& group_name) {
  check_operands(form, input, out, splits, results);
  const Operands given{input, out, results, PeerBuffers(form.op(), "input", input, group_name),
                       PeerBuffers(form.op(), form.splits(), splits, group_name)};
  const int world_size = given.inputs.world_size();
  check_number_of_splits(form, splits, world_size);
  const RowExchangeShape shape{.form = form.form,
                               .world_size = world_size,
                               .experts = static_cast<std::int32_t>(splits.size(-1) / world_size),
                               .major_align = form.major_align,
                               .input_rows = input.size(0),
                               .output_rows = out.size(0)};
  if (input.is_cpu()) {
    exchange_on_host(given, shape);
  } else {
    exchange_on_gpu(given, shape);
  }
}

}  // namespace

void all_to_all_vdev(const at::Tensor& input, const at::Tensor& out, const at::Tensor& in_splits,
                     const at::Tensor& out_splits_offsets, const std::string& group_name) {
  exchange_rows({RowExchangeForm::kVector}, input, out, in_splits, out_splits_offsets, group_name);
}

void all_to_all_vdev_2d(const at::Tensor& input, const at::Tensor& out, const at::Tensor& in_splits,
                        const at::Tensor& out_splits_offsets, const std::string& group_name,
                        std::optional<std::int64_t> major_align) {
  const VdevForm form{RowExchangeForm::kDispatch};
  const std::int64_t align = major_align.value_or(1);
  TORCH_CHECK(align > 0 && align <= kMost, form.op(), ": major_align must be 1 to ",
              to_string(kMost), ", got ", to_string(align));
  exchange_rows({form.form, static_cast<std::int32_t>(align)}, input, out, in_splits,
                out_splits_offsets, group_name);
}

void all_to_all_vdev_2d_offset(const at::Tensor& input, const at::Tensor& out,
                               const at::Tensor& in_splits_offsets,
                               const at::Tensor& out_splits_offsets,
                               const std::string& group_name) {
  exchange_rows({RowExchangeForm::kCombine}, input, out, in_splits_offsets, out_splits_offsets,
                group_name);
}

}  // namespace symm
