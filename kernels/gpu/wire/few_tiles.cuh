// A collective over a wire of which each warp has one tile of every piece, or few at once.
//
// NOTE [Few tiles]
// What a small call takes is neither its bytes nor the link alone: a kernel's instructions are not
// in the caches of the multiprocessor when it starts, and each further line of them that it runs
// through is waited for. A call of 256 bytes between two GPUs took 5000 cycles from its first
// instruction to its last in the kernel for any number of tiles (route.cuh), and 3000 in one that
// has the same loads, stores and waits, and hardly anything else; code that is there but not run
// costs nothing (docs/experiments.md, "Few tiles a warp"). So this is the same protocol once more,
// straight on: no loops over bases, addresses made by the host, peers by number among the others,
// so that every parameter has an address that the compiler knows. What seldom happens is called
// (few_tiles_calls.cuh). Ranks may take either kernel in the same call: what goes over the wire is
// the same.
#pragma once

#include <type_traits>

#include "kernels/gpu/device/block_memory.cuh"
#include "kernels/gpu/device/block_reduce.cuh"
#include "kernels/gpu/device/call_end.cuh"
#include "kernels/gpu/interface/few_tiles_params.hpp"
#include "kernels/gpu/wire/few_tiles_calls.cuh"
#include "kernels/gpu/wire/route.cuh"

namespace symm {

// Ranks that tell each other that they have come, and nothing else.
struct MeetingRules : NoRules {};

// `kWhole`: every piece begins and ends at a multiple of 16 bytes. `kHasRounds`: a warp has any
// number of tiles of every piece, so many at once, one round after the other; what all rounds send
// in hop 1 is sent before anything is waited for.
template <class Tile, int N, class Rules, bool kWhole, bool kHasRounds>
class FewTiles {
 public:
  static constexpr int kPeers = N - 1;
  using Params = FewTilesParams<kPeers>;

  __device__ __forceinline__ explicit FewTiles(const Params& params)
      : params_(params),
        local_(*global_pointer(params.local)),
        epoch_(load_data(&local_.wire_epoch[blockIdx.x]) + 1),
        sequence_(load_relaxed(&local_.sequence)) {}

  // False where the block gave up. By the whole block.
  __device__ __forceinline__ bool run() {
    if constexpr (kMeets) release_earlier_work();
    // All that is loaded is on its way before any of it is waited for.
    Own own{};
    Units units{};
    if constexpr (kLoadsOwnAtOnce) load_own(own);
    load_sends(units);
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
    if (!params_.ends_call) return;
    count_call(local_, params_.counts_calls ? global_pointer(params_.page) : nullptr, sequence_);
  }

 private:
  static constexpr bool kMeets = std::is_same_v<Rules, MeetingRules>;
  static constexpr bool kCombines = !std::is_base_of_v<NoRules, Rules>;
  static constexpr bool kShares = kByShare<Rules>;
  static constexpr int kTiles = kHasRounds ? static_cast<int>(tiles_of_round(N)) : 1;
  // What is only copied is loaded while the peers' tiles are on their way, where there are several:
  // not all have registers.
  static constexpr bool kLoadsOwnAtOnce = kCombines || !kHasRounds;

  using Own = Unit[kTiles];
  using Units = Unit[kTiles][kPeers];
  using Sets = std::uint32_t[kTiles];  // of peers, by tile

  __device__ int rank_of(int peer) const { return rank_of_peer(params_, peer); }
  __device__ static bool has(std::uint32_t set, int peer) { return (set >> peer & 1) != 0; }
  // Of tile i of this warp in a piece, and whether there is one.
  __device__ std::uint32_t begin_in(const WirePiece& piece, int i) const {
    return (blockIdx.x * tiles_of_block(piece) + first_ + static_cast<std::uint32_t>(i)) *
           Tile::kBytes;
  }
  __device__ std::uint32_t tiles_of_block(const WirePiece& piece) const {
    return kShares ? piece.tiles : params_.tiles_per_block;
  }
  // Whether a part of it at `offset` is there.
  __device__ bool reaches(const WirePiece& piece, int i, std::uint32_t offset) const {
    constexpr bool kHasTileAWarp = !kShares && !kHasRounds;
    return begin_in(piece, i) + offset < piece.bytes &&
           (kHasTileAWarp || first_ + static_cast<std::uint32_t>(i) < tiles_of_block(piece));
  }
  __device__ bool has_tile(const WirePiece& piece, int i) const {
    if constexpr (kMeets) return true;
    if (kShares && piece.bytes == 0) {
      return i == 0 && blockIdx.x == 0 && threadIdx.x < kTileThreads && first_ == 0;
    }
    return reaches(piece, i, 0);
  }
  // Calls `body(is_first)` in each round, until it returns false; what that returned last.
  template <class Body>
  __device__ __forceinline__ bool each_round(const Body& body) {
    if constexpr (!kHasRounds) return body(true);
    const std::uint32_t first = first_;
    bool ok = true;
    for (; ok && first_ < params_.tiles_per_block; first_ += blockDim.x / kTileThreads * kTiles) {
      ok = body(first_ == first);
    }
    first_ = first;
    return ok;
  }
  __device__ std::uint64_t flag_of(const WirePiece& piece) const {
    return kShares ? share_flag(epoch_, piece.bytes) : Tile::flag_of(epoch_);
  }

  // Of which a thread is to take its part when they have come: all loads are on their way before
  // the first of them is waited for.
  __device__ __forceinline__ void load(const WirePiece& piece, int i, Unit& unit) const {
    if constexpr (kMeets) return;
    const std::uint32_t offset = kWhole ? Tile::unit_offset() : Tile::offset();
    if (!reaches(piece, i, offset)) return;
    const std::uint32_t at = begin_in(piece, i) + offset;
    if constexpr (kWhole) {
      unit = load_data(reinterpret_cast<const Unit*>(piece.data + at));
    } else {
      unit = load_any<Tile>(piece.data + at, piece.bytes - at);
    }
  }
  __device__ __forceinline__ void store(const WirePiece& piece, int i, const Unit& unit) const {
    if (!reaches(piece, i, Tile::offset()) || piece.data == nullptr) return;
    std::byte* const tile = piece.data + begin_in(piece, i);
    if constexpr (kWhole) {
      Tile::store_whole(tile, unit);
    } else {
      const std::uint32_t at = begin_in(piece, i) + Tile::offset();
      store_any<Tile>(piece.data + at, unit, piece.bytes - at);
    }
  }

  __device__ __forceinline__ void load_own(Own& own) const {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) load(params_.own_send, i, own[i]);
  }
  __device__ __forceinline__ void load_sends(Units& units) const {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int p = 0; p < kPeers; ++p) load(params_.peers[p].send, i, units[i][p]);
    }
  }

  // Of this warp's first tile of hop 1, from a box of block 0 in an even epoch.
  __device__ std::uint64_t place() const {
    const std::uint32_t odd = (epoch_ & 1) != 0 ? params_.box_blocks : 0;
    return std::uint64_t{odd + blockIdx.x} * params_.box_step + first_ * Tile::kSpace;
  }
  // And of hop 2.
  __device__ std::uint64_t second_place() const {
    return place() + params_.tiles_per_block * Tile::kSpace;
  }
  // From there to tile i: those of a warp stand together, so that it is a constant.
  __device__ static std::uint32_t step_to(int i) {
    return static_cast<std::uint32_t>(i) * Tile::kSpace;
  }
  __device__ __forceinline__ void send(int peer, std::uint64_t place, const Unit& unit) {
    sent_ |= 1u << peer;
    Tile::converge();
    Tile::send(global_pointer(params_.peers[peer].to) + place, unit,
               flag_of(params_.peers[peer].send));
  }
  // From the peers of `wanted`.
  __device__ __forceinline__ bool receive(const Sets& wanted, std::uint64_t place, Units& units) {
    std::byte* tiles[kPeers];
#pragma unroll
    for (int p = 0; p < kPeers; ++p) {
      tiles[p] = global_pointer(params_.peers[p].from) + place;
      keep_in_register(tiles[p]);
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i) heard_ |= wanted[i];
    std::uint64_t first_look = 0;
    bool came = false;
    for (std::uint32_t polls = 1;; ++polls) {
      Tile::converge();
      bool here = true;
      int late = 0;
      each_of(wanted, [&](int i, int p) {
        const std::uint64_t flag = flag_of(params_.peers[p].take);
        if (Tile::receive(tiles[p] + step_to(i), flag, &units[i][p])) return;
        here = false;
        late = p;
      });
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
  template <class Body>
  __device__ static __forceinline__ void each_of(const Sets& sets, const Body& body) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int p = 0; p < kPeers; ++p) {
        if (has(sets[i], p)) body(i, p);
      }
    }
  }

  __device__ __forceinline__ bool exchange(Own& own, Units& units) {
    each_round([&](bool is_first) {
      if (!is_first) load_sends(units);
      send_all(units);
      if (!kCombines && params_.copies_own) copy_own(own);
      return true;
    });
    if constexpr (kCombines) {
      const bool ok = !params_.combines || each_round([&](bool is_first) {
        if (!has_tile(params_.own_send, 0)) return true;
        if (!is_first) load_own(own);
        return combine(own, units);
      });
      if (!ok) return false;
    } else if constexpr (N > 2 && !kMeets) {
      const bool ok = !params_.relays || each_round([&](bool) {
        return !has_tile(params_.own_take, 0) || relay(units);
      });
      if (!ok) return false;
    }
    return each_round([&](bool) { return place_all(units); });
  }
  __device__ __forceinline__ void send_all(const Units& units) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int p = 0; p < kPeers; ++p) {
        if (has(params_.sends[0], p) && has_tile(params_.peers[p].send, i)) {
          send(p, place() + step_to(i), Tile::own_part(units[i][p]));
        }
      }
    }
  }
  // What is placed, of the last hop.
  __device__ __forceinline__ bool place_all(Units& units) {
    const bool two_hops = kCombines || params_.relays;
    Sets wanted{};
    std::uint32_t any = 0;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int p = 0; p < kPeers; ++p) {
        if (has(params_.hears[two_hops ? 1 : 0], p) && has_tile(params_.peers[p].take, i)) {
          wanted[i] |= 1u << p;
        }
      }
      any |= wanted[i];
    }
    if (any == 0) return true;
    if (!receive(wanted, two_hops ? second_place() : place(), units)) return false;
    if constexpr (kMeets) {
      acquire_all();
    } else {
      each_of(wanted, [&](int i, int p) { store(params_.peers[p].take, i, units[i][p]); });
    }
    return true;
  }
  // Where all tiles have come: what the peers did before they sent them is seen from here on.
  __device__ void acquire_all() const {
    const int peer = static_cast<int>(tile_thread());
    if (peer >= kPeers) return;
    const std::byte* const tile = global_pointer(params_.peers[peer].from) + place();
    static_cast<void>(load_acquire(reinterpret_cast<const std::uint64_t*>(tile) + Tile::kFlagWord));
  }

  __device__ __forceinline__ void copy_own(Own& own) const {
    if constexpr (!kLoadsOwnAtOnce) load_own(own);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) store(params_.own_take, i, Tile::own_part(own[i]));
  }

  __device__ __forceinline__ bool combine(const Own& own, Units& units) {
    Sets wanted{};
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      wanted[i] = has_tile(params_.own_send, i) ? (1u << kPeers) - 1 : 0;
    }
    if (!receive(wanted, place(), units)) return false;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      if (wanted[i] == 0) break;
      const Unit result = combined(Tile::own_part(own[i]), units[i]);
      store(params_.own_take, i, result);
      send_on(i, result);
    }
    return true;
  }
  __device__ __forceinline__ Unit combined(const Unit& own, const Unit (&units)[kPeers]) const {
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
    const Unit result = params_.divisor == 0 ? sum.finish(plain) : average_of<N>(sum);
    return kWholeUnits ? Tile::own_part(result) : result;
  }

  __device__ __forceinline__ bool relay(Units& units) {
    Sets wanted{};
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      wanted[i] = has_tile(params_.own_take, i) ? 1u << params_.root : 0;
    }
    if (!receive(wanted, place(), units)) return false;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      if (wanted[i] == 0) break;
      Unit unit = units[i][0];
#pragma unroll
      for (int p = 1; p < kPeers; ++p) unit = either(p == params_.root, units[i][p], unit);
      store(params_.own_take, i, unit);
      send_on(i, unit);
    }
    return true;
  }

  __device__ __forceinline__ void send_on(int i, const Unit& unit) {
    if (params_.sends[1] == 0) return;
#pragma unroll
    for (int p = 0; p < kPeers; ++p) {
      if (has(params_.sends[1], p)) send(p, second_place() + step_to(i), unit);
    }
  }

  const Params& params_;
  LocalState& local_;
  const std::uint64_t epoch_;
  const std::uint64_t sequence_;  // of the first block: before this call
  std::uint32_t first_ = threadIdx.x / kTileThreads * kTiles;  // tile of this warp, in the block
  std::uint32_t sent_ = 0;   // to whom this warp has sent a tile in this epoch
  std::uint32_t heard_ = 0;  // from whom it has received one
};

}  // namespace symm
