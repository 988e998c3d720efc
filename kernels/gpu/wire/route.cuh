// The two hops of a collective (NOTE [Routes] in wire_params.hpp), by one block.
//
// In place is safe: a thread reads its unit of an input before it sends it, and what is stored over
// it follows from what it sent.
#pragma once

#include "kernels/gpu/device/block_reduce.cuh"
#include "kernels/gpu/device/poison.cuh"
#include "kernels/gpu/wire/wire_block.cuh"

namespace symm {

// For kernels that only move data.
struct NoRules {};

// NOTE [Shares]
// For all_to_all. A rank knows what it exchanges with each peer, and not what others exchange, so
// what both its ends know of a share, its size, says how many blocks divide it. A rank launches as
// many as its largest share has. Those that others may have launched as well, up to the number that
// the group agreed on, have nothing to do here and end their epochs all the same: one more block
// does it for all of them (end_idle_blocks); or, where epochs repeat and boxes must be refreshed,
// all are launched. Of two ranks both know both shares, and launch equally many. Shares that are
// too large go by lanes after this launch, and have no tiles in it.
//
// Sizes are compared. By lines the size is in the flags of a share's tiles, above the 40 bits of an
// epoch that are ever counted: tiles of another size do not count as come, and block 0, which waits
// for one of them in vain, finds and reports what it has. An empty share is one tile of block 0. So
// nothing is sent to be compared alone, and nobody waits for it. An LL wire has no room in its
// flags: block 0 sends each peer a tile more, with the size modulo 2^32, and waits for theirs; only
// where the pair exchanges something over the wire. Lanes compare by themselves. A share that is
// large for one of its ends alone is a peer that does not come.
struct ShareRules : NoRules {};

template <class Rules>
inline constexpr bool kByShare = std::is_same_v<Rules, ShareRules>;

// By a block that has no part in the call: the next epoch of each block from `first` on ends, which
// tell_all(block, epoch) tells the peers. `page`: null where calls are not counted.
template <class TellAll>
__device__ __forceinline__ void end_blocks_from(std::uint64_t first, std::uint64_t blocks,
                                                LocalState& local, DevicePage* page, bool ends_call,
                                                const TellAll& tell_all) {
  const std::uint64_t sequence = load_relaxed(&local.sequence);
  const bool alive = load_relaxed(&local.dead) == 0;
  if (alive && page != nullptr && blockIdx.x == 0 && threadIdx.x == 0) {
    store_relaxed(&page->entered, sequence / kSequenceUnit + 1);
  }
  for (std::uint64_t block = first + threadIdx.x; alive && block < blocks; block += blockDim.x) {
    const std::uint64_t epoch = load_data(&local.wire_epoch[block]) + 1;
    store_data(&local.wire_epoch[block], epoch);
    tell_all(block, epoch);
  }
  if (alive && threadIdx.x == 0 && ends_call) count_call(local, page, sequence);
}
template <int kRanks>
__device__ __forceinline__ void end_idle_blocks(const WireParams<kRanks>& params) {
  std::byte* const own = global_pointer(params.segments[params.rank]);
  end_blocks_from(params.share_blocks, params.box_blocks,
                  *reinterpret_cast<LocalState*>(own + params.local),
                  params.counts_calls ? global_pointer(params.page) : nullptr, params.ends_call,
                  [&](std::uint64_t block, std::uint64_t epoch) {
                    for (int peer = 0; peer < params.world_size; ++peer) {
                      if (peer == params.rank) continue;
                      store_relaxed(wire_done_at(params, peer, params.rank) + block, epoch);
                    }
                  });
}

// NOTE [Poison] in poison.cuh. By the whole block.
template <class Tile, bool kShares, int kRanks>
__device__ SYMM_OUTLINED_METHOD void poison_pieces(const WireParams<kRanks>& params) {
  if (params.poison == 0) return;
  release_earlier_work();
  static_assert(Tile::kBytes % sizeof(params.poison) == 0);
  for (int r = 0; r < kRanks && params.stores >> r != 0; ++r) {
    const WirePiece& piece = params.take[r];
    if ((params.stores >> r & 1) == 0 || piece.data == nullptr) continue;
    const std::uint32_t part = (kShares ? piece.tiles : params.tiles_per_block) * Tile::kBytes;
    if (part == 0) continue;  // goes by lanes
    for (std::uint32_t begin = blockIdx.x * part; begin < piece.bytes; begin += gridDim.x * part) {
      fill_poison(piece.data + begin, min_size(part, piece.bytes - begin), params.poison);
    }
  }
}

template <class Tile, int N, class Rules, class BlockOf = WireBlock<Tile, N, kByShare<Rules>>>
class Route {
 public:
  using Block = BlockOf;
  using Params = typename Block::Params;
  static constexpr bool kByShares = kByShare<Rules>;

  __device__ explicit Route(const Params& params) : params_(params), block_(params) {}

  // False where the block gave up. By the whole block.
  __device__ __forceinline__ bool run(double* factors) {
    const std::uint32_t first = block_.first_tile();
    Unit units[Block::kBatch];
    load_all(0, first, units);  // while the counters are on their way
    if (!block_.ready()) return false;
    send_sizes();
    send_all(first, first, units);
    return block_all(exchange_values(factors) && second_half(factors, first));
  }
  __device__ void end() { block_.end(); }

 protected:
  static constexpr int kBatch = Block::kBatch;
  static constexpr bool kCombines = !std::is_base_of_v<NoRules, Rules>;

  __device__ bool is_peer(int rank) const {
    return rank < block_.world_size() && rank != block_.rank();
  }
  __device__ bool sends(int hop, int peer) const { return (params_.sends[hop] >> peer & 1) != 0; }
  __device__ bool hears(int hop, int peer) const { return (params_.hears[hop] >> peer & 1) != 0; }
  __device__ const WirePiece& own_send() const { return params_.send[block_.rank()]; }
  __device__ const WirePiece& own_take() const { return params_.take[block_.rank()]; }
  // What this rank sends to `peer` in the first hop.
  __device__ const WirePiece& sent_to(int peer) const {
    return params_.sends_same ? own_send() : params_.send[peer];
  }

  // The units of tile `tile` for the peers base + k; only units[0] where all get the same.
  __device__ __forceinline__ void load_all(int base, std::uint32_t tile,
                                           Unit (&units)[kBatch]) const {
    if (params_.sends_same) {
      if (params_.sends[0] != 0) units[0] = block_.load(own_send(), tile);
      return;
    }
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const int peer = base + k;
      if (is_peer(peer) && sends(0, peer)) units[k] = block_.load(params_.send[peer], tile);
    }
  }
  __device__ __forceinline__ void send_same(std::uint32_t tile, Unit unit) {
    if (tile >= block_.tiles_of(own_send())) return;
    for (int base = 0; base < block_.world_size(); base += kBatch) {
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        if (is_peer(base + k) && sends(0, base + k)) block_.send(base + k, tile, unit);
      }
    }
  }
  __device__ __forceinline__ void send_pieces(int base, std::uint32_t tile,
                                              const Unit (&units)[kBatch]) {
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const int peer = base + k;
      if (!is_peer(peer) || !sends(0, peer) || tile >= block_.tiles_of(params_.send[peer]))
        continue;
      block_.send(peer, tile, units[k]);
    }
  }
  // This thread's tiles from `begin` on. `units`: those of tile `loaded` for the first peers.
  __device__ __forceinline__ void send_all(std::uint32_t begin, std::uint32_t loaded,
                                           Unit (&units)[kBatch]) {
    for (std::uint32_t tile = begin; tile < params_.tiles_per_block; tile += block_.tile_stride()) {
      if (params_.sends[0] == 0) break;
      if (tile != loaded) load_all(0, tile, units);
      if (params_.sends_same) {
        send_same(tile, units[0]);
        continue;
      }
      send_pieces(0, tile, units);
      for (int base = kBatch; base < block_.world_size(); base += kBatch) {
        load_all(base, tile, units);
        send_pieces(base, tile, units);
      }
    }
    block_.refresh([this](int peer, std::uint32_t place) { return uses(peer, place); });
  }
  // Whether the call sends a tile at `place` of its box to `peer`.
  __device__ bool uses(int peer, std::uint32_t place) const {
    if (sends(0, peer) && place < block_.tiles_of(sent_to(peer))) return true;
    if (place == params_.box_tiles && (params_.premultiplies || has_sizes())) return sends(0, peer);
    const std::uint32_t second = params_.tiles_per_block;
    return sends(1, peer) && place >= second && place - second < block_.tiles_of(own_take());
  }

  // NOTE [Shares]
  __device__ static bool has_sizes() {
    return kByShare<Rules> && !Block::kFlagsHaveSizes && blockIdx.x == 0;
  }
  __device__ __forceinline__ void send_sizes() {
    if (!has_sizes() || threadIdx.x >= kTileThreads) return;
    for (int peer = 0; peer < block_.world_size(); ++peer) {
      const Unit size{{params_.send[peer].bytes, 0, 0, 0}};
      if (is_peer(peer) && sends(0, peer)) block_.send(peer, params_.box_tiles, size);
    }
  }
  __device__ __forceinline__ bool compare_sizes() {
    if (threadIdx.x >= kTileThreads) return true;
    bool ok = true;
    for (int base = 0; ok && base < block_.world_size(); base += kBatch) {
      Unit units[kBatch];
      ok = block_.receive(base, params_.box_tiles, units,
                          [this](int peer) { return hears(0, peer); });
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        const int peer = base + k;
        if (!ok || threadIdx.x != 0 || !is_peer(peer) || !hears(0, peer)) continue;
        const std::uint32_t mine = params_.take[peer].bytes;
        const std::uint32_t theirs = units[k].words[0];
        if (theirs != mine) ok = block_.fail(DeviceFault::kCountMismatch, peer, theirs, mine);
      }
    }
    return ok;
  }

  // What goes beside the tiles of hop 1. Waits for the whole block where there is something.
  __device__ __forceinline__ bool exchange_values(double* factors) {
    if constexpr (kByShare<Rules>) {
      return !has_sizes() || block_all(compare_sizes());
    } else {
      return exchange_factors(factors);
    }
  }
  __device__ __forceinline__ bool exchange_factors(double* factors) {
    if (!params_.premultiplies) return true;
    bool ok = true;
    if (threadIdx.x < kTileThreads) {
      const Unit mine{{static_cast<std::uint32_t>(params_.factor),
                       static_cast<std::uint32_t>(params_.factor >> 32), 0, 0}};
      if (threadIdx.x == 0) factors[block_.rank()] = as_double(mine);
      for (int peer = 0; peer < block_.world_size(); ++peer) {
        if (is_peer(peer) && sends(0, peer)) block_.send(peer, params_.box_tiles, mine);
      }
      for (int base = 0; ok && base < block_.world_size(); base += kBatch) {
        Unit units[kBatch];
        const auto wanted = [&](int peer) { return hears(0, peer); };
        ok = block_.receive(base, params_.box_tiles, units, wanted);
#pragma unroll
        for (int k = 0; k < kBatch; ++k) {
          const int peer = base + k;
          if (threadIdx.x != 0 || !is_peer(peer) || !hears(0, peer)) continue;
          factors[peer] = as_double(units[k]);
        }
      }
    }
    return block_all(ok);
  }

  __device__ static double as_double(Unit unit) {
    const std::uint64_t bits = unit.words[0] | static_cast<std::uint64_t>(unit.words[1]) << 32;
    return __builtin_bit_cast(double, bits);
  }

  // Of this thread's tiles from `begin` on.
  __device__ __forceinline__ bool second_half(const double* factors, std::uint32_t begin) {
    if constexpr (kCombines) {
      if (params_.combines && !combine(factors, begin)) return false;
    } else {
      copy_own();
      if (params_.relays && !relay(begin)) return false;
    }
    return place(last_hop(), begin);
  }
  __device__ int last_hop() const { return kCombines || params_.relays ? 1 : 0; }

  // A share is divided as others are, and another piece not as those that go through boxes.
  __device__ __forceinline__ void copy_own() const {
    if (!params_.copies_own) return;
    const std::uint32_t tiles = own_send().tiles;
    if constexpr (kByShare<Rules>) {
      copy_tiles(0, tiles);
    } else {
      const std::uint32_t all_blocks = gridDim.x * params_.tiles_per_block;
      for (std::uint32_t before = 0; before < tiles; before += all_blocks) {
        copy_tiles(before, params_.tiles_per_block);
      }
    }
  }
  __device__ __forceinline__ void copy_tiles(std::uint32_t before, std::uint32_t count) const {
    for (std::uint32_t tile = block_.first_tile(); tile < count; tile += block_.tile_stride()) {
      block_.store(own_take(), before + tile, block_.load(own_send(), before + tile));
    }
  }

  __device__ __forceinline__ bool combine(const double* factors, std::uint32_t begin) {
    const auto facts = Rules::facts_of(factors, params_, params_);
    for (std::uint32_t tile = begin; tile < block_.tiles_of(own_send());
         tile += block_.tile_stride()) {
      Unit result;
      bool ok = false;
      Rules::visit(facts,
                   [&](auto rule) { ok = combine_by<decltype(rule)>(tile, facts, &result); });
      if (!ok) return false;
      block_.store(own_take(), tile, result);
      send_on(tile, result);
    }
    return true;
  }
  template <class Rule>
  __device__ __forceinline__ bool combine_by(std::uint32_t tile, const typename Rule::Facts& facts,
                                             Unit* result) {
    constexpr bool kWholeUnits = Rule::kPerUnit == 1;
    const Unit own = block_.load(own_send(), tile);
    UnitSum<Rule> sum;
    for (int base = 0; base < block_.world_size(); base += kBatch) {
      Unit units[kBatch];
      if (!block_.receive(base, tile, units, [](int) { return true; })) return false;
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        const int peer = base + k;
        if (peer >= block_.world_size()) continue;
        Unit unit = units[k];
        if (peer == block_.rank()) unit = own;
        sum.add(kWholeUnits ? Tile::whole(unit) : unit, facts, peer);
      }
    }
    *result = kWholeUnits ? Tile::own_part(sum.finish(facts)) : sum.finish(facts);
    return true;
  }

  __device__ __forceinline__ bool relay(std::uint32_t begin) {
    for (std::uint32_t tile = begin; tile < block_.tiles_of(own_take());
         tile += block_.tile_stride()) {
      Unit unit;
      if (!block_.receive_from(params_.root, tile, &unit)) return false;
      block_.store(own_take(), tile, unit);
      send_on(tile, unit);
    }
    return true;
  }

  __device__ __forceinline__ void send_on(std::uint32_t tile, Unit unit) {
    if (params_.sends[1] == 0) return;
    for (int base = 0; base < block_.world_size(); base += kBatch) {
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        const int peer = base + k;
        if (!is_peer(peer) || !sends(1, peer)) continue;
        block_.send(peer, params_.tiles_per_block + tile, unit);
      }
    }
  }

  // Where the tiles of a hop begin in a box.
  __device__ std::uint32_t box_place(int hop) const {
    return hop == 0 ? 0 : params_.tiles_per_block;
  }
  __device__ __forceinline__ bool place(int hop, std::uint32_t begin) {
    if (params_.hears[hop] == 0) return true;
    for (std::uint32_t tile = begin; tile < params_.tiles_per_block; tile += block_.tile_stride()) {
      const auto comes = [&](int peer) {
        return hears(hop, peer) && tile < block_.tiles_of(params_.take[peer]);
      };
      for (int base = 0; base < block_.world_size(); base += kBatch) {
        Unit units[kBatch];
        if (!block_.receive(base, box_place(hop) + tile, units, comes)) return false;
#pragma unroll
        for (int k = 0; k < kBatch; ++k) {
          const int peer = base + k;
          if (is_peer(peer) && comes(peer)) block_.store(params_.take[peer], tile, units[k]);
        }
      }
    }
    return true;
  }

  const Params& params_;
  Block block_;
};

}  // namespace symm
