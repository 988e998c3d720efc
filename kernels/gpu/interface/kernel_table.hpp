// The addresses of the kernels, for the runtime's launch call.
#pragma once

#include <array>

#include "kernels/core/collective.hpp"
#include "kernels/core/dtype.hpp"
#include "kernels/core/reduce_op.hpp"
#include "kernels/gpu/interface/bulk_params.hpp"
#include "kernels/gpu/interface/call_params.hpp"
#include "kernels/gpu/interface/norm_params.hpp"
#include "kernels/gpu/interface/wire_params.hpp"

namespace symm {

// The compiled rule for a pair of dtype and operator; see NOTE [Reduction rules].
struct ReductionRule {
  Dtype dtype;
  ReduceOp op;
  int elements;  // elements of this rule in one of the caller's: 2 reals in a complex number

  bool operator==(const ReductionRule&) const = default;
};

// For every pair that op_supports().
constexpr ReductionRule reduction_rule(Dtype dtype, ReduceOp op) {
  const bool sums = op == ReduceOp::kSum || op == ReduceOp::kAvg || op == ReduceOp::kPreMulSum;
  if (dtype == Dtype::kBool) return {dtype, bool_rule(op), 1};
  if (sums) {
    if (dtype == Dtype::kComplex64) return {Dtype::kFloat32, ReduceOp::kSum, 2};
    if (dtype == Dtype::kComplex128) return {Dtype::kFloat64, ReduceOp::kSum, 2};
    return {dtype, ReduceOp::kSum, 1};
  }
  const bool ignores_sign = op == ReduceOp::kProduct || op == ReduceOp::kBand ||
                            op == ReduceOp::kBor || op == ReduceOp::kBxor;
  if (dtype == Dtype::kInt8 && ignores_sign) return {Dtype::kUInt8, op, 1};
  return {dtype, op, 1};
}

// Whether the pair is a compiled rule itself.
constexpr bool is_rule(Dtype dtype, ReduceOp op) {
  return op_supports(op, dtype) && reduction_rule(dtype, op) == ReductionRule{dtype, op, 1};
}

// few_tiles_kernel (NOTE [Few tiles] in kernels/gpu/wire/few_tiles.cuh); null where there is none.
struct FewTilesKernels {
  const void* whole = nullptr;   // where every piece begins and ends at a multiple of 16 bytes
  const void* any = nullptr;     // elsewhere
  const void* rounds = nullptr;  // as `whole`, where there are more tiles than warps
};

// wire_kernel by wire and by index of kWireWorlds; null where those of any world size serve, or
// where the library has no such wire.
struct WireKernels {
  const void* of[kWireKindCount][kWireWorldCount] = {};
  bool two_take_sets = false;                  // by lines that of two ranks is set_wire_kernel
  FewTilesKernels few_tiles[kWireWorldCount];  // by lines
};

// bulk_kernel by index of kWireWorlds; null as in WireKernels.
struct BulkKernels {
  const void* of[kWireWorldCount] = {};
};

// The kernels of a compiled rule, or of several; null for other pairs.
struct ReduceKernels {
  WireKernels wire;
  BulkKernels bulk;
  const void* fold = nullptr;  // fold_kernel
};
using ReduceKernelTable = std::array<std::array<ReduceKernels, kReduceOpCount>, kDtypeCount>;

// Each enters the kernels of its dtypes, in the translation unit of its name.
void reduce_float16(ReduceKernelTable& table);  // float16, bfloat16
void reduce_float32(ReduceKernelTable& table);  // float32, float64, complex
void reduce_float8(ReduceKernelTable& table);
void reduce_narrow_integer(ReduceKernelTable& table);  // int8, uint8, bool
void reduce_wide_integer(ReduceKernelTable& table);    // int16, int32, int64

// Kernels that move data; move.cu and transfer.cu. share_wire_kernels: of all_to_all, NOTE [Shares]
// in route.cuh.
WireKernels move_wire_kernels();
WireKernels share_wire_kernels();
BulkKernels move_bulk_kernels();
// Barriers of the ranks in one block. Those around copies take CollectiveParams beside WireParams,
// whose `location` all ranks must have equal.
WireKernels barrier_kernels();
WireKernels copies_barrier_kernels();
const void* transfer_kernel_address(MessageForms forms);

// signal.cu; its only parameter is SignalParams.
const void* signal_kernel_address();

// The two kernels of a row exchange, in this order (rows.cu); each takes SignalParams and
// RowParams.
const void* plan_rows_kernel_address();
const void* move_rows_kernel_address();
inline constexpr unsigned kPlanRowsThreads = 1024;  // of one block
inline constexpr unsigned kMoveRowsThreads = 512;

// For a dtype that has a sum (matrix_sum.cu); takes SignalParams and MatrixSum.
const void* matrix_sum_kernel_address(Dtype dtype);
inline constexpr unsigned kMatrixSumThreads = 512;

// `whole`: for rows that begin and end at multiples of 16 bytes.
struct RowNormKernels {
  const void* any = nullptr;
  const void* whole = nullptr;
};

// norm.cu: norm_wire_kernel takes WireParams and NormParams, few_rows_kernel, by index of
// kWireWorlds and of kFewRowsTiles, FewTilesParams and NormParams, row_norm_kernel NormParams. Null
// for other dtypes than RowNorm has.
struct NormKernels {
  WireKernels wire;
  const void* few_rows[kWireWorldCount][kFewRowsKernels] = {};
  RowNormKernels rows;
};
NormKernels norm_kernels(Dtype dtype);

// multimem.cu; takes MultimemParams after the parameters of the others. Null where the library has
// none.
const void* multimem_kernel_address(CollectiveKind kind, Dtype dtype, ReduceOp op);

}  // namespace symm
