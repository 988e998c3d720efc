// A lane: chunks of a collective through slots, by the warps of one block.
//
// NOTE [Lanes]
// Large messages cross in chunks. The sender stores a chunk into a slot in the receiver's memory,
// and then its number, behind a fence; the receiver takes it and gives the slot back. One lane does
// that for every n-th chunk of all pieces of a call, and each of its warps has a role:
//
//   sender   of hop 1: waits for free slots at its peers, copies a chunk of each peer's piece there
//   middle   combines the chunks of all ranks in rank order, or relays the root's, into its output
//            and the slots of hop 2
//   placer   of the last hop: copies the chunks of its peers to the output, gives the slots back
//
// A warp waits, copies, fences and posts for itself, so that the fence and the waits of one are
// beside the copies of the thirty others of its multiprocessor: a chunk is a chain of dependent
// steps, and many chains at once hide it. (MSCCL++ divides a kernel into roles by blocks, NCCL has
// one more warp for the fence; a chain a warp needs no barrier in the block at all.)
//
// In a step a warp serves its peers together, one thread each waiting and posting, so that they
// share a fence. Beside a middle they are all peers: then the roles take about equally long
// whatever the number of ranks, as a middle reads as many chunks as a sender stores. With a warp a
// peer, middles were what a call waited for, and most warps of a block were idle
// (docs/experiments.md, "Lanes"). lane_shape() in launch_params.hpp has the warps of each
// collective.
//
// The lanes of a block meet those of the same block on every other rank and no other, so blocks
// need not be on their GPUs all at once.
//
// Progress: order the events of a lane by step, and in a step sends before combining before
// placing. Each wait is for an event before it (a slot is freed by an event kBulkSlots steps
// earlier, or as its receiver begins the call), and each warp does its own in that order, so some
// event can always happen.
//
// NOTE [Chunk numbers]
// For each lane, of each hop, and pair of ranks the chunks are counted from the group's start,
// modulo 2^32: by the receiver's `filled`, the sender's `freed`, and both ends' BulkCount. A call
// adds what the sizes of its pieces say (a piece between two ranks may have any size), and at least
// one where the pair communicates at all, so that the sizes at both ends are compared
// (ChunkHeader).
//
// The slot of a call's last chunk is given back by the next call in which the pair communicates, as
// it begins, where the fence is beside the wait for the first chunk; at the end of a call it would
// be what the kernel's end waits for. The sender needs that slot for the second chunk of that call.
//
// NOTE [Direct chunks]
// A rank whose output lies in symmetric memory tells each sender of the last hop, with the first
// chunk's number, where its piece is to go: it announces a target. The sender stores the chunks
// there that it begins after it has seen that; those before went to slots. The header says which it
// was. So nobody waits for an announcement, a rank without symmetric memory does nothing, and the
// others need not know of it. Chunks are counted, posted and given back alike.
//
// The announcement comes after what the rank's stream did before, and is taken back with the last
// chunk, so that a number which comes again after 2^32 chunks finds none. Where a rank gives up,
// a sender that has not noticed it may still store to the output.
#pragma once

#include "kernels/gpu/device/call_end.cuh"
#include "kernels/gpu/interface/bulk_params.hpp"

namespace symm {

inline constexpr unsigned kBulkWarps = kBulkThreads / kWarpThreads;
// Up to so many bytes a lane has one chunk of a piece: what is beside it are the chunks of other
// lanes, and each chunk costs a fence on the way.
inline constexpr std::uint32_t kMostOnlyChunk = 12 * 1024;
static_assert(kLeastBulkSlot >= kLeastChunk);  // so that a chunk fits in a slot

template <int N>
class Lane {
 public:
  using Params = BulkParams<kWireRanks<N>>;

  __device__ explicit Lane(const Params& params) : params_(params) {
    const unsigned warps = params.warps_of_lane;
    const unsigned with_warps = kBulkWarps / warps;
    const unsigned of_block =
        params.lanes_of_block < with_warps ? params.lanes_of_block : with_warps;
    const unsigned warp = threadIdx.x / kWarpThreads;
    const unsigned in_block = warp / warps;
    if (in_block < of_block) warp_ = params.warps[warp % warps];
    lanes_ = gridDim.x * of_block;
    lane_ = blockIdx.x * of_block + in_block;
  }

  __device__ int rank() const { return params_.rank; }
  __device__ int world_size() const { return N == 0 ? params_.world_size : N; }
  __device__ std::uint32_t number() const { return lane_; }  // of the launch
  __device__ LocalState& local() const {
    return *reinterpret_cast<LocalState*>(segment(rank()) + params_.local);
  }

  // Of this warp. One that is in no lane has none.
  __device__ bool has_role(LaneRole role) const { return (warp_.role & role) != 0; }
  __device__ bool serves_all() const { return warp_.parts == 1; }
  // Whether `peer` is among those of its role.
  __device__ bool serves(int peer) const {
    const int away = peer - rank() + (peer < rank() ? world_size() : 0);
    return away != 0 && static_cast<unsigned>(away - 1) % warp_.parts == warp_.part;
  }

  // How a piece is cut: what its size alone says, so that both its ends cut it alike.
  struct Cut {
    std::uint32_t chunk;  // bytes of a chunk
    std::uint32_t steps;  // chunks of this lane

    // Of the chunk that begins at `offset` of a piece.
    __device__ std::uint32_t bytes_of(std::uint64_t piece_bytes, std::uint64_t offset) const {
      return offset < piece_bytes
                 ? static_cast<std::uint32_t>(min_size(piece_bytes - offset, chunk))
                 : 0;
    }
  };
  __device__ Cut cut(std::uint64_t bytes) const {
    const auto units = static_cast<std::uint32_t>((bytes + kChunkUnit - 1) / kChunkUnit);
    const std::uint32_t most = params_.slot_bytes / kChunkUnit;
    const std::uint32_t of_lane = divided_up(units, lanes_);
    std::uint32_t rounds = divided_up(of_lane, most);
    if (rounds < 2) rounds = of_lane > kMostOnlyChunk / kChunkUnit ? 2 : 1;
    const std::uint32_t fair = divided_up(of_lane, rounds);
    const std::uint32_t least = kLeastChunk / kChunkUnit;
    const std::uint32_t of_chunk = fair < least ? least : fair;
    const std::uint32_t chunks = units == 0 ? 1 : divided_up(units, of_chunk);
    return {of_chunk * kChunkUnit, chunks > lane_ ? (chunks - lane_ - 1) / lanes_ + 1 : 0};
  }
  // Where the lane's chunk `step` of a piece begins.
  __device__ std::uint64_t offset_of(const Cut& cut, std::uint32_t step) const {
    return (static_cast<std::uint64_t>(step) * lanes_ + lane_) * cut.chunk;
  }

  // Of `owner`: what `peer` says of a hop.
  __device__ BulkSignal& signal(int owner, int hop, int peer) const {
    return reinterpret_cast<BulkSignal*>(segment(owner) + params_.signals)[place(hop, peer)];
  }
  __device__ BulkCount& count(int hop, int peer) const {
    return reinterpret_cast<BulkCount*>(segment(rank()) + params_.counts)[place(hop, peer)];
  }
  // Of `owner`, for chunk `number` of `sender`.
  __device__ std::byte* slot(int owner, int hop, int sender, std::uint32_t number) const {
    const auto senders = static_cast<unsigned>(world_size() - 1);
    const std::uint64_t of_sender = static_cast<std::uint64_t>(lane_of(hop)) * senders +
                                    static_cast<unsigned>(sender > owner ? sender - 1 : sender);
    return segment(owner) + params_.slots +
           (of_sender * kBulkSlots + number % kBulkSlots) * params_.slot_bytes;
  }

  // Where a chunk goes.
  struct Destination {
    std::byte* to;
    bool direct;
  };
  // Of chunk `number` to `receiver`, the `step`-th of the call, that begins at `offset` of its
  // piece. By the thread that has waited for its slot. `whole`: chunks in units of 16 bytes alone
  // can go directly.
  __device__ Destination destination(int hop, int receiver, std::uint32_t number,
                                     std::uint32_t step, std::uint64_t offset, bool whole) const {
    if (params_.has_table && whole) {
      std::uint64_t location = 0;
      std::uint64_t first = 0;
      load_relaxed_pair(
          reinterpret_cast<const std::uint64_t*>(&signal(rank(), hop, receiver).target), &location,
          &first);
      if (first == target_first(number - step)) {
        std::byte* const to = address_of(receiver, location);
        // Later chunks have waited for a slot that was given back after the announcement.
        if (step < kBulkSlots) acquire_for_later_work();
        if (to != nullptr) return {to + offset, true};
      }
    }
    return {slot(receiver, hop, rank(), number), false};
  }

  // Of a piece of this rank's output; 0 where it must come through slots.
  __device__ BufferLocation location_of(const BulkPiece& piece) const {
    const SymmetricRange& range = params_.output;
    const auto offset = static_cast<std::uint64_t>(piece.data - range.data);
    const bool inside = offset < range.bytes && piece.bytes <= range.bytes - offset;
    return inside && is_aligned(piece.data, kUnitBytes) ? range.location + offset : 0;
  }
  // By the thread that receives the piece, before its first chunk and behind its last.
  __device__ void announce(int hop, int sender, std::uint32_t first,
                           BufferLocation location) const {
    release_earlier_work();
    store_target(hop, sender, location, target_first(first));
  }
  __device__ void withdraw(int hop, int sender) const { store_target(hop, sender, 0, 0); }

  // Waits of one thread; false where the launch must end.
  __device__ bool await_chunk(int hop, int sender, std::uint32_t number) const {
    return await(&signal(rank(), hop, sender).filled, number + 1, sender);
  }
  __device__ bool await_slot(int hop, int receiver, std::uint32_t number) const {
    return await(&signal(rank(), hop, receiver).freed, number + 1 - kBulkSlots, receiver);
  }

  // By one thread, behind a barrier of the warp that has stored the chunk, or loaded it.
  // `piece_bytes`: with kDirectChunk where it is in no slot.
  __device__ void post_chunk(int hop, int receiver, std::uint32_t number,
                             std::uint64_t piece_bytes) const {
    write_header(hop, receiver, number, piece_bytes);
    store_release(&signal(receiver, hop, rank()).filled, number + 1);
  }
  __device__ void free_slot(int hop, int sender, std::uint32_t number) const {
    store_release(&signal(sender, hop, rank()).freed, number + 1);
  }
  // That of the call before, where this call's chunks begin with number `first`.
  __device__ void free_last_slot(int hop, int sender, std::uint32_t first) const {
    free_slot(hop, sender, first - 1);
  }

  // The same of both for one peer, behind one fence: chunk `posted` of hop 2 where `posts`, chunk
  // `freed` of hop 1 where `frees`.
  __device__ void post_and_free(int peer, bool posts, std::uint32_t posted,
                                std::uint64_t piece_bytes, bool frees, std::uint32_t freed) const {
    if (posts) write_header(1, peer, posted, piece_bytes);
    release_earlier_work();
    if (posts) store_relaxed(&signal(peer, 1, rank()).filled, posted + 1);
    if (frees) store_relaxed(&signal(peer, 0, rank()).freed, freed + 1);
  }

  // Of a chunk that has come.
  __device__ ChunkHeader header_of(int hop, int sender, std::uint32_t number) const {
    std::uint64_t bytes = 0;
    std::uint64_t factor = 0;
    load_relaxed_pair(reinterpret_cast<const std::uint64_t*>(
                          &signal(rank(), hop, sender).headers[number % kBulkSlots]),
                      &bytes, &factor);
    return {bytes, __builtin_bit_cast(double, factor)};
  }
  // False, and reported, where the piece has another size than here.
  __device__ bool has_size(const ChunkHeader& header, int sender, std::uint64_t mine) const {
    const std::uint64_t theirs = header.bytes & ~kDirectChunk;
    if (theirs == mine) return true;
    fail_group(local(), *global_pointer(params_.page), DeviceFault::kCountMismatch, sender,
               collective_number(local()), false, theirs, mine);
    return false;
  }

 private:
  __device__ std::byte* segment(int rank) const { return global_pointer(params_.segments[rank]); }
  __device__ std::uint32_t lane_of(int hop) const {
    return hop == 0 ? lane_ : params_.second_hop_lanes + lane_;
  }
  __device__ std::uint32_t place(int hop, int peer) const {
    return lane_of(hop) * static_cast<unsigned>(world_size()) + static_cast<unsigned>(peer);
  }

  // In this process; null where this rank does not know the segment.
  __device__ std::byte* address_of(int peer, BufferLocation location) const {
    const std::uint64_t number = (location >> kLocationShift) - 1;
    const std::uint64_t offset = location & ((std::uint64_t{1} << kLocationShift) - 1);
    const auto* bases = reinterpret_cast<const std::uint64_t*>(segment(rank()) + params_.table);
    const std::uint64_t place =
        number * static_cast<unsigned>(world_size()) + static_cast<unsigned>(peer);
    auto* const base = reinterpret_cast<std::byte*>(load_relaxed(&bases[place]));
    return base == nullptr ? nullptr : base + offset;
  }
  __device__ void store_target(int hop, int sender, BufferLocation location,
                               std::uint64_t first) const {
    store_relaxed_pair(reinterpret_cast<std::uint64_t*>(&signal(sender, hop, rank()).target),
                       location, first);
  }

  __device__ void write_header(int hop, int receiver, std::uint32_t number,
                               std::uint64_t piece_bytes) const {
    ChunkHeader& header = signal(receiver, hop, rank()).headers[number % kBulkSlots];
    store_relaxed_pair(reinterpret_cast<std::uint64_t*>(&header), piece_bytes,
                       __builtin_bit_cast(std::uint64_t, params_.factor));
  }

  __device__ bool await(const std::uint32_t* counter, std::uint32_t target, int peer) const {
    std::uint64_t first_look = 0;
    for (std::uint32_t polls = 1; !counter_reached(counter, target); ++polls) {
      if ((polls & (params_.poll_period - 1)) != 0) {
        pause_poll();
        continue;
      }
      first_look = look_up(&local(), params_.page, params_.timeout_ns, peer, first_look);
      if (first_look == 0) return false;
    }
    return true;
  }

  const Params& params_;
  LaneWarp warp_{};
  std::uint32_t lane_;
  std::uint32_t lanes_;  // of the launch, in a hop
};

}  // namespace symm
