// One block of a collective over a wire: its epoch, its credits, and the tiles that it sends and
// receives.
//
// NOTE [Wire epochs]
// Block b of every rank belongs together. Each collective in which a rank launches a block b, or
// ends it idle (NOTE [Shares] in route.cuh), is the next epoch of it, counted in device memory by
// that block alone: blocks do not meet at the end of a launch, and launches of different sizes may
// follow each other. A rank has two boxes for each block and sender, by parity of the epoch. Epoch
// e may be written into a peer's box once the peer's block has ended e - 2, the last to read it. A
// rank learns that in one of two ways:
//
//   done    the peer stores its epoch when it has ended, at every rank to which it sent nothing in
//   it heard   a tile of the peer came in epoch h: it had begun h, hence ended h - 1
//
// so the credit is max(done, heard - 1) >= e - 2, and where everybody hears everybody it needs no
// message. In each epoch a peer does one of the two, whatever the collective; so no rank waits for
// one that waits for it. A store of `done` needs no fence: what ended are loads that have returned,
// since the epochs in the tiles were looked at.
//
// Epochs are 64 bits wide. Those that an LL wire carries repeat: see refresh().
#pragma once

#include <type_traits>

#include "kernels/gpu/device/call_end.cuh"
#include "kernels/gpu/wire/block_values.cuh"
#include "kernels/gpu/wire/tile.cuh"

namespace symm {

// NOTE [Shares] in route.cuh: where a flag has the size of a share, and what its tiles carry.
inline constexpr int kSizeShift = 40;
__device__ inline std::uint64_t share_flag(std::uint64_t epoch, std::uint32_t bytes) {
  return epoch + (std::uint64_t{bytes} << kSizeShift);
}

// By block: the epoch that the block of `peer` has ended, as `owner` knows it.
template <class Params>
__device__ std::uint64_t* wire_done_at(const Params& params, int owner, int peer) {
  return reinterpret_cast<std::uint64_t*>(global_pointer(params.segments[owner]) + params.done) +
         static_cast<unsigned>(peer) * params.box_blocks;
}

// `kByShare`: NOTE [Shares] in route.cuh.
template <class Tile, int N, bool kByShare = false>
class WireBlock {
 public:
  using Params = WireParams<kWireRanks<N>>;
  // Ranks whose tiles are in registers at once; with more than 2, AMD's compiler spills where N is
  // not known.
  static constexpr int kBatch = N == 0 ? 2 : N;
  static constexpr bool kFlagsHaveSizes = kByShare && !Tile::kEpochsRepeat;  // NOTE [Shares]

  __device__ explicit WireBlock(const Params& params)
      : params_(params),
        local_(*reinterpret_cast<LocalState*>(own_segment() + params.local)),
        epoch_(load_data(&local_.wire_epoch[blockIdx.x]) + 1),
        flag_(Tile::flag_of(epoch_)),
        sequence_(load_relaxed(&local_.sequence)),
        alive_(load_relaxed(&local_.dead) == 0) {
    const int peer = static_cast<int>(threadIdx.x);
    if (looks_at(peer)) {
      done_ = load_relaxed(done_at(rank(), peer));
      heard_before_ = load_data(heard_at(peer));
    }
  }

  // Waits for credit at every peer; false where the launch must end. By the whole block. The page
  // is told first: a peer that dies is a failure of the calls that have been entered.
  __device__ __forceinline__ bool ready() {
    bool ok = alive_;
    if (ok && params_.counts_calls && blockIdx.x == 0 && threadIdx.x == 0) {
      store_relaxed(&global_pointer(params_.page)->entered, sequence_ / kSequenceUnit + 1);
    }
    for (int peer = static_cast<int>(threadIdx.x); looks_at(peer); peer += kTileThreads) {
      const bool first = peer == static_cast<int>(threadIdx.x);
      if (!first) heard_before_ = load_data(heard_at(peer));
      if (has_reached(heard_before_ + 2, epoch_ + 1)) continue;
      if (first && has_reached(done_ + 2, epoch_)) continue;
      ok = ok && await_done(peer);
    }
    return block_all(ok);
  }

  // Ends the call, all of whose tiles have been received. By the whole block.
  __device__ __forceinline__ void end() {
    for (int peer = static_cast<int>(threadIdx.x); looks_at(peer); peer += kTileThreads) {
      if (peer == rank()) continue;
      if (has(heard_, peer)) store_data(heard_at(peer), epoch_);
      if (!has(sent_, peer)) store_relaxed(done_at(peer, rank()), epoch_);
    }
    if (threadIdx.x != 0) return;
    store_data(&local_.wire_epoch[blockIdx.x], epoch_);
    if (params_.ends_call) {
      count_call(local_, params_.counts_calls ? global_pointer(params_.page) : nullptr, sequence_);
    }
  }

  __device__ int rank() const { return params_.rank; }
  __device__ int world_size() const { return N == 0 ? params_.world_size : N; }

  // Tiles of each piece are divided among the blocks, and a block's among its groups of threads.
  __device__ std::uint32_t tiles_of_each_block(const WirePiece& piece) const {
    return kByShare ? piece.tiles : params_.tiles_per_block;
  }
  __device__ std::uint32_t first_tile() const { return threadIdx.x / kTileThreads; }
  __device__ std::uint32_t tile_stride() const { return blockDim.x / kTileThreads; }
  // Those of this block.
  __device__ std::uint32_t tiles_of(const WirePiece& piece) const {
    if (kFlagsHaveSizes && piece.bytes == 0) return blockIdx.x == 0 ? 1 : 0;
    const std::uint32_t before = blockIdx.x * tiles_of_each_block(piece);
    const std::uint32_t all =
        kByShare ? (piece.bytes + Tile::kBytes - 1) / Tile::kBytes : piece.tiles;
    if (all <= before) return 0;
    return static_cast<std::uint32_t>(min_size(all - before, tiles_of_each_block(piece)));
  }

  // This thread's unit of tile `tile` of the block's part of a piece; zero behind its end.
  __device__ Unit load(const WirePiece& piece, std::uint32_t tile) const {
    const std::uint32_t offset = offset_of(piece, tile);
    if (offset >= piece.bytes) return Unit{};
    return Tile::load(piece.data + offset, piece.bytes - offset);
  }
  __device__ void store(const WirePiece& piece, std::uint32_t tile, Unit unit) const {
    const std::uint32_t offset = offset_of(piece, tile);
    if (offset >= piece.bytes || piece.data == nullptr) return;
    Tile::store(piece.data + offset, unit, piece.bytes - offset);
  }

  // `place`: the number of the tile in the box.
  __device__ __forceinline__ void send(int peer, std::uint32_t place, Unit unit) {
    sent_ |= Mask{1} << peer;
    Tile::converge();
    Tile::send(box_at(peer, rank()) + place * Tile::kSpace, unit, flag_of(params_.send[peer]));
  }

  // Receives the tiles at `place` from the ranks base + k for which wants(base + k), into units[k]:
  // the loads of all of them come before the first look.
  template <class Wants>
  __device__ __forceinline__ bool receive(int base, std::uint32_t place, Unit (&units)[kBatch],
                                          const Wants& wants) {
    const bool came = poll(base, [&](int& late) {  //
      return try_receive_all(base, place, units, wants, late);
    });
    note_heard(base, wants);
    return came;
  }
  // The same from all ranks base + k, of the tiles at place, place + tile_stride() and so on that
  // are less than `end`; the first is.
  template <int kTiles>
  __device__ __forceinline__ bool receive_tiles(int base, std::uint32_t place, std::uint32_t end,
                                                Unit (&units)[kTiles][kBatch]) {
    const auto wants = [](int) { return true; };
    const bool came = poll(base, [&](int& late) {
      bool here = true;
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const std::uint32_t at = place + static_cast<std::uint32_t>(i) * tile_stride();
        if (at < end) here = try_receive_all(base, at, units[i], wants, late) && here;
      }
      return here;
    });
    note_heard(base, wants);
    return came;
  }
  __device__ __forceinline__ bool receive_from(int peer, std::uint32_t place, Unit* unit) {
    heard_ |= Mask{1} << peer;
    return poll(peer, [&](int&) { return try_receive(peer, place, unit); });
  }

  // What each peer released before it sent the tile at place 0, which has been received, is seen by
  // what comes later on this stream. By the first threads.
  __device__ void acquire_all() const {
    for (int peer = static_cast<int>(threadIdx.x); looks_at(peer); peer += kTileThreads) {
      if (peer == rank()) continue;
      const auto* const words = reinterpret_cast<const std::uint64_t*>(box_at(rank(), peer));
      static_cast<void>(load_acquire(words + Tile::kFlagWord));
    }
  }

  // After some 2^32 epochs those of an LL wire repeat, and a tile that was not written since then
  // would look valid. So in two of every 2^30 epochs, one of each parity, each sender writes all
  // tiles of its boxes; uses(peer, place): the call itself does.
  template <class Uses>
  __device__ void refresh(const Uses& uses) {
    if constexpr (Tile::kEpochsRepeat) {
      if (epoch_ % kRefreshPeriod >= 2) return;
      for (int peer = 0; peer < world_size(); ++peer) {
        if (peer == rank()) continue;
        for (std::uint32_t place = first_tile(); place <= params_.box_tiles;
             place += tile_stride()) {
          if (uses(peer, place)) continue;
          // Nobody hears it, so it is not noted as sent.
          Tile::send(box_at(peer, rank()) + place * Tile::kSpace, Unit{}, flag_);
        }
      }
    }
  }

  // NOTE [Values of blocks] in block_values.cuh. By one thread.
  template <class T>
  __device__ void share(T value) const {
    share_value(local_, sequence_, value);
  }
  // The value of another block, or of this one; false where the launch must end. By any thread.
  template <class T>
  __device__ bool await_value(unsigned block, T* value) const {
    return symm::await_value(local_, params_, sequence_, block, value, rank());
  }

  // Marks the group dead and reports the fault, unless another thread has done so. Returns false.
  __device__ bool fail(DeviceFault fault, int peer, std::uint64_t theirs,
                       std::uint64_t mine) const {
    fail_group(local_, *global_pointer(params_.page), fault, peer, collective_number(local_), false,
               theirs, mine);
    return false;
  }

 protected:
  using Mask = std::conditional_t<N == 0, std::uint64_t, std::uint32_t>;
  static constexpr std::uint64_t kRefreshPeriod = 1u << 30;

  // What the tiles of `piece` carry.
  __device__ std::uint64_t flag_of([[maybe_unused]] const WirePiece& piece) const {
    if constexpr (!kFlagsHaveSizes) return flag_;
    return share_flag(flag_, piece.bytes);
  }

  __device__ static bool has(Mask mask, int peer) { return (mask >> peer & 1) != 0; }

  // Counters of peers belong to the first threads, which have a part in every tile that comes first
  // from a peer.
  __device__ bool looks_at(int peer) const {
    return threadIdx.x < kTileThreads && peer < world_size();
  }

  __device__ std::byte* own_segment() const { return global_pointer(params_.segments[rank()]); }
  __device__ std::uint64_t* heard_at(int peer) const {
    return &local_.wire_heard[blockIdx.x][peer];
  }
  // What `peer` has said of this block, at `owner`.
  __device__ std::uint64_t* done_at(int owner, int peer) const {
    return wire_done_at(params_, owner, peer) + blockIdx.x;
  }
  __device__ std::byte* box_at(int owner, int sender) const {
    const std::uint64_t block = (epoch_ & 1) * params_.box_blocks + blockIdx.x;
    const auto senders = static_cast<std::uint64_t>(wire_senders(world_size()));
    const std::uint64_t box = block * senders + (senders == 1 ? 0 : static_cast<unsigned>(sender));
    return global_pointer(params_.segments[owner]) + params_.boxes + box * params_.box_bytes;
  }
  // Of a tile of this block's part of a piece, and of this thread's unit of it.
  __device__ std::uint32_t begin_of(const WirePiece& piece, std::uint32_t tile) const {
    return (blockIdx.x * tiles_of_each_block(piece) + tile) * Tile::kBytes;
  }
  __device__ std::uint32_t offset_of(const WirePiece& piece, std::uint32_t tile) const {
    return begin_of(piece, tile) + Tile::offset();
  }

  __device__ __forceinline__ bool try_receive(int peer, std::uint32_t place, Unit* unit) const {
    return Tile::receive(box_at(rank(), peer) + place * Tile::kSpace, flag_of(params_.take[peer]),
                         unit);
  }
  template <class Wants>
  __device__ __forceinline__ bool try_receive_all(int base, std::uint32_t place,
                                                  Unit (&units)[kBatch], const Wants& wants,
                                                  int& late) const {
    bool here = true;
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const int peer = base + k;
      if (peer >= world_size() || peer == rank() || !wants(peer)) continue;
      if (!try_receive(peer, place, &units[k])) {
        here = false;
        late = peer;
      }
    }
    return here;
  }
  template <class Wants>
  __device__ __forceinline__ void note_heard(int base, const Wants& wants) {
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const int peer = base + k;
      if (peer < world_size() && peer != rank() && wants(peer)) heard_ |= Mask{1} << peer;
    }
  }
  // Until is_here(late) is true, `late` being who is waited for; false where the launch must end.
  template <class IsHere>
  __device__ __forceinline__ bool poll(int late, const IsHere& is_here) const {
    std::uint64_t first_look = 0;
    for (std::uint32_t polls = 1;; ++polls) {
      Tile::converge();
      const bool here = is_here(late);
      if (Tile::all(here)) {
        if constexpr (Tile::kLoadsAgain) static_cast<void>(is_here(late));
        return true;
      }
      if ((polls & (params_.poll_period - 1)) != 0) continue;
      if (!here) first_look = look(late, first_look);
      if (Tile::any(!here && first_look == 0)) return false;
      report_other_sizes();
    }
  }
  // NOTE [Shares]: where the first tile of a peer has the flag of another size.
  __device__ __forceinline__ void report_other_sizes() const {
    if constexpr (kFlagsHaveSizes) {
      if (blockIdx.x != 0) return;
      for (int peer = static_cast<int>(tile_thread()); peer < world_size(); peer += kTileThreads) {
        if (peer == rank() || (params_.hears[0] >> peer & 1) == 0) continue;
        const auto* const words = reinterpret_cast<const std::uint64_t*>(box_at(rank(), peer));
        const std::uint64_t ahead = load_relaxed(words + Tile::kFlagWord) - flag_;
        constexpr std::uint64_t kOne = std::uint64_t{1} << kSizeShift;
        const WirePiece& mine = params_.take[peer];
        if (ahead % kOne != 0 || ahead == flag_of(mine) - flag_) continue;
        fail(DeviceFault::kCountMismatch, peer, ahead >> kSizeShift, mine.bytes);
      }
    }
  }

  __device__ std::uint64_t look(int peer, std::uint64_t first_look) const {
    return look_up(&local_, params_.page, params_.timeout_ns, peer, first_look);
  }

  __device__ bool await_done(int peer) const {
    if (peer == rank()) return true;
    std::uint64_t first_look = 0;
    for (std::uint32_t polls = 1; !has_reached(load_relaxed(done_at(rank(), peer)) + 2, epoch_);
         ++polls) {
      if ((polls & (params_.poll_period - 1)) != 0) continue;
      first_look = look(peer, first_look);
      if (first_look == 0) return false;
    }
    return true;
  }

  const Params& params_;
  LocalState& local_;
  const std::uint64_t epoch_;
  const std::uint64_t flag_;
  const std::uint64_t sequence_;  // of the first block: before this call
  const bool alive_;
  std::uint64_t done_ = 0;  // of the peer of this thread's number, when the launch began
  std::uint64_t heard_before_ = 0;
  Mask sent_ = 0;   // to whom this thread has sent a tile in this epoch
  Mask heard_ = 0;  // from whom it has received one
};

}  // namespace symm
