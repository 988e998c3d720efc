// How rows lie in the inputs and outputs of a row exchange: an all_to_all in which the ranks'
// splits are data, that nobody knows before the call (torch.ops.symm_mem.all_to_all_vdev and its
// two-dimensional forms). Host and device; pure; owns nothing.
//
// A rank has W * ne slots, W the world size and ne the experts of a rank; a slot is the rows that
// one rank sends to or gets from one expert. `counts` and `begins` below are matrices [W][slots] of
// what each rank sends: rows of a slot, and the row of the sender's input where they begin. All
// counts are in rows.
//
//   form       slots of the sender           slots of the receiver         begins of the sender
//   kVector    by receiver; ne is 1          by sender                     sums of its counts
//   kDispatch  by receiver, then by expert   by expert, then by sender     sums of its counts
//   kCombine   by expert, then by receiver   by sender, then by expert     given
//
// In an output the rows of slots lie one after the other; an expert of kDispatch begins at a
// multiple of `major_align`, which is also the least that an expert takes.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/core/error.hpp"
#include "kernels/core/platform.hpp"

namespace symm {

enum class RowExchangeForm : std::int32_t { kVector, kDispatch, kCombine };

struct RowExchangeShape {
  RowExchangeForm form;
  std::int32_t world_size;
  std::int32_t experts;      // of a rank; world_size * world_size * experts fits
  std::int32_t major_align;  // of kDispatch; 0: none
  std::int64_t input_rows;   // of every rank
  std::int64_t output_rows;

  SYMM_INLINE bool is_combine() const { return form == RowExchangeForm::kCombine; }
  SYMM_INLINE int slots() const { return world_size * experts; }
  // Slots of an output that lie together, and how many such parts an output has.
  SYMM_INLINE int minor() const { return is_combine() ? experts : world_size; }
  SYMM_INLINE int majors() const { return slots() / minor(); }
  // The rows that a part with `rows` of its own takes.
  SYMM_INLINE std::int64_t padded(std::int64_t rows) const {
    if (major_align == 0) return rows;
    const std::int64_t align = major_align;
    const std::int64_t up = (rows + align - 1) / align * align;
    return up < align ? align : up;
  }
  // Who sends what comes to `slot` of an output, and in which of its slots it has that for `rank`.
  SYMM_INLINE int sender(int slot) const {
    return is_combine() ? slot / experts : slot % world_size;
  }
  SYMM_INLINE int slot_of_sender(int slot, int rank) const {
    return is_combine() ? slot % experts * world_size + rank : rank * experts + slot / world_size;
  }
  SYMM_INLINE bool has_count(std::int64_t count) const { return count >= 0 && count <= input_rows; }
  // Of a count that is one.
  SYMM_INLINE bool is_in_input(std::int64_t count, std::int64_t begin) const {
    return count == 0 || (begin >= 0 && begin <= input_rows - count);
  }
};

enum class SplitProblem : std::uint32_t { kNone, kNegative, kOutsideInput, kNoRoom };

// The first problem with the splits of all ranks, which all of them find. Of kNoRoom `rank` is the
// receiver and `count` the rows that it needs.
struct SplitFault {
  SplitProblem problem;
  std::int32_t rank;
  std::int32_t slot;
  std::int64_t count;
  std::int64_t begin;
};

// The first count that is negative, or whose rows are not in its sender's input. `begins` is read
// for kCombine alone.
SYMM_INLINE SplitFault find_wrong_split(const RowExchangeShape& shape, const std::int64_t* counts,
                                        const std::int64_t* begins) {
  for (int rank = 0; rank < shape.world_size; ++rank) {
    std::int64_t sum = 0;
    for (int slot = 0; slot < shape.slots(); ++slot) {
      const int at = rank * shape.slots() + slot;
      const std::int64_t count = counts[at];
      const std::int64_t begin = shape.is_combine() ? begins[at] : sum;
      if (count < 0) return {SplitProblem::kNegative, rank, slot, count, begin};
      if (!shape.has_count(count) || !shape.is_in_input(count, begin)) {
        return {SplitProblem::kOutsideInput, rank, slot, count, begin};
      }
      sum += count;
    }
  }
  return {SplitProblem::kNone, 0, 0, 0, 0};
}

// Calls store(slot, count, begin) for the slots of the output of `rank`; `counts` have no problem.
template <class Store>
SYMM_INLINE void lay_out_output(const RowExchangeShape& shape, const std::int64_t* counts, int rank,
                                const Store& store) {
  std::int64_t part = 0;
  for (int first = 0; first < shape.slots(); first += shape.minor()) {
    std::int64_t next = part;
    for (int slot = first; slot < first + shape.minor(); ++slot) {
      const std::int64_t count =
          counts[shape.sender(slot) * shape.slots() + shape.slot_of_sender(slot, rank)];
      store(slot, count, next);
      next += count;
    }
    part += shape.padded(next - part);
  }
}

// The first rank whose output has no room for what it gets; `counts` have no problem.
SYMM_INLINE SplitFault find_full_output(const RowExchangeShape& shape, const std::int64_t* counts) {
  for (int rank = 0; rank < shape.world_size; ++rank) {
    std::int64_t end = 0;
    lay_out_output(shape, counts, rank, [&](int, std::int64_t count, std::int64_t begin) {
      if (count > 0) end = begin + count;
    });
    if (end > shape.output_rows) return {SplitProblem::kNoRoom, rank, 0, end, 0};
  }
  return {SplitProblem::kNone, 0, 0, 0, 0};
}

// The operator's name, and that of its tensor of splits.
constexpr const char* row_exchange_name(RowExchangeForm form) {
  if (form == RowExchangeForm::kVector) return "all_to_all_vdev";
  return form == RowExchangeForm::kDispatch ? "all_to_all_vdev_2d" : "all_to_all_vdev_2d_offset";
}
constexpr const char* splits_name(RowExchangeForm form) {
  return form == RowExchangeForm::kCombine ? "in_splits_offsets" : "in_splits";
}

// What the fault is, for people; the same text on every rank. Host only.
inline std::string describe(const RowExchangeShape& shape, const SplitFault& fault) {
  const std::string whose = text_of(splits_name(shape.form), " of rank ", fault.rank, ": ");
  switch (fault.problem) {
    case SplitProblem::kNone:
      break;
    case SplitProblem::kNegative:
      return text_of(whose, "expected splits of 0 or more, got ", fault.count, " at ", fault.slot);
    case SplitProblem::kOutsideInput:
      return text_of(whose, "expected splits within the ", shape.input_rows, " rows of input, got ",
                     fault.count, " rows from row ", fault.begin, " on at ", fault.slot);
    case SplitProblem::kNoRoom:
      return text_of("out: expected room for the ", fault.count, " rows that rank ", fault.rank,
                     " gets, got ", shape.output_rows, " rows");
  }
  return {};
}

}  // namespace symm
