// all_reduce and RMS norm of the rows, in one kernel or behind each other.
//
// norm_wire_kernel is an all_reduce in one hop over a wire whose blocks have whole rows: a block
// has all of a row's sum in shared memory as it arrives, so that the norm costs no launch, no
// barrier of the grid and no second way through memory. row_norm_kernel does the same to rows that
// another algorithm has summed. Both give the same bits: each unit of a row belongs to the same
// thread, and the threads' parts are added up in one order.
#include "kernels/gpu/device/block_memory.cuh"
#include "kernels/gpu/device/block_reduce.cuh"
#include "kernels/gpu/device/poison.cuh"
#include "kernels/gpu/interface/kernel_table.hpp"
#include "kernels/gpu/interface/norm_params.hpp"
#include "kernels/gpu/wire/wire_block.cuh"

namespace symm {

namespace {

template <Dtype dtype>
using SumRule = PlainSum<ElementRule<dtype, ReduceOp::kSum>>;

__device__ ReduceFacts no_facts(int world_size) { return {nullptr, false, 0, world_size}; }

// Both rounded to the dtype before, and the sum after.
template <class Rule>
__device__ Unit added(const Unit& a, const Unit& b) {
  UnitSum<Rule> sum;
  sum.add(a, no_facts(2), 0);
  sum.add(b, no_facts(2), 1);
  return sum.finish(no_facts(2));
}

// The norm of one row by all threads of a block, of which there are kNormThreads.
template <class Rule>
class BlockNorm {
 public:
  using Real = typename Rule::Accumulate;
  using Elements = UnitElements<typename Rule::Storage, Real>;

  __device__ BlockNorm(const NormParams& norm, Real (&parts)[kNormThreads])
      : norm_(norm), parts_(parts) {}

  // unit_at(u): unit u of the row, zero behind its end. Begins and ends with a barrier.
  template <class UnitAt>
  __device__ void row(std::byte* result, const UnitAt& unit_at) {
    Real squares = 0;
    for (std::uint32_t u = threadIdx.x; u < units(); u += kNormThreads) {
      const auto elements = Elements::of(unit_at(u));
#pragma unroll
      for (int i = 0; i < Rule::kPerUnit; ++i) {
        const Real value = Elements::widen(elements.value[i]);
        squares += value * value;
      }
    }
    const Real mean = sum_of_block(squares) / static_cast<Real>(norm_.columns);
    const Real scale = inverse_root(mean + static_cast<Real>(norm_.eps));
    for (std::uint32_t u = threadIdx.x; u < units(); u += kNormThreads) {
      const std::uint32_t offset = u * kUnitBytes;
      const std::size_t bytes = min_size(kUnitBytes, norm_.row_bytes - offset);
      const auto values = Elements::of(unit_at(u));
      const auto weights = Elements::of(load_unit(norm_.weight + offset, bytes));
      Elements normed;
#pragma unroll
      for (int i = 0; i < Rule::kPerUnit; ++i) {
        normed.value[i] = Elements::round(Elements::widen(values.value[i]) * scale *
                                          Elements::widen(weights.value[i]));
      }
      store_unit(result + offset, Elements::unit(normed), bytes);
    }
  }

  __device__ std::uint32_t units() const {
    return static_cast<std::uint32_t>((norm_.row_bytes + kUnitBytes - 1) / kUnitBytes);
  }

 private:
  static constexpr unsigned kSums = 32;  // of the first step

  __device__ static float inverse_root(float value) { return rsqrtf(value); }
  __device__ static double inverse_root(double value) { return rsqrt(value); }

  __device__ Real sum_of_block(Real part) {
    block_all(true);  // the row before this one has been read
    store_shared(&parts_[threadIdx.x], part);
    block_all(true);
    Real sum = 0;
    if (threadIdx.x < kSums) {
      for (unsigned i = threadIdx.x; i < kNormThreads; i += kSums) sum += load_shared(&parts_[i]);
    }
    block_all(true);
    if (threadIdx.x < kSums) store_shared(&parts_[threadIdx.x], sum);
    block_all(true);
    Real total = 0;
#pragma unroll
    for (unsigned i = 0; i < kSums; ++i) total += load_shared(&parts_[i]);
    return total;
  }

  const NormParams& norm_;
  Real (&parts_)[kNormThreads];
};

// The sums of a block's rows, over a wire.
template <class Tile, int N, class Rule>
class RowSums {
 public:
  using Block = WireBlock<Tile, N>;
  using Params = typename Block::Params;

  // `kept`: shared memory for the rows.
  __device__ RowSums(const Params& params, const NormParams& norm, Unit* kept)
      : block_(params),
        norm_(norm),
        kept_(kept),
        first_row_(std::uint64_t{blockIdx.x} * norm.rows_per_block),
        rows_(static_cast<std::uint32_t>(min_size(norm.rows_per_block, norm.rows - first_row_))),
        tiles_((bytes() + Tile::kBytes - 1) / Tile::kBytes) {}

  // False where the block gave up. By the whole block.
  __device__ bool run() {
    if (!block_.ready()) return false;
    send();
    return block_all(combine());
  }
  __device__ void end() { block_.end(); }

  __device__ std::uint32_t rows() const { return rows_; }
  __device__ std::uint32_t bytes() const { return rows_ * norm_.row_bytes; }
  __device__ std::uint64_t offset() const { return first_row_ * norm_.row_bytes; }

 private:
  static constexpr int kBatch = Block::kBatch;

  __device__ Unit load(const std::byte* matrix, std::uint32_t tile) const {
    const std::uint32_t place = tile * Tile::kBytes + Tile::offset();
    if (place >= bytes()) return Unit{};
    return Tile::load(matrix + offset() + place, bytes() - place);
  }
  __device__ void store(std::byte* matrix, std::uint32_t tile, const Unit& unit) const {
    const std::uint32_t place = tile * Tile::kBytes + Tile::offset();
    if (place < bytes()) Tile::store(matrix + offset() + place, unit, bytes() - place);
  }

  __device__ void send() {
    for (std::uint32_t tile = block_.first_tile(); tile < tiles_; tile += block_.tile_stride()) {
      const Unit unit = load(norm_.input, tile);
      for (int base = 0; base < block_.world_size(); base += kBatch) {
#pragma unroll
        for (int k = 0; k < kBatch; ++k) {
          const int peer = base + k;
          if (peer < block_.world_size() && peer != block_.rank()) block_.send(peer, tile, unit);
        }
      }
    }
    block_.refresh([this](int, std::uint32_t place) { return place < tiles_; });
  }

  __device__ bool combine() {
    const ReduceFacts facts = no_facts(block_.world_size());
    for (std::uint32_t tile = block_.first_tile(); tile < tiles_; tile += block_.tile_stride()) {
      const Unit own = load(norm_.input, tile);
      const Unit residual = norm_.residual == nullptr ? Unit{} : load(norm_.residual, tile);
      UnitSum<Rule> sum;
      for (int base = 0; base < block_.world_size(); base += kBatch) {
        Unit units[kBatch];
        if (!block_.receive(base, tile, units, [](int) { return true; })) return false;
#pragma unroll
        for (int k = 0; k < kBatch; ++k) {
          const int peer = base + k;
          if (peer < block_.world_size()) {
            sum.add(peer == block_.rank() ? own : units[k], facts, peer);
          }
        }
      }
      Unit total = sum.finish(facts);
      if (norm_.residual != nullptr) total = added<Rule>(total, residual);
      store(norm_.total, tile, total);
      Tile::keep(kept_ + tile * (Tile::kBytes / kUnitBytes), total);
    }
    return true;
  }

  Block block_;
  const NormParams& norm_;
  Unit* const kept_;
  const std::uint64_t first_row_;
  const std::uint32_t rows_;
  const std::uint32_t tiles_;
};

// What a launch can have on every GPU.
static_assert(sizeof(WireParams<kMaxDeviceRanks>) + sizeof(NormParams) <= 4096);

template <class Tile, int N, Dtype dtype>
__global__ void SYMM_LAUNCH_BOUNDS(kNormThreads, 1)
    norm_wire_kernel(const SYMM_GRID_CONSTANT WireParams<kWireRanks<N>> params,
                     const SYMM_GRID_CONSTANT NormParams norm) {
  using Rule = SumRule<dtype>;
  __shared__ Unit kept[(kNormBlockBytes + Tile::kBytes) / kUnitBytes];  // of whole tiles
  __shared__ typename Rule::Accumulate parts[kNormThreads];
  RowSums<Tile, N, Rule> sums(params, norm, kept);
  if (!sums.run()) {
    if (params.poison == 0) return;
    release_earlier_work();
    fill_poison(norm.total + sums.offset(), sums.bytes(), params.poison);
    fill_poison(norm.result + sums.offset(), sums.bytes(), params.poison);
    return;
  }
  BlockNorm<Rule> block(norm, parts);
  for (std::uint32_t row = 0; row < sums.rows(); ++row) {
    const std::uint32_t begin = row * norm.row_bytes;
    block.row(norm.result + sums.offset() + begin,
              [&](std::uint32_t u) { return load_shared(&kept[begin / kUnitBytes + u]); });
  }
  sums.end();
}

// Rows whose sums are in `total`, without the residual.
template <Dtype dtype>
__global__ void SYMM_LAUNCH_BOUNDS(kNormThreads, 1)
    row_norm_kernel(const SYMM_GRID_CONSTANT NormParams norm) {
  using Rule = SumRule<dtype>;
  __shared__ typename Rule::Accumulate parts[kNormThreads];
  BlockNorm<Rule> block(norm, parts);
  for (std::uint64_t row = blockIdx.x; row < norm.rows; row += gridDim.x) {
    const std::uint64_t begin = row * norm.row_bytes;
    const auto bytes_at = [&](std::uint32_t u) {
      return min_size(kUnitBytes, norm.row_bytes - u * kUnitBytes);
    };
    std::byte* const total = norm.total + begin;
    if (norm.residual != nullptr) {
      for (std::uint32_t u = threadIdx.x; u < block.units(); u += kNormThreads) {
        const std::uint32_t offset = u * kUnitBytes;
        const Unit residual = load_unit(norm.residual + begin + offset, bytes_at(u));
        const Unit sum = added<Rule>(load_unit(total + offset, bytes_at(u)), residual);
        store_unit(total + offset, sum, bytes_at(u));
      }
    }
    // Each thread reads what it has written itself.
    block.row(norm.result + begin,
              [&](std::uint32_t u) { return load_unit(total + u * kUnitBytes, bytes_at(u)); });
  }
}

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
  }
#endif
  kernels.rows = reinterpret_cast<const void*>(&row_norm_kernel<dtype>);
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
