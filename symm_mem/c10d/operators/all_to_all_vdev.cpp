#include "symm_mem/c10d/operators/all_to_all_vdev.hpp"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/core/error.hpp"
#include "symm_mem/c10d/operators/operand_checks.hpp"
#include "symm_mem/c10d/operators/peer_buffers.hpp"
#include "symm_mem/c10d/tensor_properties.hpp"

namespace symm {

namespace {

using std::to_string;

// In which order the splits of input and output stand, and how the chunks lie in both.
struct VdevForm {
  const char* op;
  const char* splits_name;
  bool one_expert = false;
  bool is_combine = false;       // input by expert, with offsets; output by rank
  std::int64_t major_align = 0;  // of the output's experts; 0 for none
};

// Rows that one rank sends to one expert of another.
struct Chunk {
  std::int64_t count = 0;
  std::int64_t from = 0;  // row of the sender's input
  std::int64_t to = 0;    // row of the receiver's output
};

// What every rank sends, by the splits of all of them.
class Exchange {
 public:
  Exchange(const VdevForm& form, int world_size, std::int64_t splits)
      : form_(form), world_size_(world_size), experts_(splits / world_size) {}

  std::size_t slots() const { return static_cast<std::size_t>(world_size_ * experts_); }

  // The copy of a rank's tensor of splits, and of offsets behind them where it has any.
  void add(const std::byte* words) {
    const std::size_t count = slots() * (form_.is_combine ? 2 : 1);
    std::vector<std::int64_t> copy(count);
    std::memcpy(copy.data(), words, count * sizeof(std::int64_t));
    sent_.push_back(std::move(copy));
  }

  // Why this cannot be done with inputs and outputs of so many rows, which is the same text on
  // every rank; "" where it can. Fills in the offsets of inputs that have none.
  std::string problem(std::int64_t input_rows, std::int64_t output_rows) {
    for (int rank = 0; rank < world_size_; ++rank) {
      std::string text = problem_of_sender(rank, input_rows);
      if (!text.empty()) return text;
    }
    for (int rank = 0; rank < world_size_; ++rank) {
      std::int64_t end = 0;
      for (const Chunk& chunk : received(rank)) {
        if (chunk.count > 0) end = std::max(end, chunk.to + chunk.count);
      }
      if (end <= output_rows) continue;
      return text_of("out: expected room for the ", end, " rows that rank ", rank, " gets, got ",
                     output_rows, " rows");
    }
    return {};
  }

  // Who sends the chunk of a slot of the output.
  int sender(std::size_t slot) const {
    const auto at = static_cast<std::int64_t>(slot);
    return static_cast<int>(form_.is_combine ? at / experts_ : at % world_size_);
  }

  // The chunks that `rank` gets, by slot of its output, once no problem was found with what is
  // sent.
  std::vector<Chunk> received(int rank) const {
    std::vector<Chunk> chunks(slots());
    const auto minor = static_cast<std::size_t>(form_.is_combine ? experts_ : world_size_);
    std::int64_t next = 0;
    for (std::size_t first = 0; first < slots(); first += minor) {
      const std::int64_t begin = next;
      for (std::size_t slot = first; slot < first + minor; ++slot) {
        const std::vector<std::int64_t>& sent = sent_[static_cast<std::size_t>(sender(slot))];
        const std::size_t source = slot_of_sender(slot, rank);
        chunks[slot] = {sent[source], sent[slots() + source], next};
        next += chunks[slot].count;
      }
      if (form_.major_align == 0) continue;
      const std::int64_t align = form_.major_align;
      next = begin + std::max((next - begin + align - 1) / align * align, align);
    }
    return chunks;
  }

 private:
  // Where the sender has what comes to `slot` of the output of `rank`.
  std::size_t slot_of_sender(std::size_t slot, int rank) const {
    const auto at = static_cast<std::int64_t>(slot);
    return static_cast<std::size_t>(form_.is_combine ? at % experts_ * world_size_ + rank
                                                     : rank * experts_ + at / world_size_);
  }

  std::string problem_of_sender(int rank, std::int64_t rows) {
    std::vector<std::int64_t>& sent = sent_[static_cast<std::size_t>(rank)];
    std::int64_t sum = 0;
    for (std::size_t slot = 0; slot < slots(); ++slot) {
      const std::int64_t count = sent[slot];
      const std::int64_t from = form_.is_combine ? sent[slots() + slot] : sum;
      if (count < 0) {
        return text_of(form_.splits_name, " of rank ", rank, ": expected splits of 0 or more, got ",
                       count, " at ", slot);
      }
      if (count > 0 && (from < 0 || from > rows || count > rows - from)) {
        return text_of(form_.splits_name, " of rank ", rank, ": expected splits within the ", rows,
                       " rows of input, got ", count, " rows from row ", from, " on at ", slot);
      }
      if (!form_.is_combine) sent.push_back(from);
      sum += form_.is_combine ? 0 : count;
    }
    return {};
  }

  const VdevForm form_;
  const std::int64_t world_size_;
  const std::int64_t experts_;                   // of a rank
  std::vector<std::vector<std::int64_t>> sent_;  // by rank: splits, then offsets
};

void check_operands(const VdevForm& form, const at::Tensor& input, const at::Tensor& out,
                    const at::Tensor& splits, const at::Tensor& results) {
  check_contiguous(form.op, "input", input);
  check_contiguous(form.op, "out", out);
  check_contiguous(form.op, form.splits_name, splits);
  check_contiguous(form.op, "out_splits_offsets", results);
  TORCH_CHECK(input.dim() >= 1, form.op, ": input must have rows, got a scalar");
  check_same_dtype(form.op, "out", out, input);
  TORCH_CHECK(out.dim() >= 1 && c10::multiply_integers(out.sizes().slice(1)) ==
                                    c10::multiply_integers(input.sizes().slice(1)),
              form.op, ": out must have rows of as many elements as those of input, shape ",
              printed(input.sizes()), ", got shape ", printed(out.sizes()));
  for (const auto& [name, tensor] :
       {std::pair(form.splits_name, &splits), std::pair("out_splits_offsets", &results)}) {
    TORCH_CHECK(tensor->scalar_type() == at::kLong, form.op, ": ", name, " must be int64, got ",
                tensor->scalar_type());
  }
  const bool has_shape =
      form.is_combine ? splits.dim() == 2 && splits.size(0) == 2 : splits.dim() == 1;
  TORCH_CHECK(has_shape, form.op, ": ", form.splits_name, " must have shape ",
              form.is_combine ? "[2, splits]" : "[splits]", ", got ", printed(splits.sizes()));
  TORCH_CHECK(results.dim() == 2 && results.size(0) == 2 && results.size(1) == splits.size(-1),
              form.op, ": out_splits_offsets must have shape [2, ", to_string(splits.size(-1)),
              "], as many columns as ", form.splits_name, " has splits, got ",
              printed(results.sizes()));
  check_apart(form.op, "out", out, "input", input);
  check_apart(form.op, "out", out, form.splits_name, splits);
  check_apart(form.op, "out_splits_offsets", results, "input", input);
  check_apart(form.op, "out_splits_offsets", results, form.splits_name, splits);
}

void check_number_of_splits(const VdevForm& form, const at::Tensor& splits, int world_size) {
  const std::int64_t count = splits.size(-1);
  if (form.one_expert) {
    TORCH_CHECK(count == world_size, form.op, ": ", form.splits_name,
                " must have a split for each of the ", to_string(world_size), " ranks, got ",
                to_string(count));
  } else {
    TORCH_CHECK(count > 0 && count % world_size == 0, form.op, ": ", form.splits_name,
                " must have a multiple of ", to_string(world_size),
                " splits, as many for each rank of the group, got ", to_string(count));
  }
}

void exchange_rows(const VdevForm& form, const at::Tensor& input, const at::Tensor& out,
                   const at::Tensor& splits, const at::Tensor& results,
                   const std::string& group_name) {
  check_operands(form, input, out, splits, results);
  const PeerBuffers inputs(form.op, "input", input, group_name);
  const PeerBuffers all_splits(form.op, form.splits_name, splits, group_name);
  const int world_size = inputs.world_size();
  const std::int64_t count = splits.size(-1);
  check_number_of_splits(form, splits, world_size);
  inputs.barrier();
  Exchange exchange(form, world_size, count);
  for (int rank = 0; rank < world_size; ++rank) exchange.add(all_splits.at(rank, 0));
  const std::string problem = exchange.problem(input.size(0), out.size(0));
  if (!problem.empty()) {
    inputs.barrier();  // nobody reads splits any more
    TORCH_CHECK(false, form.op, ": ", problem);
  }
  const std::vector<Chunk> chunks = exchange.received(inputs.rank());
  const std::size_t row = c10::multiply_integers(input.sizes().slice(1));
  const std::size_t row_bytes = row * input.element_size();
  auto* const result = static_cast<std::byte*>(out.mutable_data_ptr());
  auto* const numbers = results.mutable_data_ptr<std::int64_t>();
  for (std::size_t slot = 0; slot < chunks.size(); ++slot) {
    const Chunk& chunk = chunks[slot];
    numbers[slot] = chunk.count;
    numbers[chunks.size() + slot] = chunk.to;
    if (chunk.count == 0 || row_bytes == 0) continue;
    std::memcpy(result + static_cast<std::size_t>(chunk.to) * row_bytes,
                inputs.at(exchange.sender(slot), static_cast<std::size_t>(chunk.from) * row),
                static_cast<std::size_t>(chunk.count) * row_bytes);
  }
  inputs.barrier();
}

}  // namespace

void all_to_all_vdev(const at::Tensor& input, const at::Tensor& out, const at::Tensor& in_splits,
                     const at::Tensor& out_splits_offsets, const std::string& group_name) {
  exchange_rows({.op = "all_to_all_vdev", .splits_name = "in_splits", .one_expert = true}, input,
                out, in_splits, out_splits_offsets, group_name);
}

void all_to_all_vdev_2d(const at::Tensor& input, const at::Tensor& out, const at::Tensor& in_splits,
                        const at::Tensor& out_splits_offsets, const std::string& group_name,
                        std::optional<std::int64_t> major_align) {
  constexpr auto* op = "all_to_all_vdev_2d";
  const std::int64_t align = major_align.value_or(1);
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  TORCH_CHECK(align > 0 && align <= kMost, op, ": major_align must be 1 to ", to_string(kMost),
              ", got ", to_string(align));
  exchange_rows({.op = op, .splits_name = "in_splits", .major_align = align}, input, out, in_splits,
                out_splits_offsets, group_name);
}

void all_to_all_vdev_2d_offset(const at::Tensor& input, const at::Tensor& out,
                               const at::Tensor& in_splits_offsets,
                               const at::Tensor& out_splits_offsets,
                               const std::string& group_name) {
  exchange_rows(
      {.op = "all_to_all_vdev_2d_offset", .splits_name = "in_splits_offsets", .is_combine = true},
      input, out, in_splits_offsets, out_splits_offsets, group_name);
}

}  // namespace symm
