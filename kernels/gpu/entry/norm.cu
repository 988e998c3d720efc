// all_reduce and RMS norm of the rows, in one kernel or behind each other.
//
// norm_wire_kernel is an all_reduce in one hop over a wire whose blocks have whole rows, or a part
// of one: a block keeps the sums in shared memory as they arrive, so that the norm costs no launch
// and no second way through memory. few_rows_kernel is the same straight on, where a warp has few
// tiles. row_norm_kernel norms rows that another algorithm has summed. All give the same bits: NOTE
// [Parts of a row] in norm_params.hpp.
#include "kernels/gpu/device/block_norm.cuh"
#include "kernels/gpu/device/poison.cuh"
#include "kernels/gpu/interface/kernel_table.hpp"
#include "kernels/gpu/interface/norm_params.hpp"
#include "kernels/gpu/wire/few_rows.cuh"
#include "kernels/gpu/wire/row_sums.cuh"

namespace symm {

namespace {

template <Dtype dtype>
using SumRule = PlainSum<ElementRule<dtype, ReduceOp::kSum>>;

// What a launch can have on every GPU.
static_assert(sizeof(WireParams<kMaxDeviceRanks>) + sizeof(NormParams) <= 4096);

// Norms the rows of a block.
template <class Sums, class Norm>
__device__ __forceinline__ bool norm_rows(const NormParams& norm, const Sums& sums, Norm& block) {
  for (std::uint32_t begin = 0; begin < sums.bytes(); begin += norm.row_bytes) {
    const auto load = [&](std::uint32_t part) {
      block.load(part,
                 [&](std::uint32_t offset, std::size_t) { return sums.kept(begin + offset); });
    };
    block.row(norm.result + sums.offset() + begin, load, load);
  }
  return true;
}

// Norms the part of a row that a block has; false where the block gave up. `parts`: in shared
// memory.
template <class Sums, class Norm, class Real>
__device__ __forceinline__ bool norm_part(const NormParams& norm, const Sums& sums, Norm& block,
                                          Real (&parts)[kMaxWireBlocks]) {
  const std::uint32_t part = sums.part();
  const std::uint32_t begin = part * norm.part_bytes;
  block.load(part, [&](std::uint32_t offset, std::size_t) { return sums.kept(offset - begin); });
  if (!sums.exchange(block.squares(part), parts)) return false;
  Real squares = 0;
  for (std::uint32_t i = 0; i < norm.row_parts; ++i) squares += load_shared(&parts[i]);
  block.store(norm.result + sums.offset() - begin, part, squares);
  return true;
}

// What a block that gives up was to write.
[[maybe_unused]] static __device__ SYMM_OUTLINED_METHOD void poison_rows(const NormParams& norm,
                                                                         std::uint64_t poison,
                                                                         std::uint64_t offset,
                                                                         std::uint32_t bytes) {
  if (poison == 0) return;
  release_earlier_work();
  fill_poison(norm.total + offset, bytes, poison);
  fill_poison(norm.result + offset, bytes, poison);
}

template <class Tile, int N, Dtype dtype>
__global__ void SYMM_LAUNCH_BOUNDS(kNormThreads, 1)
    norm_wire_kernel(const SYMM_GRID_CONSTANT WireParams<kWireRanks<N>> params,
                     const SYMM_GRID_CONSTANT NormParams norm) {
  using Rule = SumRule<dtype>;
  __shared__ Unit kept[(kNormBlockBytes + Tile::kBytes) / kUnitBytes];  // of whole tiles
  __shared__ typename BlockNorm<Rule>::Shared shared;
  __shared__ typename Rule::Accumulate parts[kMaxWireBlocks];
  RowSums<Tile, N, Rule> sums(params, norm, kept);
  BlockNorm<Rule> block(norm, shared);
  const bool ok = sums.run([&] { block.load_weights(sums.part()); }) &&
                  (norm.rows_per_block != 0 ? norm_rows(norm, sums, block)
                                            : norm_part(norm, sums, block, parts));
  if (ok) {
    sums.end();
  } else {
    poison_rows(norm, params.poison, sums.offset(), sums.bytes());
  }
}

#if SYMM_LINES

// Norms what a block has, one part; false where the block gave up. `parts`: in shared memory.
template <class Sums, class Norm, class Real>
__device__ __forceinline__ bool norm_one(const NormParams& norm, Sums& sums, Norm& block,
                                         Real (&parts)[kMaxWireBlocks]) {
  const std::uint32_t begin = sums.part() * norm.part_bytes;
  block.load(sums.part(),
             [&](std::uint32_t offset, std::size_t) { return sums.kept(offset - begin); });
  const Real own = block.squares(sums.part());
  Real squares = own;
  if (norm.rows_per_block == 0) {
    if (!sums.exchange(own, parts)) return false;
    squares = 0;
#pragma unroll 1  // few: what an unrolled loop asks first takes longer
    for (std::uint32_t i = 0; i < norm.row_parts; ++i) squares += load_shared(&parts[i]);
  }
  sums.count();
  block.store(norm.result + sums.row_offset(), sums.part(), squares);
  return true;
}

template <int N, Dtype dtype, int kTiles>
__global__ void SYMM_LAUNCH_BOUNDS(kFewRowsWarps* kTileThreads, 1)
    few_rows_kernel(const SYMM_GRID_CONSTANT FewTilesParams<N - 1> params,
                    const SYMM_GRID_CONSTANT NormParams norm) {
  using Rule = SumRule<dtype>;
  using Sums = FewRows<LineTile, N, Rule, kTiles>;
  using Norm = BlockNorm < Rule, true, kTiles<kNormUnits ? kTiles : kNormUnits>;
  __shared__ Unit kept[Sums::kUnits];
  __shared__ typename Norm::Shared shared;
  __shared__ typename Rule::Accumulate parts[kMaxWireBlocks];
  Norm block(norm, shared);
  Sums sums(params, norm, kept);
  bool ok = sums.run([&] { block.load_weights(sums.part()); });
  if constexpr (Sums::kHasRows) {
    if (ok) {
      sums.count();
      norm_rows(norm, sums, block);
    }
  } else {
    ok = ok && norm_one(norm, sums, block, parts);
  }
  if (ok) {
    sums.end();
  } else {
    poison_rows(norm, params.poison, sums.offset(), sums.bytes());
  }
}

#endif

// Rows whose sums are in `total`, without the residual. `kWhole`: of all matrices, they begin and
// end at multiples of 16 bytes; what may be loaded byte by byte is waited for one by one.
template <Dtype dtype, bool kWhole>
__global__ void SYMM_LAUNCH_BOUNDS(kNormThreads, 1)
    row_norm_kernel(const SYMM_GRID_CONSTANT NormParams norm) {
  using Norm = BlockNorm<SumRule<dtype>, kWhole>;
  __shared__ typename Norm::Shared shared;
  Norm block(norm, shared);
  block.load_weights(0);
  for (std::uint64_t row = blockIdx.x; row < norm.rows; row += gridDim.x) {
    const std::uint64_t begin = row * norm.row_bytes;
    std::byte* const total = norm.total + begin;
    // Each thread reads what it has written itself.
    const auto load_again = [&](std::uint32_t part) { block.load_row(part, total); };
    const auto load = [&](std::uint32_t part) {
      load_again(part);
      if (norm.residual != nullptr) block.add(part, norm.residual + begin, total);
    };
    block.row(norm.result + begin, load, load_again);
  }
}

#if SYMM_LINES
template <int N, Dtype dtype, int... kTiles>
void enter_few_rows(const void* (&kernels)[kFewRowsKernels]) {
  std::size_t number = 0;
  ((kernels[number++] = reinterpret_cast<const void*>(&few_rows_kernel<N, dtype, kTiles>)), ...);
}
#endif

template <Dtype dtype>
NormKernels kernels_of() {
  NormKernels kernels;
  const auto enter = [&](WireKind wire, int world, const void* kernel) {
    kernels.wire.of[static_cast<std::size_t>(wire)][world] = kernel;
  };
  enter(WireKind::kLL, 3, reinterpret_cast<const void*>(&norm_wire_kernel<LLTile, 0, dtype>));
#if SYMM_LINES
  enter(WireKind::kLine, 3, reinterpret_cast<const void*>(&norm_wire_kernel<LineTile, 0, dtype>));
  if constexpr (dtype == Dtype::kFloat16 || dtype == Dtype::kBFloat16) {
    enter(WireKind::kLine, 0, reinterpret_cast<const void*>(&norm_wire_kernel<LineTile, 2, dtype>));
    enter(WireKind::kLine, 1, reinterpret_cast<const void*>(&norm_wire_kernel<LineTile, 4, dtype>));
    enter(WireKind::kLine, 2, reinterpret_cast<const void*>(&norm_wire_kernel<LineTile, 8, dtype>));
    enter_few_rows<2, dtype, 1, 2, 4>(kernels.few_rows[0]);
    enter_few_rows<4, dtype, 1, 2>(kernels.few_rows[1]);
    enter_few_rows<8, dtype, 1>(kernels.few_rows[2]);
  }
#endif
  kernels.rows.any = reinterpret_cast<const void*>(&row_norm_kernel<dtype, false>);
  kernels.rows.whole = reinterpret_cast<const void*>(&row_norm_kernel<dtype, true>);
  return kernels;
}

}  // namespace

NormKernels norm_kernels(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat16:
      return kernels_of<Dtype::kFloat16>();
    case Dtype::kBFloat16:
      return kernels_of<Dtype::kBFloat16>();
    case Dtype::kFloat32:
      return kernels_of<Dtype::kFloat32>();
    case Dtype::kFloat64:
      return kernels_of<Dtype::kFloat64>();
    default:
      return {};
  }
}

}  // namespace symm
