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

// What the middles of a block's lanes work on, by lane and rank. A lane has at least as many warps
// as ranks, or is alone in its block.
struct BulkShared {
  static constexpr unsigned kPlaces = kMaxDeviceRanks;
  static_assert(kPlaces >= kBulkWarps);
  const std::byte* from[kPlaces];  // 16-byte aligned, but for this rank's own
  std::byte* to[kPlaces];          // null for none
  double factors[kPlaces];
  // By warp: where the chunk that it moves comes from or goes to, as its first thread has found.
  std::byte* chunks[kBulkWarps];
};

template <int N, class Rules>
class Bulk {
 public:
  using Params = typename Lane<N>::Params;

  __device__ Bulk(const Params& params, BulkShared& shared)
      : params_(params),
        lane_(params),
        places_(lane_.exists() ? lane_.number_in_block() * static_cast<unsigned>(world_size()) : 0),
        from_(shared.from + places_),
        to_(shared.to + places_),
        factors_(shared.factors + places_),
        chunk_(shared.chunks[threadIdx.x / kWarpThreads]) {}

  // By the whole block.
  __device__ __forceinline__ void run() {
    const std::uint64_t sequence = load_relaxed(&lane_.local().sequence);
    const bool alive = load_relaxed(&lane_.local().dead) == 0;
    if (alive && params_.counts_calls && blockIdx.x == 0 && threadIdx.x == 0) {
      store_relaxed(&global_pointer(params_.page)->entered, sequence / kSequenceUnit + 1);
    }
    if (!block_all(alive && (!lane_.exists() || play()))) {
      if (lane_.exists()) poison();
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
  __device__ bool two_hops() const { return params_.combines || params_.relays; }
  __device__ int last_hop() const { return two_hops() ? 1 : 0; }
  __device__ const BulkPiece& own_send() const { return params_.send[rank()]; }
  __device__ const BulkPiece& own_take() const { return params_.take[rank()]; }
  __device__ bool sends_on(int peer) const {
    return peer != rank() && (params_.second_hop >> peer & 1) != 0;
  }
  // The peers of this warp are those from `begin` on in the list of its role.
  __device__ int warps_for(int peers) const {
    return (peers + lane_.peers_of_warp() - 1) / lane_.peers_of_warp();
  }

  __device__ __forceinline__ bool play() {
    const int senders = warps_for(params_.sender_count);
    if (lane_.role() < senders) return send(lane_.role() * lane_.peers_of_warp());
    if (lane_.role() == senders) return middle();
    const int begin = (lane_.role() - senders - 1) * lane_.peers_of_warp();
    return begin >= params_.placer_count || place(begin);
  }

  // Steps of all the warp's peers, one step of each at a time. step_of(peer, data, cut, step,
  // number) does one and returns whether to go on; base_of(peer): where the chunks of the peer have
  // come to.
  template <class Piece, class Base, class Step>
  __device__ __forceinline__ bool each_step(const std::uint8_t* peers, int begin, int count,
                                            const Piece& piece_of, const Base& base_of,
                                            const Step& step_of) {
    if constexpr (Lane<N>::kOnePeer) {
      const int peer = peers[begin];
      const BulkPiece piece = piece_of(peer);
      const Cut cut = lane_.cut(piece.bytes);
      std::uint32_t& base = base_of(peer);
      const std::uint32_t first = load_data(&base);
      for (std::uint32_t step = 0; step < cut.steps; ++step) {
        if (!step_of(peer, piece.data, cut, step, first + step)) return false;
      }
      warp_barrier();  // all have read it
      if (warp_thread() == 0) store_data(&base, first + cut.steps);
      return true;
    } else {
      const int end = begin + lane_.peers_of_warp() < count ? begin + lane_.peers_of_warp() : count;
      std::uint32_t step = 0;
      for (bool more = true; more; ++step) {
        more = false;
        for (int i = begin; i < end; ++i) {
          const int peer = peers[i];
          const BulkPiece piece = piece_of(peer);
          const Cut cut = lane_.cut(piece.bytes);
          if (step >= cut.steps) continue;
          more = true;
          std::uint32_t& base = base_of(peer);
          const std::uint32_t number = load_data(&base);
          if (!step_of(peer, piece.data, cut, step, number)) return false;
          warp_barrier();
          if (warp_thread() == 0) store_data(&base, number + 1);
          warp_barrier();
        }
      }
      return true;
    }
  }

  __device__ __forceinline__ bool send(int begin) {
    return each_step(
        params_.senders, begin, params_.sender_count,
        [&](int peer) { return params_.sends_same ? own_send() : params_.send[peer]; },
        [&](int peer) -> std::uint32_t& { return lane_.count(0, peer).sent; },
        [&](int peer, std::byte* data, const Cut& cut, std::uint32_t step, std::uint32_t number) {
          const std::uint64_t offset = lane_.offset_of(cut, step);
          bool ok = true;
          std::uint64_t direct = 0;
          if (warp_thread() == 0) {
            ok = lane_.await_slot(0, peer, number);
            const auto to = lane_.destination(0, peer, number, step, offset, !two_hops());
            chunk_ = to.to;
            direct = to.direct ? kDirectChunk : 0;
          }
          if (!warp_all(ok)) return false;
          warp_copy(load_shared(&chunk_), data + offset, cut.bytes_of(offset));
          warp_barrier();
          if (warp_thread() == 0) lane_.post_chunk(0, peer, number, cut.bytes | direct);
          return true;
        });
  }

  __device__ __forceinline__ bool place(int begin) {
    return each_step(
        params_.placers, begin, params_.placer_count, [&](int peer) { return params_.take[peer]; },
        [&](int peer) -> std::uint32_t& { return lane_.count(last_hop(), peer).received; },
        [&](int peer, std::byte* data, const Cut& cut, std::uint32_t step, std::uint32_t number) {
          bool ok = true;
          if (warp_thread() == 0) ok = take_to_place(peer, data, cut, step, number);
          if (!warp_all(ok)) return false;
          const std::uint64_t offset = lane_.offset_of(cut, step);
          const std::byte* const from = load_shared(&chunk_);
          if (from != nullptr) warp_copy(data + offset, from, cut.bytes_of(offset));
          warp_barrier();
          if (warp_thread() == 0) lane_.free_slot(last_hop(), peer, number);
          return true;
        });
  }

  // As take(), for a chunk that is to be at `data`; chunk_ becomes where it is, null where it has
  // been stored in its place.
  __device__ bool take_to_place(int peer, std::byte* data, const Cut& cut, std::uint32_t step,
                                std::uint32_t number) const {
    const int hop = last_hop();
    const BufferLocation location = lane_.location_of({data, cut.bytes});
    if (location != 0 && step == 0) lane_.announce(hop, peer, number, location);
    if (!lane_.await_chunk(hop, peer, number)) return false;
    bool direct = false;
    if (step == 0 || location != 0) {
      const ChunkHeader header = lane_.header_of(hop, peer, number);
      if (!lane_.has_size(header, peer, cut.bytes)) return false;
      direct = (header.bytes & kDirectChunk) != 0;
    }
    chunk_ = direct ? nullptr : lane_.slot(rank(), hop, peer, number);
    if (location != 0 && step + 1 == cut.steps) lane_.withdraw(hop, peer);
    return true;
  }

  // Waits for a chunk of a piece; by one thread.
  __device__ bool take(int hop, int peer, const Cut& cut, std::uint32_t step, std::uint32_t number,
                       double* factor) const {
    if (!lane_.await_chunk(hop, peer, number)) return false;
    if (step != 0 && factor == nullptr) return true;
    const ChunkHeader header = lane_.header_of(hop, peer, number);
    if (factor != nullptr) *factor = header.factor;
    return lane_.has_size(header, peer, cut.bytes);
  }

  __device__ __forceinline__ bool middle() {
    if constexpr (kCombines) {
      if (params_.combines) {
        return pass_on(
            own_send().bytes, [&](int) { return true; },
            [&](std::uint32_t bytes) { combine(bytes); });
      }
    }
    if (params_.relays) {
      return pass_on(
          own_take().bytes, [&](int peer) { return peer == params_.root; },
          [&](std::uint32_t bytes) {
            forward_chunk<N>(load_shared(&from_[params_.root]), to_, world_size(), rank(), bytes);
          });
    }
    if (!params_.copies_own) return true;
    const Cut cut = lane_.cut(own_send().bytes);
    for (std::uint32_t step = 0; step < cut.steps; ++step) {
      const std::uint64_t offset = lane_.offset_of(cut, step);
      warp_copy(own_take().data + offset, own_send().data + offset, cut.bytes_of(offset));
    }
    return true;
  }

  // Takes the chunks of a piece of `piece_bytes` from the ranks that hears(peer) names, lets
  // `body(bytes)` store what becomes of them to `to_`, and posts it to the ranks of hop 2. The
  // threads share the peers.
  template <class Hears, class Body>
  __device__ __forceinline__ bool pass_on(std::uint64_t piece_bytes, const Hears& hears,
                                          const Body& body) {
    const Cut cut = lane_.cut(piece_bytes);
    // Of this thread's first peer, which most groups have no more of.
    BulkCount first{};
    if (static_cast<int>(warp_thread()) < world_size()) first = counts(warp_thread());
    const auto before = [&](int peer) {
      return peer < static_cast<int>(kWarpThreads) ? first : counts(static_cast<unsigned>(peer));
    };
    const auto is_peer = [&](int peer) { return peer != rank(); };
    for (std::uint32_t step = 0; step < cut.steps; ++step) {
      const std::uint64_t offset = lane_.offset_of(cut, step);
      const bool whole = cut.bytes_of(offset) % kUnitBytes == 0;
      std::uint32_t direct = 0;  // a bit for each of this thread's peers
      bool ok = true;
      for (int peer = static_cast<int>(warp_thread()); peer < world_size();
           peer += static_cast<int>(kWarpThreads)) {
        if (!is_peer(peer)) {
          from_[peer] = own_send().data == nullptr ? nullptr : own_send().data + offset;
          to_[peer] = own_take().data == nullptr ? nullptr : own_take().data + offset;
          factors_[peer] = params_.factor;
          continue;
        }
        to_[peer] = nullptr;
        if (hears(peer)) {
          const std::uint32_t number = before(peer).received + step;
          double* const factor = params_.premultiplies ? &factors_[peer] : nullptr;
          ok = ok && take(0, peer, cut, step, number, factor);
          from_[peer] = lane_.slot(rank(), 0, peer, number);
        }
        if (sends_on(peer)) {
          const std::uint32_t number = before(peer).sent + step;
          ok = ok && lane_.await_slot(1, peer, number);
          const auto to = lane_.destination(1, peer, number, step, offset, whole);
          to_[peer] = to.to;
          if (to.direct) direct |= bit_of(peer);
        }
      }
      if (!warp_all(ok)) return false;
      body(cut.bytes_of(offset));
      warp_barrier();
      for (int peer = static_cast<int>(warp_thread()); peer < world_size();
           peer += static_cast<int>(kWarpThreads)) {
        const bool posts = is_peer(peer) && sends_on(peer);
        const bool frees = is_peer(peer) && hears(peer);
        if (!posts && !frees) continue;
        const std::uint64_t flag = (direct & bit_of(peer)) != 0 ? kDirectChunk : 0;
        lane_.post_and_free(peer, posts, before(peer).sent + step, piece_bytes | flag, frees,
                            before(peer).received + step);
      }
    }
    for (int peer = static_cast<int>(warp_thread()); peer < world_size();
         peer += static_cast<int>(kWarpThreads)) {
      if (!is_peer(peer)) continue;
      const BulkCount count = before(peer);
      if (hears(peer)) store_data(&lane_.count(0, peer).received, count.received + cut.steps);
      if (sends_on(peer)) store_data(&lane_.count(1, peer).sent, count.sent + cut.steps);
    }
    return true;
  }
  static __device__ std::uint32_t bit_of(int peer) {
    return 1u << (static_cast<unsigned>(peer) / kWarpThreads);
  }
  // What this rank has received of a peer in hop 1, and sent it in hop 2.
  __device__ BulkCount counts(unsigned peer) const {
    return {load_data(&lane_.count(1, static_cast<int>(peer)).sent),
            load_data(&lane_.count(0, static_cast<int>(peer)).received)};
  }

  // The chunks of from_ to to_. This rank's own may stand at any address.
  __device__ __forceinline__ void combine(std::uint32_t bytes) const {
    const auto facts = Rules::facts_of(factors_, params_, params_);
    Rules::visit(facts, [&](auto rule) {
      combine_chunk<N, decltype(rule)>(from_, to_, world_size(), rank(), bytes, facts);
    });
  }

  // NOTE [Poison] in poison.cuh: the outputs of this warp. By the whole block, whose senders have
  // ended.
  __device__ __forceinline__ void poison() const {
    if (params_.poison == 0) return;
    const int senders = warps_for(params_.sender_count);
    const int begin = (lane_.role() - senders - 1) * lane_.peers_of_warp();
    if (lane_.role() == senders && (two_hops() || params_.copies_own)) poison(own_take());
    if (begin < 0) return;
    for (int i = begin; i < begin + lane_.peers_of_warp() && i < params_.placer_count; ++i) {
      poison(params_.take[params_.placers[i]]);
    }
  }
  __device__ void poison(const BulkPiece& piece) const {
    if (piece.data == nullptr) return;
    const Cut cut = lane_.cut(piece.bytes);
    for (std::uint32_t step = 0; step < cut.steps; ++step) {
      const std::uint64_t offset = lane_.offset_of(cut, step);
      fill_poison(piece.data + offset, cut.bytes_of(offset), params_.poison, warp_thread(),
                  kWarpThreads);
    }
  }

  const Params& params_;
  const Lane<N> lane_;
  const unsigned places_;
  const std::byte** const from_;
  std::byte** const to_;
  double* const factors_;
  std::byte*& chunk_;
};

}  // namespace symm
