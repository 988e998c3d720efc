// The sums of rows, or of a part of a row, by one block of a wire.
//
// In place is safe: a thread loads its units of the input before it sends them, and what is stored
// over them follows from what it sent.
#pragma once

#include "kernels/gpu/device/block_norm.cuh"
#include "kernels/gpu/wire/wire_block.cuh"

namespace symm {

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
        part_(norm.rows_per_block != 0 ? 0 : blockIdx.x % norm.row_parts),
        first_row_(norm.rows_per_block != 0 ? std::uint64_t{blockIdx.x} * norm.rows_per_block
                                            : blockIdx.x / norm.row_parts),
        bytes_(bytes_of(norm, first_row_, part_)),
        tiles_((bytes_ + Tile::kBytes - 1) / Tile::kBytes) {
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

  // Where a block has a part of a row: fills parts[], in shared memory, with `value` of each block
  // that has a part of the row. False where the block gave up. By the whole block.
  template <class T>
  __device__ bool exchange(T value, T* parts) const {
    if (threadIdx.x == 0) block_.share(value);
    bool ok = true;
    if (threadIdx.x < norm_.row_parts) {
      T other = 0;
      ok = block_.await_value(blockIdx.x - part_ + threadIdx.x, &other);
      store_shared(&parts[threadIdx.x], other);
    }
    return block_all(ok);
  }

  // What the block has of the matrix: from this offset on.
  __device__ std::uint64_t offset() const {
    return first_row_ * norm_.row_bytes + part_ * norm_.part_bytes;
  }
  __device__ std::uint32_t bytes() const { return bytes_; }
  __device__ std::uint32_t part() const { return part_; }  // 0 where it has whole rows
  // The sum, `at` bytes behind the offset.
  __device__ Unit kept(std::uint32_t at) const { return load_shared(&kept_[at / kUnitBytes]); }

 private:
  static constexpr int kBatch = Block::kBatch;
  // A thread works on so many of its tiles at once; with more ranks there are other loads at once.
  static constexpr int kTiles = N == 2 ? 3 : N == 4 ? 2 : 1;
  using Units = Unit[kTiles];

  __device__ static std::uint32_t bytes_of(const NormParams& norm, std::uint64_t first_row,
                                           std::uint32_t part) {
    if (norm.rows_per_block == 0) {
      return static_cast<std::uint32_t>(
          min_size(norm.part_bytes, norm.row_bytes - part * norm.part_bytes));
    }
    return static_cast<std::uint32_t>(min_size(norm.rows_per_block, norm.rows - first_row)) *
           norm.row_bytes;
  }

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
      units[i] = place < bytes_ ? Tile::load(matrix + offset() + place, bytes_ - place) : Unit{};
    }
  }
  __device__ void store(std::byte* matrix, std::uint32_t tile, const Unit& unit) const {
    const std::uint32_t place = tile * Tile::kBytes + Tile::offset();
    if (place < bytes_) Tile::store(matrix + offset() + place, unit, bytes_ - place);
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
  const std::uint32_t part_;
  const std::uint64_t first_row_;
  const std::uint32_t bytes_;
  const std::uint32_t tiles_;
  // Of the tiles that are combined next.
  Units inputs_;
  Units residuals_;
};

}  // namespace symm
