// Sums over ranks of a part of a matrix: each thread reads a unit of every rank, in their order,
// and writes the sum. The host's stream has barriers before and behind it
// (SignalKernels::sum_matrices).
#include "kernels/gpu/device/block_memory.cuh"
#include "kernels/gpu/device/block_reduce.cuh"
#include "kernels/gpu/device/signal.cuh"
#include "kernels/gpu/interface/kernel_table.hpp"
#include "kernels/gpu/interface/matrix_sum.hpp"

namespace symm {

namespace {

constexpr int kInFlight = 4;  // loads of a thread, of as many ranks

template <class Rule>
__device__ Unit sum_of(const MatrixSum& sum, int world_size, std::int64_t offset,
                       std::size_t bytes) {
  const ReduceFacts facts{nullptr, false, 0, world_size};
  UnitSum<Rule> total;
  for (int base = 0; base < world_size; base += kInFlight) {
    Unit units[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      if (base + k < world_size) units[k] = load_unit(sum.inputs[base + k] + offset, bytes);
    }
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      if (base + k < world_size) total.add(units[k], facts, base + k);
    }
  }
  return total.finish(facts);
}

template <Dtype dtype, ReduceOp op>
__global__ void SYMM_LAUNCH_BOUNDS(kMatrixSumThreads, 1)
    matrix_sum_kernel(const SYMM_GRID_CONSTANT SignalParams signals,
                      const SYMM_GRID_CONSTANT MatrixSum sum) {
  if (!block_all(!SignalThread(signals).is_dead())) return;
  const MatrixPart& part = sum.part;
  const std::uint64_t units = (part.run_bytes + kUnitBytes - 1) / kUnitBytes;  // of a run
  const std::uint64_t all = part.lines * part.runs * units;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < all;
       i += std::uint64_t{gridDim.x} * blockDim.x) {
    const std::uint64_t run = i / units;
    const std::uint64_t first = (i - run * units) * kUnitBytes;
    const auto line = static_cast<std::int64_t>(run / part.runs);
    const auto place = static_cast<std::int64_t>(run % part.runs);
    const std::int64_t offset =
        line * part.line_stride + place * part.run_stride + static_cast<std::int64_t>(first);
    const std::size_t bytes = min_size(kUnitBytes, part.run_bytes - first);
    const Unit total =
        sum_of<PlainSum<ElementRule<dtype, op>>>(sum, signals.world_size, offset, bytes);
    store_unit(sum.output + offset, total, bytes);
  }
}

template <Dtype dtype>
const void* kernel_of(Dtype wanted) {
  constexpr ReduceOp kOp = reduction_rule(dtype, ReduceOp::kSum).op;
  if (wanted != dtype) return nullptr;
  return reinterpret_cast<const void*>(&matrix_sum_kernel<dtype, kOp>);
}

template <Dtype... dtypes>
const void* first_kernel_of(Dtype wanted) {
  const void* kernel = nullptr;
  ((kernel = kernel == nullptr ? kernel_of<dtypes>(wanted) : kernel), ...);
  return kernel;
}

}  // namespace

const void* matrix_sum_kernel_address(Dtype dtype) {
  return first_kernel_of<Dtype::kFloat16, Dtype::kBFloat16, Dtype::kFloat32, Dtype::kFloat64,
                         Dtype::kFloat8E4M3Fn, Dtype::kFloat8E5M2, Dtype::kFloat8E4M3FnUz,
                         Dtype::kFloat8E5M2FnUz, Dtype::kInt8, Dtype::kUInt8, Dtype::kInt16,
                         Dtype::kInt32, Dtype::kInt64, Dtype::kBool>(
      reduction_rule(dtype, ReduceOp::kSum).dtype);
}

}  // namespace symm
