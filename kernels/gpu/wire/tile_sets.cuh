// Routes of large calls over a wire by lines.
//
// NOTE [Sets of tiles]
// What a tile costs beside its bytes are instructions, each of which waits for the one before in
// its warp: addresses, tests for the ends of pieces, looks. So large calls take the tiles that are
// whole and aligned in sets, by loops that have no such tests and have the loads of a set under way
// together, and the others one by one as small calls do. They have kernels of their own: in those
// of all calls small ones took longer (docs/experiments.md, "Sets of tiles").
#pragma once

#include "kernels/gpu/wire/route.cuh"

namespace symm {

// A block whose warps take sets.
template <class Tile, int N, bool kByShare>
class SetBlock : public WireBlock<Tile, N, kByShare> {
  using Base = WireBlock<Tile, N, kByShare>;

 public:
  using Base::Base;
  using Base::kBatch;
  using Base::rank;
  static constexpr int kSet = 3;
  using Set = Unit[kSet];

  // The sets of this warp's tiles of a piece, from its first tile on. Launches have all
  // threads.
  __device__ std::uint32_t sets_of(const WirePiece& piece) const {
    if (!is_aligned(piece.data, kUnitBytes)) return 0;
    const std::uint32_t of_block = this->tiles_of_each_block(piece);
    const std::uint32_t begin = blockIdx.x * of_block + this->first_tile();
    const std::uint32_t end = min_size(piece.bytes / Tile::kBytes, (blockIdx.x + 1) * of_block);
    return end <= begin ? 0 : ((end - begin - 1) / kStride + 1) / kSet;
  }
  // The first tile of set `number`, hence the one behind as many sets.
  __device__ std::uint32_t first_of(std::uint32_t number) const {
    return this->first_tile() + number * kSet * kStride;
  }

  // Of the set that begins with `tile`, and in a box at `place`.
  __device__ __forceinline__ void load_set(const WirePiece& piece, std::uint32_t tile,
                                           Set& set) const {
#pragma unroll
    for (int i = 0; i < kSet; ++i) {
      set[i] = Tile::load_whole(piece.data + this->begin_of(piece, after(tile, i)));
    }
  }
  // Nowhere where the piece has no data.
  __device__ __forceinline__ void store_set(const WirePiece& piece, std::uint32_t tile,
                                            const Set& set) const {
    if (piece.data == nullptr) return;
#pragma unroll
    for (int i = 0; i < kSet; ++i) {
      Tile::store_whole(piece.data + this->begin_of(piece, after(tile, i)), set[i]);
    }
  }
  __device__ __forceinline__ void send_set(int peer, std::uint32_t place, const Set& set) {
#pragma unroll
    for (int i = 0; i < kSet; ++i) this->send(peer, after(place, i), set[i]);
  }
  // From each rank that wants(peer) asks for; false where the launch must end.
  template <class Wants>
  __device__ __forceinline__ bool receive_sets(std::uint32_t place, Set (&sets)[kBatch],
                                               const Wants& wants) {
    this->note_heard(0, wants);
    return poll_set([&](int& late) {
      Arrivals arrivals[kBatch];
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        if (k != rank() && wants(k)) look_at(k, place, arrivals[k]);
      }
      bool here = true;
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        if (k == rank() || !wants(k) || have_come(k, arrivals[k], sets[k])) continue;
        here = false;
        late = k;
      }
      return here;
    });
  }

 private:
  static_assert(N != 0 && Tile::kLoadsAgain);
  static constexpr std::uint32_t kStride = kMostWireTiles;
  using Arrivals = typename Tile::Arrival[kSet];
  using Base::params_;

  // The i-th tile of a set.
  __device__ static std::uint32_t after(std::uint32_t tile, int i) {
    return tile + static_cast<std::uint32_t>(i) * kStride;
  }
  // A thread stands still where it uses what it has loaded, so all loads come first.
  __device__ __forceinline__ void look_at(int peer, std::uint32_t place, Arrivals& arrivals) const {
    std::byte* const box = this->box_at(rank(), peer);
#pragma unroll
    for (int i = 0; i < kSet; ++i) arrivals[i] = Tile::look(box + after(place, i) * Tile::kSpace);
  }
  __device__ __forceinline__ bool have_come(int peer, const Arrivals& arrivals, Set& set) const {
    const std::uint64_t flag = this->flag_of(params_.take[peer]);
    bool here = true;
#pragma unroll
    for (int i = 0; i < kSet; ++i) here = arrivals[i].has(flag, &set[i]) && here;
    return here;
  }
  // As poll(), with one copy of is_here(): what it finds first is not believed (NOTE [Wires]).
  template <class IsHere>
  __device__ __forceinline__ bool poll_set(const IsHere& is_here) const {
    std::uint64_t first_look = 0;
    bool was_here = false;
    for (std::uint32_t polls = 1;; ++polls) {
      Tile::converge();
      int late = rank();
      const bool here = is_here(late);
      if (Tile::all(here)) {
        if (was_here) return true;
        was_here = true;
        continue;
      }
      if ((polls & (params_.poll_period - 1)) != 0) continue;
      if (!here) first_look = this->look(late, first_look);
      if (Tile::any(!here && first_look == 0)) return false;
      this->report_other_sizes();
    }
  }
};

template <class Tile, int N, class Rules>
class SetRoute : public Route<Tile, N, Rules, SetBlock<Tile, N, kByShare<Rules>>> {
  using Block = SetBlock<Tile, N, kByShare<Rules>>;
  using Base = Route<Tile, N, Rules, Block>;
  using Base::block_;
  using Base::params_;

 public:
  using Base::Base;

  // As Route's.
  __device__ __forceinline__ bool run(double* factors) {
    constexpr std::uint32_t kNoTile = ~0u;
    if (!block_.ready()) return false;
    this->send_sizes();
    const std::uint32_t rest = block_.first_of(send_sets());
    Unit units[kBatch];
    this->send_all(rest, kNoTile, units);
    return block_all(this->exchange_values(factors) && second_half(factors));
  }

 private:
  static constexpr int kBatch = Base::kBatch;
  static constexpr int kSet = Block::kSet;
  using Set = typename Block::Set;

  // The least number of sets of the pieces piece_of(peer) of the ranks that wants(peer) names.
  template <class Wants, class PieceOf>
  __device__ __forceinline__ std::uint32_t least_sets(const Wants& wants,
                                                      const PieceOf& piece_of) const {
    std::uint32_t least = ~0u;
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      if (!this->is_peer(k) || !wants(k)) continue;
      const std::uint32_t sets = block_.sets_of(piece_of(k));
      least = sets < least ? sets : least;
    }
    return least == ~0u ? 0 : least;
  }

  // Returns how many sets it has taken.
  __device__ __forceinline__ std::uint32_t send_sets() {
    const std::uint32_t sets =
        least_sets([&](int peer) { return this->sends(0, peer); },
                   [&](int peer) -> const WirePiece& { return this->sent_to(peer); });
    for (std::uint32_t number = 0; number < sets; ++number) {
      const std::uint32_t tile = block_.first_of(number);
      Set set;
      bool is_loaded = false;
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        if (!this->is_peer(k) || !this->sends(0, k)) continue;
        if (!is_loaded || !params_.sends_same) block_.load_set(this->sent_to(k), tile, set);
        is_loaded = true;
        block_.send_set(k, tile, set);
      }
    }
    return sets;
  }

  __device__ __forceinline__ bool second_half(const double* factors) {
    if constexpr (Base::kCombines) {
      if (params_.combines && !combine_sets(factors)) return false;
    } else {
      this->copy_own();
    }
    return place_sets(this->last_hop());
  }

  // Of a piece that this rank combines or relays to its output.
  __device__ __forceinline__ std::uint32_t sets_passed(const WirePiece& piece) const {
    return is_aligned(this->own_take().data, kUnitBytes) ? block_.sets_of(piece) : 0;
  }
  // Sends a set in hop 2, and stores it to the output.
  __device__ __forceinline__ void pass_on(std::uint32_t tile, const Set& set) {
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      if (!this->is_peer(k) || !this->sends(1, k)) continue;
      block_.send_set(k, this->box_place(1) + tile, set);
    }
    block_.store_set(this->own_take(), tile, set);
  }

  __device__ __forceinline__ bool combine_sets(const double* factors) {
    const auto facts = Rules::facts_of(factors, params_, params_);
    const std::uint32_t sets = sets_passed(this->own_send());
    for (std::uint32_t number = 0; number < sets; ++number) {
      bool ok = false;
      Rules::visit(facts, [&](auto rule) {
        ok = combine_set<decltype(rule)>(block_.first_of(number), facts);
      });
      if (!ok) return false;
    }
    return this->combine(factors, block_.first_of(sets));
  }
  template <class Rule>
  __device__ __forceinline__ bool combine_set(std::uint32_t tile,
                                              const typename Rule::Facts& facts) {
    constexpr bool kWholeUnits = Rule::kPerUnit == 1;
    Set result;  // first this rank's own
    block_.load_set(this->own_send(), tile, result);
    Set sets[kBatch];
    if (!block_.receive_sets(tile, sets, [](int) { return true; })) return false;
#pragma unroll
    for (int i = 0; i < kSet; ++i) {
      UnitSum<Rule> sum;
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        Unit unit = sets[k][i];
        if (k == block_.rank()) unit = result[i];
        sum.add(kWholeUnits ? Tile::whole(unit) : unit, facts, k);
      }
      result[i] = kWholeUnits ? Tile::own_part(sum.finish(facts)) : sum.finish(facts);
    }
    pass_on(tile, result);
    return true;
  }

  __device__ __forceinline__ bool place_sets(int hop) {
    const auto comes = [&](int peer) { return this->hears(hop, peer); };
    const std::uint32_t number_of_sets =
        least_sets(comes, [&](int peer) -> const WirePiece& { return params_.take[peer]; });
    for (std::uint32_t number = 0; number < number_of_sets; ++number) {
      const std::uint32_t tile = block_.first_of(number);
      Set sets[kBatch];
      if (!block_.receive_sets(this->box_place(hop) + tile, sets, comes)) return false;
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        if (this->is_peer(k) && comes(k)) block_.store_set(params_.take[k], tile, sets[k]);
      }
    }
    return this->place(hop, block_.first_of(number_of_sets));
  }
};

}  // namespace symm
