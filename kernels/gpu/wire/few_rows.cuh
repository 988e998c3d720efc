// The sums of rows, or of a part of a row, by a block whose warps have few tiles of them: as
// RowSums in row_sums.cuh, but straight on (NOTE [Few tiles] in few_tiles.cuh). Ranks may take
// either in the same call: what goes over the wire is the same.
//
// In place is safe: a warp loads its units of the input before it sends them, and what is stored
// over them follows from what it sent.
#pragma once

#include "kernels/gpu/device/block_norm.cuh"
#include "kernels/gpu/wire/block_values.cuh"
#include "kernels/gpu/wire/few_tiles_calls.cuh"

namespace symm {

// `kTiles`: of a warp, which stand together. Rows, and all addresses, are multiples of 16 bytes.
template <class Tile, int N, class Rule, int kTiles>
class FewRows {
 public:
  static constexpr int kPeers = N - 1;
  using Params = FewTilesParams<kPeers>;
  // A block has any whole rows; else one row of one part, or a part of a row.
  static constexpr bool kHasRows = kTiles > 2;
  static constexpr std::uint32_t kUnits = kFewRowsWarps * kTiles * (Tile::kBytes / kUnitBytes);

  // `kept`: shared memory for the rows, of kUnits.
  __device__ __forceinline__ FewRows(const Params& params, const NormParams& norm, Unit* kept)
      : params_(params),
        norm_(norm),
        kept_(kept),
        local_(*global_pointer(params.local)),
        epoch_(load_data(&local_.wire_epoch[blockIdx.x]) + 1),
        sequence_(load_relaxed(&local_.sequence)) {
    if (!kHasRows && norm.rows_per_block == 0) {
      const std::uint32_t row = blockIdx.x * norm.inverse_parts >> 16;
      part_ = blockIdx.x - row * norm.row_parts;
      row_offset_ = row * norm.row_bytes;
      bytes_ = min(norm.part_bytes, norm.row_bytes - part_ * norm.part_bytes);
    } else {
      const std::uint32_t rows = kHasRows ? norm.rows_per_block : 1;
      row_offset_ = blockIdx.x * rows * norm.row_bytes;
      bytes_ = norm.row_bytes;
      if (kHasRows) {
        bytes_ *= min(rows, static_cast<std::uint32_t>(norm.rows) - blockIdx.x * rows);
      }
    }
  }

  // False where the block gave up. Calls load_more() before anything is waited for. By the whole
  // block.
  template <class LoadMore>
  __device__ __forceinline__ bool run(const LoadMore& load_more) {
    // All that is loaded is on its way before any of it is waited for.
    Units own;
    Units residuals{};
    load(norm_.input, own);
    const bool alive = load_relaxed(&local_.dead) == 0;
    // Threads without a peer do as the last one: a load under a condition would be waited for.
    const int peer = min(static_cast<int>(tile_thread()), kPeers - 1);
    const std::uint64_t has_done = load_relaxed(done_of_peer(params_, peer));
    const std::uint64_t heard =
        load_data(&local_.wire_heard[blockIdx.x][rank_of_peer(params_, peer)]);
    if (norm_.residual != nullptr) load(norm_.residual, residuals);
    load_more();
    if (params_.counts_calls && alive && blockIdx.x == 0 && threadIdx.x == 0) {
      store_relaxed(&global_pointer(params_.page)->entered, sequence_ / kSequenceUnit + 1);
    }
    bool ok = alive;
    if (!has_reached(heard + 2, epoch_ + 1) && !has_reached(has_done + 2, epoch_)) {
      ok = ok && await_end_of_epoch(params_, peer, epoch_);
    }
    ok = Tile::all(ok);
    if (ok && has_tile(0)) {
      send(own);
      ok = combine(own, residuals);
    }
    return block_all(ok);
  }

  // Where a block has a part of a row: fills parts[], in shared memory, with `value` of each block
  // that has a part of the row. False where the block gave up. By the whole block.
  template <class T>
  __device__ __forceinline__ bool exchange(T value, T* parts) const {
    if (threadIdx.x == 0) share_value(local_, sequence_, value);
    bool ok = true;
    if (threadIdx.x < norm_.row_parts) {
      T other = 0;
      ok = await_value(local_, params_, sequence_, blockIdx.x - part_ + threadIdx.x, &other,
                       params_.rank);
      store_shared(&parts[threadIdx.x], other);
    }
    return block_all(ok);
  }

  // The block is through with its peers and with other blocks. What is counted is on its way while
  // the rows are normed, by the last warp, which has least of them. By the whole block; end()
  // follows.
  __device__ __forceinline__ void count() {
    if (!counts()) return;
#pragma unroll
    for (int p = 0; p < kPeers; ++p) {
      store_data(&local_.wire_heard[blockIdx.x][rank_of_peer(params_, p)], epoch_);
    }
    store_data(&local_.wire_epoch[blockIdx.x], epoch_);
    before_ = count_block(local_, sequence_);
  }
  __device__ __forceinline__ void end() const {
    if (counts() && params_.counts_calls) tell_end(global_pointer(params_.page), before_);
  }

  // What the block has of the matrix: from this offset on.
  __device__ std::uint32_t offset() const { return row_offset_ + part_ * norm_.part_bytes; }
  __device__ std::uint32_t bytes() const { return bytes_; }
  __device__ std::uint32_t part() const { return part_; }  // 0 where it has whole rows
  __device__ std::uint32_t row_offset() const { return row_offset_; }
  // The sum, `at` bytes behind the offset.
  __device__ Unit kept(std::uint32_t at) const { return load_shared(&kept_[at / kUnitBytes]); }

 private:
  using Units = Unit[kTiles];
  using Wide = WideUnit<Rule>;

  __device__ static bool counts() { return threadIdx.x == blockDim.x - kTileThreads; }
  __device__ static std::uint32_t first_tile() { return threadIdx.x / kTileThreads * kTiles; }
  // Tile i of this warp.
  __device__ static std::uint32_t begin_of(int i) {
    return (first_tile() + static_cast<std::uint32_t>(i)) * Tile::kBytes;
  }
  __device__ bool has_tile(int i) const { return begin_of(i) < bytes_; }

  // The units that have this thread's parts of its tiles. Behind the end it is the last one: what
  // becomes of it goes nowhere, and a load under a condition would be waited for.
  __device__ __forceinline__ void load(const std::byte* matrix, Units& units) const {
    const std::byte* const from = matrix + offset();
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const std::uint32_t at = begin_of(i) + Tile::unit_offset();
      const auto last = bytes_ - static_cast<std::uint32_t>(kUnitBytes);
      units[i] = load_data(reinterpret_cast<const Unit*>(from + min(at, last)));
    }
  }

  // Of this warp's first tile, from a box of block 0 in an even epoch.
  __device__ std::uint64_t place() const {
    const std::uint32_t odd = (epoch_ & 1) != 0 ? params_.box_blocks : 0;
    return std::uint64_t{odd + blockIdx.x} * params_.box_step + first_tile() * Tile::kSpace;
  }
  __device__ __forceinline__ void send(const Units& own) const {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      if (i > 0 && !has_tile(i)) break;
#pragma unroll
      for (int p = 0; p < kPeers; ++p) {
        Tile::converge();
        Tile::send(global_pointer(params_.peers[p].to) + place() + i * int{Tile::kSpace},
                   Tile::own_part(own[i]), Tile::flag_of(epoch_));
      }
    }
  }

  __device__ __forceinline__ bool combine(const Units& own, const Units& residuals) {
    Unit units[kTiles][kPeers];
    if (!receive(units)) return false;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const Unit total = total_of(Tile::own_part(own[i]), units[i], Tile::own_part(residuals[i]));
      Tile::store_whole(reinterpret_cast<std::byte*>(kept_) + begin_of(i), total);
      if (begin_of(i) + Tile::offset() < bytes_) {
        Tile::store_whole(norm_.total + offset() + begin_of(i), total);
      }
    }
    return true;
  }
  __device__ __forceinline__ bool receive(Unit (&units)[kTiles][kPeers]) const {
    std::byte* from[kPeers];
#pragma unroll
    for (int p = 0; p < kPeers; ++p) {
      from[p] = global_pointer(params_.peers[p].from) + place();
      keep_in_register(from[p]);
    }
    // From the first tile; where there are fewer the last is looked at again, as in load().
    std::uint32_t steps[kTiles] = {};
#pragma unroll
    for (int i = 1; i < kTiles; ++i) {
      steps[i] = has_tile(i) ? static_cast<std::uint32_t>(i) * Tile::kSpace : steps[i - 1];
    }
    std::uint64_t first_look = 0;
    bool came = false;
    for (std::uint32_t polls = 1;; ++polls) {
      Tile::converge();
      typename Tile::Arrival arrivals[kTiles][kPeers];
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int p = 0; p < kPeers; ++p) arrivals[i][p] = Tile::look(from[p] + steps[i]);
      }
      bool here = true;
      int late = 0;
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int p = 0; p < kPeers; ++p) {
          if (arrivals[i][p].has(Tile::flag_of(epoch_), &units[i][p])) continue;
          here = false;
          late = p;
        }
      }
      if (Tile::all(here)) {
        if (came || !Tile::kLoadsAgain) return true;  // NOTE [Wires] in tile.cuh
        came = true;
        continue;
      }
      if ((polls & (params_.poll_period - 1)) != 0) continue;
      if (!here) first_look = look_for(params_, late, first_look);
      if (Tile::any(!here && first_look == 0)) return false;
    }
  }
  // With the residual, where there is one.
  __device__ __forceinline__ Unit total_of(const Unit& own, const Unit (&units)[kPeers],
                                           const Unit& residual) const {
    const Wide sum = sum_of(own, units);
    const bool has_residual = norm_.residual != nullptr;
    if constexpr (!Wide::kHasPlain) {
      return has_residual ? added<Rule>(sum.rounded(), residual) : sum.rounded();
    } else {
      Wide total = sum;
      if (has_residual) total = Wide::of(sum.rounded_plain()).plus(Wide::of(residual));
      // NaN in the sum is NaN in what has been added to it.
      if (total.is_plain()) return total.rounded_plain();
      const Unit rounded = Wide::rounded_any(sum);
      if (!has_residual) return rounded;
      return Wide::rounded_any(Wide::of(rounded).plus(Wide::of(residual)));
    }
  }
  // In rank order.
  __device__ __forceinline__ Wide sum_of(const Unit& own, const Unit (&units)[kPeers]) const {
    if constexpr (N == 2) {  // of two in any order
      return Wide::of(own).plus(Wide::of(units[0]));
    } else {
      Wide sum;
#pragma unroll
      for (int r = 0; r < N; ++r) {
        Unit unit = own;
        if (r < kPeers) unit = either(r < params_.rank, units[r < kPeers ? r : 0], unit);
        if (r > 0) unit = either(r > params_.rank, units[r > 0 ? r - 1 : 0], unit);
        sum = r == 0 ? Wide::of(unit) : sum.plus(Wide::of(unit));
      }
      return sum;
    }
  }

  const Params& params_;
  const NormParams& norm_;
  Unit* const kept_;
  LocalState& local_;
  const std::uint64_t epoch_;
  const std::uint64_t sequence_;  // of the first block: before this call
  std::uint32_t part_ = 0;
  std::uint32_t row_offset_;
  std::uint32_t bytes_;
  std::uint64_t before_ = 0;  // the sequence when count() added to it
};

}  // namespace symm
