// all_reduce and RMS norm of the rows, in one kernel or behind each other.
//
// norm_wire_kernel is an all_reduce in one hop over a wire whose blocks have whole rows: a block
// has all of a row's sum in shared memory as it arrives, so that the norm costs no launch, no
// barrier of the grid and no second way through memory. What it needs of this rank's memory it
// loads before it waits. row_norm_kernel does the same to rows that another algorithm has summed.
// Both give the same bits: the squares are added up by the same code (BlockNorm).
#include "kernels/gpu/device/block_memory.cuh"
#include "kernels/gpu/device/block_reduce.cuh"
#include "kernels/gpu/device/block_sum.cuh"
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

// The norm of rows by all threads of a block, of which there are kNormThreads. A thread has the
// same units of each part of a row (NOTE [Parts of a row]), and keeps those of one part.
template <class Rule>
class BlockNorm {
 public:
  using Real = typename Rule::Accumulate;
  using Sum = BlockSum<Real, kNormThreads>;
  using Shared = typename Sum::Shared;

  __device__ BlockNorm(const NormParams& norm, Shared& shared) : norm_(norm), sum_(shared) {}

  // read(offset, bytes): the unit at this offset of the row.
  template <class Read>
  __device__ void load(std::uint32_t part, const Read& read) {
    each_unit(part, [&](int k, std::uint32_t offset, std::size_t bytes) {
      values_[k] = read(offset, bytes);
    });
  }
  __device__ void load_weights(std::uint32_t part) {
    each_unit(part, [&](int k, std::uint32_t offset, std::size_t bytes) {
      weights_[k] = load_unit(norm_.weight + offset, bytes);
    });
  }
  // Adds `residual` to the values of a part, and stores them to `total`; both are of the row.
  __device__ void add(std::uint32_t part, const std::byte* residual, std::byte* total) {
    Unit units[kNormUnits];
    each_unit(part, [&](int k, std::uint32_t offset, std::size_t bytes) {
      units[k] = load_unit(residual + offset, bytes);
    });
    each_unit(part, [&](int k, std::uint32_t offset, std::size_t bytes) {
      values_[k] = added<Rule>(values_[k], units[k]);
      store_unit(total + offset, values_[k], bytes);
    });
  }

  // The sum of the squares of a part, whose values are loaded, in every thread. Has one barrier.
  __device__ Real squares(std::uint32_t part) {
    Real squares = 0;
    each_unit(part, [&](int k, std::uint32_t, std::size_t) {
      const auto elements = Elements::of(values_[k]);
#pragma unroll
      for (int i = 0; i < Rule::kPerUnit; ++i) {
        const Real value = Elements::widen(elements.value[i]);
        squares += value * value;
      }
    });
    return sum_.of(squares);
  }

  // Stores the norm of a part, whose values and weights are loaded. `squares`: of the row.
  __device__ void store(std::byte* result, std::uint32_t part, Real squares) const {
    const Real mean = squares / static_cast<Real>(norm_.columns);
    const Real scale = inverse_root(mean + static_cast<Real>(norm_.eps));
    each_unit(part, [&](int k, std::uint32_t offset, std::size_t bytes) {
      const auto values = Elements::of(values_[k]);
      const auto weights = Elements::of(weights_[k]);
      Elements normed;
#pragma unroll
      for (int i = 0; i < Rule::kPerUnit; ++i) {
        normed.value[i] = Elements::round(Elements::widen(values.value[i]) * scale *
                                          Elements::widen(weights.value[i]));
      }
      store_unit(result + offset, Elements::unit(normed), bytes);
    });
  }

  // A whole row. load(part) loads values, and load_again(part) the same once more, where there are
  // several parts; the weights of part 0 are loaded.
  template <class Load, class LoadAgain>
  __device__ void row(std::byte* result, const Load& load, const LoadAgain& load_again) {
    Real squares_of_row = 0;
    for (std::uint32_t part = 0; part < norm_.row_parts; ++part) {
      load(part);
      squares_of_row += squares(part);
    }
    if (norm_.row_parts == 1) return store(result, 0, squares_of_row);
    for (std::uint32_t part = 0; part < norm_.row_parts; ++part) {
      load_again(part);
      load_weights(part);
      store(result, part, squares_of_row);
    }
  }

 private:
  using Elements = UnitElements<typename Rule::Storage, Real>;

  __device__ static float inverse_root(float value) { return rsqrtf(value); }
  __device__ static double inverse_root(double value) { return rsqrt(value); }

  // Calls body(k, offset in the row, bytes) for this thread's units of a part.
  template <class Body>
  __device__ void each_unit(std::uint32_t part, const Body& body) const {
    const std::uint32_t begin = part * norm_.part_bytes;
    const std::uint32_t bytes =
        static_cast<std::uint32_t>(min_size(norm_.part_bytes, norm_.row_bytes - begin));
#pragma unroll
    for (int k = 0; k < kNormUnits; ++k) {
      const std::uint32_t at =
          (threadIdx.x + static_cast<std::uint32_t>(k) * kNormThreads) * kUnitBytes;
      if (at < bytes) body(k, begin + at, min_size(kUnitBytes, bytes - at));
    }
  }

  const NormParams& norm_;
  Sum sum_;
  Unit values_[kNormUnits];
  Unit weights_[kNormUnits];
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
        tiles_((bytes() + Tile::kBytes - 1) / Tile::kBytes) {
    load(norm_.input, block_.first_tile(), inputs_);  // while the counters are on their way
  }

  // False where the block gave up. Calls load_more() while the peers' tiles are on their way. By
  // the whole block.
  template <class LoadMore>
  __device__ bool run(const LoadMore& load_more) {
    if (!block_.ready()) return false;
    send();
    load_residuals(block_.first_tile());
    load_more();
    return block_all(combine());
  }
  __device__ void end() { block_.end(); }

  __device__ std::uint32_t rows() const { return rows_; }
  __device__ std::uint32_t bytes() const { return rows_ * norm_.row_bytes; }
  __device__ std::uint64_t offset() const { return first_row_ * norm_.row_bytes; }

 private:
  static constexpr int kBatch = Block::kBatch;
  // A thread works on so many of its tiles at once; with more ranks there are other loads at once.
  static constexpr int kTiles = N == 2 ? 3 : N == 4 ? 2 : 1;
  using Units = Unit[kTiles];

  // Of the tiles from `first` on that this thread works on at once.
  __device__ std::uint32_t tile_at(std::uint32_t first, int i) const {
    return first + static_cast<std::uint32_t>(i) * block_.tile_stride();
  }
  __device__ std::uint32_t after(std::uint32_t first) const { return tile_at(first, kTiles); }

  __device__ void load_residuals(std::uint32_t first) {
    if (norm_.residual != nullptr) load(norm_.residual, first, residuals_);
  }
  __device__ void load(const std::byte* matrix, std::uint32_t first, Units& units) const {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const std::uint32_t tile = tile_at(first, i);
      if (tile >= tiles_) return;
      const std::uint32_t place = tile * Tile::kBytes + Tile::offset();
      units[i] = place < bytes() ? Tile::load(matrix + offset() + place, bytes() - place) : Unit{};
    }
  }
  __device__ void store(std::byte* matrix, std::uint32_t tile, const Unit& unit) const {
    const std::uint32_t place = tile * Tile::kBytes + Tile::offset();
    if (place < bytes()) Tile::store(matrix + offset() + place, unit, bytes() - place);
  }

  __device__ void send() {
    send(block_.first_tile(), inputs_);
    for (std::uint32_t first = after(block_.first_tile()); first < tiles_; first = after(first)) {
      Units units;
      load(norm_.input, first, units);
      send(first, units);
    }
    block_.refresh([this](int, std::uint32_t place) { return place < tiles_; });
  }
  __device__ void send(std::uint32_t first, const Units& units) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const std::uint32_t tile = tile_at(first, i);
      if (tile >= tiles_) return;
      for (int base = 0; base < block_.world_size(); base += kBatch) {
#pragma unroll
        for (int k = 0; k < kBatch; ++k) {
          const int peer = base + k;
          if (peer < block_.world_size() && peer != block_.rank()) {
            block_.send(peer, tile, units[i]);
          }
        }
      }
    }
  }

  __device__ bool combine() {
    for (std::uint32_t first = block_.first_tile(); first < tiles_; first = after(first)) {
      if (first != block_.first_tile()) {
        load(norm_.input, first, inputs_);
        load_residuals(first);
      }
      if (!combine(first)) return false;
    }
    return true;
  }
  __device__ bool combine(std::uint32_t first) {
    const ReduceFacts facts = no_facts(block_.world_size());
    UnitSum<Rule> sums[kTiles];
    for (int base = 0; base < block_.world_size(); base += kBatch) {
      Unit units[kTiles][kBatch];
      if (!block_.receive_tiles(base, first, tiles_, units)) return false;
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        if (tile_at(first, i) >= tiles_) break;
#pragma unroll
        for (int k = 0; k < kBatch; ++k) {
          const int peer = base + k;
          if (peer >= block_.world_size()) continue;
          Unit unit = units[i][k];
          if (peer == block_.rank()) unit = inputs_[i];
          sums[i].add(unit, facts, peer);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const std::uint32_t tile = tile_at(first, i);
      if (tile >= tiles_) break;
      Unit total = sums[i].finish(facts);
      if (norm_.residual != nullptr) total = added<Rule>(total, residuals_[i]);
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
  // Of the tiles that are combined next.
  Units inputs_;
  Units residuals_;
};

// What a launch can have on every GPU.
static_assert(sizeof(WireParams<kMaxDeviceRanks>) + sizeof(NormParams) <= 4096);

template <class Tile, int N, Dtype dtype>
__global__ void SYMM_LAUNCH_BOUNDS(kNormThreads, 1)
    norm_wire_kernel(const SYMM_GRID_CONSTANT WireParams<kWireRanks<N>> params,
                     const SYMM_GRID_CONSTANT NormParams norm) {
  using Rule = SumRule<dtype>;
  __shared__ Unit kept[(kNormBlockBytes + Tile::kBytes) / kUnitBytes];  // of whole tiles
  __shared__ typename BlockNorm<Rule>::Shared shared;
  RowSums<Tile, N, Rule> sums(params, norm, kept);
  BlockNorm<Rule> block(norm, shared);
  if (!sums.run([&] { block.load_weights(0); })) {
    if (params.poison == 0) return;
    release_earlier_work();
    fill_poison(norm.total + sums.offset(), sums.bytes(), params.poison);
    fill_poison(norm.result + sums.offset(), sums.bytes(), params.poison);
    return;
  }
  for (std::uint32_t row = 0; row < sums.rows(); ++row) {
    const std::uint32_t begin = row * norm.row_bytes;
    const auto load = [&](std::uint32_t part) {
      block.load(part, [&](std::uint32_t offset, std::size_t) {
        return load_shared(&kept[(begin + offset) / kUnitBytes]);
      });
    };
    block.row(norm.result + sums.offset() + begin, load, load);
  }
  sums.end();
}

// Rows whose sums are in `total`, without the residual.
template <Dtype dtype>
__global__ void SYMM_LAUNCH_BOUNDS(kNormThreads, 1)
    row_norm_kernel(const SYMM_GRID_CONSTANT NormParams norm) {
  using Rule = SumRule<dtype>;
  __shared__ typename BlockNorm<Rule>::Shared shared;
  BlockNorm<Rule> block(norm, shared);
  block.load_weights(0);
  for (std::uint64_t row = blockIdx.x; row < norm.rows; row += gridDim.x) {
    const std::uint64_t begin = row * norm.row_bytes;
    std::byte* const total = norm.total + begin;
    // Each thread reads what it has written itself.
    const auto load_again = [&](std::uint32_t part) {
      block.load(part, [&](std::uint32_t offset, std::size_t bytes) {
        return load_unit(total + offset, bytes);
      });
    };
    const auto load = [&](std::uint32_t part) {
      load_again(part);
      if (norm.residual != nullptr) block.add(part, norm.residual + begin, total);
    };
    block.row(norm.result + begin, load, load_again);
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
