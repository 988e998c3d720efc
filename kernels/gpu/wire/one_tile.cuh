// A collective over a wire of which each warp has at most one tile of every piece.
//
// NOTE [One tile]
// What a small call takes is neither its bytes nor the link alone: a kernel's instructions are not
// in the caches of the multiprocessor when it starts, and each further line of them that it runs
// through is waited for. A call of 256 bytes between two GPUs took 5000 cycles from its first
// instruction to its last in the kernel for any number of tiles (route.cuh), and 3000 in one that
// has the same loads, stores and waits, and hardly anything else; code that is there but not run
// costs nothing (docs/benchmarks.md, "One tile a warp"). So this is the same protocol once more,
// straight on: no loops over tiles or bases, addresses made by the host, peers by number among the
// others, so that every parameter has an address that the compiler knows. What seldom happens is
// called. Ranks may take either kernel in the same call: what goes over the wire is the same.
#pragma once

#include "kernels/gpu/device/block_reduce.cuh"
#include "kernels/gpu/device/call_end.cuh"
#include "kernels/gpu/device/poison.cuh"
#include "kernels/gpu/interface/one_tile_params.hpp"
#include "kernels/gpu/wire/route.cuh"
#include "kernels/gpu/wire/tile.cuh"

namespace symm {

template <int kPeers>
__device__ __forceinline__ int rank_of_peer(const OneTileParams<kPeers>& params, int peer) {
  return peer + (peer >= params.rank ? 1 : 0);
}
template <int kPeers>
__device__ __forceinline__ const std::uint64_t* done_of_peer(const OneTileParams<kPeers>& params,
                                                             int peer) {
  return global_pointer(params.done) +
         static_cast<unsigned>(rank_of_peer(params, peer)) * params.box_blocks + blockIdx.x;
}

// What seldom happens is called, with as few arguments as can be: each is an instruction on the
// way. This is what a wait does now and then; as look_up().
template <int kPeers>
__device__ SYMM_OUTLINED_METHOD std::uint64_t look_for(const OneTileParams<kPeers>& params,
                                                       int peer, std::uint64_t first_look) {
  return look_up(global_pointer(params.local), params.page, params.timeout_ns,
                 rank_of_peer(params, peer), first_look);
}

// Until a peer has ended the last epoch but one; false where the launch must end.
template <int kPeers>
__device__ SYMM_OUTLINED_METHOD bool await_end_of_epoch(const OneTileParams<kPeers>& params,
                                                        int peer, std::uint64_t epoch) {
  std::uint64_t first_look = 0;
  const std::uint64_t* const done = done_of_peer(params, peer);
  for (std::uint32_t polls = 1; !has_reached(load_relaxed(done) + 2, epoch); ++polls) {
    if ((polls & (params.poll_period - 1)) != 0) continue;
    first_look = look_for(params, peer, first_look);
    if (first_look == 0) return false;
  }
  return true;
}

template <class Rule>
__device__ SYMM_OUTLINED Unit quotient_of(UnitSum<Rule> sum, int divisor) {
  return sum.finish({nullptr, false, divisor, 0});
}

// Reports the first tile of a peer that has the flag of another size. By a warp of block 0.
template <class Tile, int kPeers>
__device__ SYMM_OUTLINED_METHOD void report_other_sizes(const OneTileParams<kPeers>& params,
                                                        std::uint64_t epoch) {
  const int peer = static_cast<int>(tile_thread());
  if (blockIdx.x != 0 || peer >= kPeers || (params.hears[0] >> peer & 1) == 0) return;
  const std::uint64_t odd = (epoch & 1) * params.box_blocks;
  const std::byte* const box = global_pointer(params.peers[peer].from) + odd * params.box_step;
  const auto* const words = reinterpret_cast<const std::uint64_t*>(box);
  const std::uint64_t ahead = load_relaxed(words + Tile::kFlagWord) - epoch;
  const std::uint32_t mine = params.peers[peer].take.bytes;
  if (ahead % (std::uint64_t{1} << kSizeShift) != 0 || ahead >> kSizeShift == mine) return;
  LocalState& local = *global_pointer(params.local);
  fail_group(local, *global_pointer(params.page), DeviceFault::kCountMismatch,
             rank_of_peer(params, peer), collective_number(local), false, ahead >> kSizeShift,
             mine);
}

template <int kPeers>
__device__ SYMM_OUTLINED_METHOD void end_idle_blocks(const OneTileParams<kPeers>& params) {
  end_blocks_from(params.share_blocks, params.box_blocks, *global_pointer(params.local),
                  params.counts_calls ? global_pointer(params.page) : nullptr, true,
                  [&](std::uint64_t block, std::uint64_t epoch) {
                    for (const OneTilePeer& peer : params.peers) {
                      store_relaxed(global_pointer(peer.done) + block, epoch);
                    }
                  });
}

// NOTE [Poison] in poison.cuh. By the whole block.
template <class Tile, bool kShares, int kPeers>
__device__ SYMM_OUTLINED_METHOD void poison_tiles(const OneTileParams<kPeers>& params) {
  if (params.poison == 0) return;
  release_earlier_work();
  const auto fill = [&](const WirePiece& piece) {
    const std::uint32_t part = (kShares ? piece.tiles : params.tiles_per_block) * Tile::kBytes;
    const std::uint32_t begin = blockIdx.x * part;
    if (piece.data == nullptr || begin >= piece.bytes) return;
    fill_poison(piece.data + begin, min_size(part, piece.bytes - begin), params.poison);
  };
  for (int p = 0; p < kPeers; ++p) {
    if ((params.stores >> p & 1) != 0) fill(params.peers[p].take);
  }
  if (params.stores_own) fill(params.own_take);
}

// Of this thread's unit of a tile, where it may be odd or cut off.
template <class Tile>
__device__ SYMM_OUTLINED Unit load_any(const std::byte* source, std::uint32_t left) {
  return Tile::with_own_part(Tile::load(source, left));
}
template <class Tile>
__device__ SYMM_OUTLINED void store_any(std::byte* destination, Unit unit, std::uint32_t left) {
  Tile::store(destination, unit, left);
}

// Words are chosen, as the address of a unit would keep it out of registers.
__device__ __forceinline__ Unit either(bool first, const Unit& a, const Unit& b) {
  Unit unit;
#pragma unroll
  for (int i = 0; i < 4; ++i) unit.words[i] = first ? a.words[i] : b.words[i];
  return unit;
}

// `kWhole`: every piece begins and ends at a multiple of 16 bytes.
template <class Tile, int N, class Rules, bool kWhole>
class OneTile {
 public:
  static constexpr int kPeers = N - 1;
  using Params = OneTileParams<kPeers>;

  __device__ __forceinline__ explicit OneTile(const Params& params)
      : params_(params),
        local_(*global_pointer(params.local)),
        epoch_(load_data(&local_.wire_epoch[blockIdx.x]) + 1),
        sequence_(load_relaxed(&local_.sequence)),
        begin_((blockIdx.x * params.tiles_per_block + threadIdx.x / kTileThreads) * Tile::kBytes) {}

  // False where the block gave up. By the whole block.
  __device__ __forceinline__ bool run() {
    // All that is loaded is on its way before any of it is waited for.
    Unit own{};
    Unit units[kPeers]{};
    load(params_.own_send, own);
#pragma unroll
    for (int p = 0; p < kPeers; ++p) load(params_.peers[p].send, units[p]);
    const bool alive = load_relaxed(&local_.dead) == 0;
    const int peer = static_cast<int>(tile_thread());
    const bool looks = peer < kPeers;
    std::uint64_t has_done = 0;
    std::uint64_t heard = 0;
    if (looks) {
      has_done = load_relaxed(done_of_peer(params_, peer));
      heard = load_data(&local_.wire_heard[blockIdx.x][rank_of(peer)]);
    }
    if (params_.counts_calls && alive && blockIdx.x == 0 && threadIdx.x == 0) {
      store_relaxed(&global_pointer(params_.page)->entered, sequence_ / kSequenceUnit + 1);
    }
    bool ok = alive;
    if (looks && !has_reached(heard + 2, epoch_ + 1) && !has_reached(has_done + 2, epoch_)) {
      ok = ok && await_end_of_epoch(params_, peer, epoch_);
    }
    return block_all(Tile::all(ok) && exchange(own, units));
  }

  // Ends the call. By the whole block.
  __device__ __forceinline__ void end() {
    if (threadIdx.x != 0) return;
#pragma unroll
    for (int p = 0; p < kPeers; ++p) {
      if (has(heard_, p)) {
        store_data(&local_.wire_heard[blockIdx.x][rank_of(p)], epoch_);
      }
      if (!has(sent_, p)) {
        store_relaxed(global_pointer(params_.peers[p].done) + blockIdx.x, epoch_);
      }
    }
    store_data(&local_.wire_epoch[blockIdx.x], epoch_);
    count_call(local_, params_.counts_calls ? global_pointer(params_.page) : nullptr, sequence_);
  }

 private:
  static constexpr bool kCombines = !std::is_base_of_v<NoRules, Rules>;
  static constexpr bool kShares = kByShare<Rules>;

  __device__ int rank_of(int peer) const { return rank_of_peer(params_, peer); }
  __device__ static bool has(std::uint32_t set, int peer) { return (set >> peer & 1) != 0; }
  __device__ std::uint32_t warp() const { return threadIdx.x / kTileThreads; }
  // Of this warp's tile in a piece, and whether there is one.
  __device__ std::uint32_t begin_in(const WirePiece& piece) const {
    return kShares ? (blockIdx.x * piece.tiles + warp()) * Tile::kBytes : begin_;
  }
  __device__ bool has_tile(const WirePiece& piece) const {
    const bool has_bytes = begin_in(piece) < piece.bytes;
    if constexpr (!kShares) return has_bytes;
    if (piece.bytes == 0) return blockIdx.x == 0 && threadIdx.x < kTileThreads;
    return has_bytes && warp() < piece.tiles;
  }
  // Whether a part of it at `offset` is there.
  __device__ bool reaches(const WirePiece& piece, std::uint32_t offset) const {
    return begin_in(piece) + offset < piece.bytes && (!kShares || warp() < piece.tiles);
  }
  __device__ std::uint64_t flag_of(const WirePiece& piece) const {
    return kShares ? share_flag(epoch_, piece.bytes) : Tile::flag_of(epoch_);
  }

  // Of which a thread is to take its part when they have come: all loads are on their way before
  // the first of them is waited for.
  __device__ __forceinline__ void load(const WirePiece& piece, Unit& unit) const {
    const std::uint32_t offset = kWhole ? Tile::unit_offset() : Tile::offset();
    if (!reaches(piece, offset)) return;
    const std::uint32_t at = begin_in(piece) + offset;
    if constexpr (kWhole) {
      unit = load_data(reinterpret_cast<const Unit*>(piece.data + at));
    } else {
      unit = load_any<Tile>(piece.data + at, piece.bytes - at);
    }
  }
  __device__ __forceinline__ void store(const WirePiece& piece, const Unit& unit) const {
    if (!reaches(piece, Tile::offset()) || piece.data == nullptr) return;
    std::byte* const tile = piece.data + begin_in(piece);
    if constexpr (kWhole) {
      Tile::store_whole(tile, unit);
    } else {
      const std::uint32_t at = begin_in(piece) + Tile::offset();
      store_any<Tile>(piece.data + at, unit, piece.bytes - at);
    }
  }

  // Of this warp's tile of hop 1, from a box of block 0 in an even epoch.
  __device__ std::uint64_t place() const {
    const std::uint32_t odd = (epoch_ & 1) != 0 ? params_.box_blocks : 0;
    return std::uint64_t{odd + blockIdx.x} * params_.box_step + warp() * Tile::kSpace;
  }
  // And of hop 2.
  __device__ std::uint64_t second_place() const {
    return place() + params_.tiles_per_block * Tile::kSpace;
  }
  __device__ __forceinline__ void send(int peer, std::uint64_t place, const Unit& unit) {
    sent_ |= 1u << peer;
    Tile::converge();
    Tile::send(global_pointer(params_.peers[peer].to) + place, unit,
               flag_of(params_.peers[peer].send));
  }
  // From the peers of `wanted`.
  __device__ __forceinline__ bool receive(std::uint32_t wanted, std::uint64_t place,
                                          Unit (&units)[kPeers]) {
    heard_ |= wanted;
    std::byte* tiles[kPeers];
#pragma unroll
    for (int p = 0; p < kPeers; ++p) {
      tiles[p] = global_pointer(params_.peers[p].from) + place;
      keep_in_register(tiles[p]);
    }
    std::uint64_t first_look = 0;
    bool came = false;
    for (std::uint32_t polls = 1;; ++polls) {
      Tile::converge();
      bool here = true;
      int late = 0;
#pragma unroll
      for (int p = 0; p < kPeers; ++p) {
        if (!has(wanted, p)) continue;
        if (Tile::receive(tiles[p], flag_of(params_.peers[p].take), &units[p])) continue;
        here = false;
        late = p;
      }
      if (Tile::all(here)) {
        if (came || !Tile::kLoadsAgain) return true;
        came = true;
        continue;
      }
      if ((polls & (params_.poll_period - 1)) != 0) continue;
      if (!here) first_look = look_for(params_, late, first_look);
      if (Tile::any(!here && first_look == 0)) return false;
      if constexpr (kShares) report_other_sizes<Tile>(params_, epoch_);
    }
  }

  __device__ __forceinline__ bool exchange(const Unit& own_unit, Unit (&units)[kPeers]) {
    const Unit own = Tile::own_part(own_unit);
#pragma unroll
    for (int p = 0; p < kPeers; ++p) {
      if (has(params_.sends[0], p) && has_tile(params_.peers[p].send)) {
        send(p, place(), Tile::own_part(units[p]));
      }
    }
    if constexpr (kCombines) {
      if (params_.combines && has_tile(params_.own_send) && !combine(own, units)) return false;
    } else {
      if (params_.copies_own) store(params_.own_take, own);
      if (params_.relays && has_tile(params_.own_take) && !relay(units)) return false;
    }
    std::uint32_t wanted = 0;
    const bool two_hops = kCombines || params_.relays;
#pragma unroll
    for (int p = 0; p < kPeers; ++p) {
      if (has(params_.hears[two_hops ? 1 : 0], p) && has_tile(params_.peers[p].take)) {
        wanted |= 1u << p;
      }
    }
    if (wanted == 0) return true;
    if (!receive(wanted, two_hops ? second_place() : place(), units)) return false;
#pragma unroll
    for (int p = 0; p < kPeers; ++p) {
      if (has(wanted, p)) store(params_.peers[p].take, units[p]);
    }
    return true;
  }

  __device__ __forceinline__ bool combine(const Unit& own, Unit (&units)[kPeers]) {
    if (!receive((1u << kPeers) - 1, place(), units)) return false;
    constexpr bool kWholeUnits = Rules::kPerUnit == 1;
    UnitSum<Rules> sum;
    const ReduceFacts plain{nullptr, false, 0, N};
#pragma unroll
    for (int r = 0; r < N; ++r) {
      Unit unit = own;
      if (r < kPeers) unit = either(r < params_.rank, units[r < kPeers ? r : 0], unit);
      if (r > 0) unit = either(r > params_.rank, units[r > 0 ? r - 1 : 0], unit);
      sum.add(kWholeUnits ? Tile::whole(unit) : unit, plain, r);
    }
    Unit result = params_.divisor == 0 ? sum.finish(plain) : quotient_of(sum, params_.divisor);
    if (kWholeUnits) result = Tile::own_part(result);
    store(params_.own_take, result);
    send_on(result);
    return true;
  }

  __device__ __forceinline__ bool relay(Unit (&units)[kPeers]) {
    if (!receive(1u << params_.root, place(), units)) return false;
    Unit unit = units[0];
#pragma unroll
    for (int p = 1; p < kPeers; ++p) unit = either(p == params_.root, units[p], unit);
    store(params_.own_take, unit);
    send_on(unit);
    return true;
  }

  __device__ __forceinline__ void send_on(const Unit& unit) {
    if (params_.sends[1] == 0) return;
#pragma unroll
    for (int p = 0; p < kPeers; ++p) {
      if (has(params_.sends[1], p)) send(p, second_place(), unit);
    }
  }

  const Params& params_;
  LocalState& local_;
  const std::uint64_t epoch_;
  const std::uint64_t sequence_;  // of the first block: before this call
  const std::uint32_t begin_;     // of this warp's tile in every piece
  std::uint32_t sent_ = 0;        // to whom this warp has sent a tile in this epoch
  std::uint32_t heard_ = 0;       // from whom it has received one
};

}  // namespace symm
