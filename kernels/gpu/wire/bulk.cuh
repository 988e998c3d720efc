// A collective by lanes (NOTE [Lanes] in lane.cuh; NOTE [Routes] in wire_params.hpp), by one block.
//
// In place is safe: what is stored to an output comes from slots, or from the same place of the
// rank's own piece; where a peer's result replaces what this rank sent it, it follows from that.
// Where a block gives up, it poisons its parts of the outputs once all of its senders have ended.
#pragma once

#include "kernels/gpu/device/poison.cuh"
#include "kernels/gpu/wire/chunk.cuh"
#include "kernels/gpu/wire/lane.cuh"
#include "kernels/gpu/wire/route.cuh"

namespace symm {

// What the warps of a block work on in a step, by warp and rank.
struct BulkShared {
  const std::byte* from[kBulkPlaces];  // of a middle 16-byte aligned, but for this rank's own
  std::byte* to[kBulkPlaces];          // null for none
  double factors[kBulkPlaces];
  std::uint32_t bytes[kBulkPlaces];  // that a sender or placer copies; 0 for nothing
};

template <int N, class Rules>
class Bulk {
 public:
  using Params = typename Lane<N>::Params;

  __device__ Bulk(const Params& params, BulkShared& shared)
      : params_(params),
        lane_(params),
        shared_(shared),
        place_(threadIdx.x / kWarpThreads * static_cast<unsigned>(world_size())) {}

  // By the whole block.
  __device__ __forceinline__ void run() {
    const std::uint64_t sequence = load_relaxed(&lane_.local().sequence);
    // Of a warp together, as play() is: the group may die between the looks of its threads.
    const bool alive = warp_all(load_relaxed(&lane_.local().dead) == 0);
    if (alive && params_.counts_calls && blockIdx.x == 0 && threadIdx.x == 0) {
      store_relaxed(&global_pointer(params_.page)->entered, sequence / kSequenceUnit + 1);
    }
    if (!block_all(alive && play())) {
      poison();
      return;
    }
    if (threadIdx.x == 0) {
      count_call(lane_.local(), params_.counts_calls ? global_pointer(params_.page) : nullptr,
                 sequence);
    }
  }

 private:
  using Cut = typename Lane<N>::Cut;
  static constexpr bool kCombines = !std::is_same_v<Rules, NoRules>;

  __device__ int rank() const { return lane_.rank(); }
  __device__ int world_size() const { return lane_.world_size(); }
  __device__ bool two_hops() const { return kCombines || params_.relays; }
  __device__ bool is_sender() const { return lane_.has_role(kLaneSends); }
  // Of a sender or placer.
  __device__ int hop() const { return !is_sender() && two_hops() ? 1 : 0; }
  __device__ const BulkPiece& own_send() const { return params_.send[rank()]; }
  __device__ const BulkPiece& own_take() const { return params_.take[rank()]; }
  __device__ bool sends_on(int peer) const {
    return peer != rank() && (params_.second_hop >> peer & 1) != 0;
  }

  // The ranks are divided among the threads of a warp; most groups have no more than it has.
  static constexpr bool kOneRankEach = N != 0;
  static_assert(N <= static_cast<int>(kWarpThreads));
  template <class Body>
  __device__ __forceinline__ void each_rank(const Body& body) const {
    const auto thread = static_cast<int>(warp_thread());
    if constexpr (kOneRankEach) {
      if (thread < N) body(thread);
    } else {
      for (int peer = thread; peer < world_size(); peer += static_cast<int>(kWarpThreads)) {
        body(peer);
      }
    }
  }
  static __device__ bool is_first(int peer) {
    return kOneRankEach || peer < static_cast<int>(kWarpThreads);
  }
  // A bit for each rank of this thread.
  static __device__ std::uint32_t bit_of(int peer) {
    return 1u << (static_cast<unsigned>(peer) / kWarpThreads);
  }

  // This warp's place for a rank in the block's memory.
  __device__ unsigned at(int peer) const { return place_ + static_cast<unsigned>(peer); }

  // What a sender sends to a peer, or a placer places of it.
  __device__ const BulkPiece& piece_of(int peer) const {
    return !is_sender() ? params_.take[peer] : params_.sends_same ? own_send() : params_.send[peer];
  }
  struct Move {
    Cut cut;              // no steps: there is none
    std::uint32_t first;  // the number of the first chunk
  };
  __device__ Move move_of(int peer) const {
    const std::uint64_t peers = is_sender() ? params_.first_hop : params_.placed;
    if ((peers >> peer & 1) == 0 || !lane_.serves(peer)) return {};
    return {lane_.cut(piece_of(peer).bytes), load_data(&counter(peer))};
  }
  __device__ std::uint32_t& counter(int peer) const {
    BulkCount& count = lane_.count(hop(), peer);
    return is_sender() ? count.sent : count.received;
  }
  // `first`: of this thread's first rank.
  __device__ Move move_of(const Move& first, int peer) const {
    return is_first(peer) ? first : move_of(peer);
  }

  __device__ __forceinline__ bool play() {
    if (lane_.has_role(kLanePasses)) return middle();
    if (is_sender()) return move([&](const Move& m, std::uint32_t step) { return send(m, step); });
    return move([&](const Move& m, std::uint32_t step) { return place(m, step); });
  }

  // The steps of a sender, a placer or a warp that copies this rank's own piece alone.
  template <class Step>
  __device__ __forceinline__ bool move(const Step& step_of) {
    const bool moves = is_sender() || lane_.has_role(kLanePlaces);
    const bool copies_own = !kCombines && lane_.has_role(kLaneCopiesOwn);
    const auto thread = static_cast<int>(warp_thread());
    const Move first = moves && thread < world_size() ? move_of(thread) : Move{};
    std::uint32_t mine = copies_own ? lane_.cut(own_send().bytes).steps : 0;
    if (moves) {
      each_rank([&](int peer) {
        const std::uint32_t of_peer = move_of(first, peer).cut.steps;
        mine = of_peer > mine ? of_peer : mine;
      });
    }
    const std::uint32_t steps = warp_max(mine);
    for (std::uint32_t step = 0; step < steps; ++step) {
      if (moves && !step_of(first, step)) return false;
      if (copies_own) copy_own(step);
    }
    if (!moves) return true;
    each_rank([&](int peer) {
      const Move move = move_of(first, peer);
      if (move.cut.steps != 0) store_data(&counter(peer), move.first + move.cut.steps);
    });
    return true;
  }
  __device__ __forceinline__ void copy_own(std::uint32_t step) const {
    const Cut cut = lane_.cut(own_send().bytes);
    const std::uint64_t offset = lane_.offset_of(cut, step);
    warp_copy(own_take().data + offset, own_send().data + offset,
              cut.bytes_of(own_send().bytes, offset));
  }

  __device__ __forceinline__ bool send(const Move& first, std::uint32_t step) const {
    const bool to_all = !kCombines && params_.sends_same && lane_.serves_all() && world_size() > 2;
    std::uint32_t direct = 0;
    bool ok = true;
    each_rank([&](int peer) {
      const Move move = move_of(first, peer);
      shared_.bytes[at(peer)] = 0;
      shared_.to[at(peer)] = nullptr;
      if (step >= move.cut.steps) return;
      const std::uint64_t offset = lane_.offset_of(move.cut, step);
      const std::uint32_t bytes = move.cut.bytes_of(piece_of(peer).bytes, offset);
      const bool whole = !two_hops() && (!to_all || bytes % kUnitBytes == 0);
      ok = ok && lane_.await_slot(0, peer, move.first + step);
      const auto to = lane_.destination(0, peer, move.first + step, step, offset, whole);
      if (to.direct) direct |= bit_of(peer);
      shared_.from[at(peer)] = piece_of(peer).data + offset;
      shared_.to[at(peer)] = to.to;
      shared_.bytes[at(peer)] = bytes;
    });
    if (!warp_all(ok)) return false;
    if (to_all) {
      const Cut cut = lane_.cut(own_send().bytes);
      const std::uint64_t offset = lane_.offset_of(cut, step);
      forward_chunk<N>(own_send().data + offset, shared_.to + place_, world_size(), rank(),
                       cut.bytes_of(own_send().bytes, offset));
    } else {
      copy_chunks();
    }
    warp_barrier();
    each_rank([&](int peer) {
      const Move move = move_of(first, peer);
      if (step >= move.cut.steps) return;
      const std::uint64_t flag = (direct & bit_of(peer)) != 0 ? kDirectChunk : 0;
      lane_.post_chunk(0, peer, move.first + step, piece_of(peer).bytes | flag);
    });
    return true;
  }

  __device__ __forceinline__ bool place(const Move& first, std::uint32_t step) const {
    bool ok = true;
    each_rank([&](int peer) {
      const Move move = move_of(first, peer);
      shared_.bytes[at(peer)] = 0;
      if (step < move.cut.steps) ok = ok && take_to_place(peer, move, step);
    });
    if (!warp_all(ok)) return false;
    copy_chunks();
    warp_barrier();
    each_rank([&](int peer) {
      const Move move = move_of(first, peer);
      if (step + 1 < move.cut.steps) lane_.free_slot(hop(), peer, move.first + step);
    });
    return true;
  }

  // Each lane of each rank begins with another peer, so that a rank's links and each peer's carry
  // as much at any time: where all begin with their neighbour, 10 to 30 % less leaves a GPU
  // (docs/experiments.md, "Who stores what where").
  __device__ __forceinline__ void copy_chunks() const {
    const int peers = world_size() - 1;
    const int begin = static_cast<int>(lane_.number() % static_cast<unsigned>(peers));
    for (int i = 0; i < peers; ++i) {
      const int turn = begin + i;
      const int next = rank() + 1 + (turn < peers ? turn : turn - peers);
      const unsigned each = at(next < world_size() ? next : next - world_size());
      const std::uint32_t bytes = load_shared(&shared_.bytes[each]);
      if (bytes == 0) continue;
      warp_copy(load_shared(&shared_.to[each]), load_shared(&shared_.from[each]), bytes);
    }
  }

  // Waits for a chunk, and says where it is to be copied from and to: nowhere where it has been
  // stored in its place. By one thread.
  __device__ bool take_to_place(int peer, const Move& move, std::uint32_t step) const {
    const BulkPiece& piece = piece_of(peer);
    const std::uint32_t number = move.first + step;
    const BufferLocation location = lane_.location_of(piece);
    if (step == 0) lane_.free_last_slot(hop(), peer, number);
    if (location != 0 && step == 0) lane_.announce(hop(), peer, number, location);
    if (!lane_.await_chunk(hop(), peer, number)) return false;
    bool direct = false;
    if (step == 0 || location != 0) {
      const ChunkHeader header = lane_.header_of(hop(), peer, number);
      if (!lane_.has_size(header, peer, piece.bytes)) return false;
      direct = (header.bytes & kDirectChunk) != 0;
    }
    const std::uint64_t offset = lane_.offset_of(move.cut, step);
    shared_.from[at(peer)] = lane_.slot(rank(), hop(), peer, number);
    shared_.to[at(peer)] = piece.data + offset;
    shared_.bytes[at(peer)] = direct ? 0 : move.cut.bytes_of(piece.bytes, offset);
    if (location != 0 && step + 1 == move.cut.steps) lane_.withdraw(hop(), peer);
    return true;
  }

  // Waits for a chunk of hop 1; by one thread.
  __device__ bool take(int peer, std::uint64_t piece_bytes, std::uint32_t step,
                       std::uint32_t number) const {
    if (step == 0) lane_.free_last_slot(0, peer, number);
    if (!lane_.await_chunk(0, peer, number)) return false;
    if (step != 0 && !params_.premultiplies) return true;
    const ChunkHeader header = lane_.header_of(0, peer, number);
    shared_.factors[at(peer)] = header.factor;
    return lane_.has_size(header, peer, piece_bytes);
  }

  __device__ __forceinline__ bool middle() {
    if constexpr (kCombines) {
      return pass_on(
          own_send().bytes, [&](int) { return true; },
          [&](std::uint32_t bytes) { combine(bytes); });
    } else {
      return pass_on(
          own_take().bytes, [&](int peer) { return peer == params_.root; },
          [&](std::uint32_t bytes) {
            forward_chunk<N>(load_shared(&shared_.from[at(params_.root)]), shared_.to + place_,
                             world_size(), rank(), bytes);
          });
    }
  }

  // Takes the chunks of a piece of `piece_bytes` from the ranks that hears(peer) names, lets
  // `body(bytes)` store what becomes of them, and posts it to the ranks of hop 2.
  template <class Hears, class Body>
  __device__ __forceinline__ bool pass_on(std::uint64_t piece_bytes, const Hears& hears,
                                          const Body& body) {
    const Cut cut = lane_.cut(piece_bytes);
    const auto thread = static_cast<int>(warp_thread());
    const BulkCount first = thread < world_size() ? counts(thread) : BulkCount{};
    const auto before = [&](int peer) { return is_first(peer) ? first : counts(peer); };
    const auto is_peer = [&](int peer) { return peer != rank(); };
    for (std::uint32_t step = 0; step < cut.steps; ++step) {
      const std::uint64_t offset = lane_.offset_of(cut, step);
      std::uint32_t direct = 0;
      bool ok = true;
      each_rank([&](int peer) {
        auto& from = shared_.from[at(peer)];
        auto& to = shared_.to[at(peer)];
        to = nullptr;
        if (!is_peer(peer)) {
          from = own_send().data == nullptr ? nullptr : own_send().data + offset;
          to = own_take().data == nullptr ? nullptr : own_take().data + offset;
          shared_.factors[at(peer)] = params_.factor;
          return;
        }
        if (hears(peer)) {
          const std::uint32_t number = before(peer).received + step;
          ok = ok && take(peer, piece_bytes, step, number);
          from = lane_.slot(rank(), 0, peer, number);
        }
        if (sends_on(peer)) {
          const std::uint32_t number = before(peer).sent + step;
          ok = ok && lane_.await_slot(1, peer, number);
          const bool whole = cut.bytes_of(piece_bytes, offset) % kUnitBytes == 0;
          const auto destination = lane_.destination(1, peer, number, step, offset, whole);
          to = destination.to;
          if (destination.direct) direct |= bit_of(peer);
        }
      });
      if (!warp_all(ok)) return false;
      body(cut.bytes_of(piece_bytes, offset));
      warp_barrier();
      each_rank([&](int peer) {
        const bool posts = is_peer(peer) && sends_on(peer);
        const bool frees = is_peer(peer) && hears(peer) && step + 1 < cut.steps;
        if (!posts && !frees) return;
        const std::uint64_t flag = (direct & bit_of(peer)) != 0 ? kDirectChunk : 0;
        lane_.post_and_free(peer, posts, before(peer).sent + step, piece_bytes | flag, frees,
                            before(peer).received + step);
      });
    }
    each_rank([&](int peer) {
      if (!is_peer(peer)) return;
      const BulkCount count = before(peer);
      if (hears(peer)) store_data(&lane_.count(0, peer).received, count.received + cut.steps);
      if (sends_on(peer)) store_data(&lane_.count(1, peer).sent, count.sent + cut.steps);
    });
    return true;
  }
  // What this rank has received of a peer in hop 1, and sent it in hop 2.
  __device__ BulkCount counts(int peer) const {
    return {load_data(&lane_.count(1, peer).sent), load_data(&lane_.count(0, peer).received)};
  }

  // This rank's own chunk may stand at any address.
  __device__ __forceinline__ void combine(std::uint32_t bytes) const {
    const auto facts = Rules::facts_of(shared_.factors + place_, params_, params_);
    Rules::visit(facts, [&](auto rule) {
      combine_chunk<N, decltype(rule)>(shared_.from + place_, shared_.to + place_, world_size(),
                                       rank(), bytes, facts);
    });
  }

  // NOTE [Poison] in poison.cuh: the outputs of this warp. By the whole block, whose senders have
  // ended.
  __device__ __forceinline__ void poison() const {
    if (params_.poison == 0) return;
    if (lane_.has_role(kLanePasses) || lane_.has_role(kLaneCopiesOwn)) poison(own_take());
    if (!lane_.has_role(kLanePlaces)) return;
    for (int peer = 0; peer < world_size(); ++peer) {
      const bool places = (params_.placed >> peer & 1) != 0 && lane_.serves(peer);
      if (places) poison(params_.take[peer]);
    }
  }
  __device__ void poison(const BulkPiece& piece) const {
    if (piece.data == nullptr) return;
    const Cut cut = lane_.cut(piece.bytes);
    for (std::uint32_t step = 0; step < cut.steps; ++step) {
      const std::uint64_t offset = lane_.offset_of(cut, step);
      fill_poison(piece.data + offset, cut.bytes_of(piece.bytes, offset), params_.poison,
                  warp_thread(), kWarpThreads);
    }
  }

  const Params& params_;
  const Lane<N> lane_;
  BulkShared& shared_;
  const unsigned place_;
};

}  // namespace symm
