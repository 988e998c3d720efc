// Reduction operators, and the element types that each supports.
//
// Rules that make reductions deterministic: contributions are combined in group-rank order
// 0..N-1 in the accumulate type; 16-bit and 8-bit floats accumulate in float32 and are rounded
// once; AVG divides the sum by N before that rounding (integers truncate toward zero).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "kernels/core/dtype.hpp"

namespace symm {

enum class ReduceOp : std::uint8_t {
  kSum,
  kAvg,
  kProduct,
  kMin,
  kMax,
  kBand,
  kBor,
  kBxor,
  kPreMulSum,  // sum of factor[r] * input[r]; each rank has a factor of its own
};
inline constexpr int kReduceOpCount = 9;

inline constexpr std::array<std::string_view, kReduceOpCount> kReduceOpNames = {
    "SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM"};

constexpr std::string_view reduce_op_name(ReduceOp op) {
  return kReduceOpNames[static_cast<std::size_t>(op)];
}

constexpr bool is_complex(Dtype dtype) {
  return dtype == Dtype::kComplex64 || dtype == Dtype::kComplex128;
}

constexpr bool is_floating(Dtype dtype) { return dtype <= Dtype::kFloat8E5M2FnUz; }

// The operator on bits that `op` is for bool: SUM and MAX are OR, PRODUCT and MIN are AND.
constexpr ReduceOp bool_rule(ReduceOp op) {
  if (op == ReduceOp::kBxor) return op;
  const bool is_and = op == ReduceOp::kProduct || op == ReduceOp::kMin || op == ReduceOp::kBand;
  return is_and ? ReduceOp::kBand : ReduceOp::kBor;
}

// True where `op` has a meaning for `dtype`; the backend raises naming both where it has none.
constexpr bool op_supports(ReduceOp op, Dtype dtype) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kProduct:
      return true;
    case ReduceOp::kAvg:
      return dtype != Dtype::kBool;
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      return !is_complex(dtype);
    case ReduceOp::kBand:
    case ReduceOp::kBor:
    case ReduceOp::kBxor:
      return !is_floating(dtype) && !is_complex(dtype);
    case ReduceOp::kPreMulSum:
      return is_floating(dtype) || is_complex(dtype);
  }
  return false;
}

// The reductions of training, whose GPU kernels are compiled for each way that a call can go.
constexpr bool is_training_sum(ReduceOp op, Dtype dtype) {
  return (op == ReduceOp::kSum || op == ReduceOp::kAvg) &&
         (dtype < Dtype::kFloat64 || dtype == Dtype::kInt32);
}

}  // namespace symm
