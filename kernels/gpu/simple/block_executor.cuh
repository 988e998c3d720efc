// The executor of a GPU: a block of threads. Block c of a launch is channel c, with slots, counters
// and a slice of the message of its own; blocks of one launch never wait for each other.
//
// NOTE [Channels]
// The data that a channel publishes is in its slots in this rank's segment (or in place); peers
// read it there. Flags are stored into the peers' ChannelSignals, so that every rank polls its own
// memory. All operations are cooperative: every thread of the block makes the same call, and each
// ends with a barrier of the block. Waits are not inlined: algorithms call them in many places, and
// they take microseconds.
#pragma once

#include "kernels/algorithms/executor.hpp"
#include "kernels/gpu/device/block_reduce.cuh"
#include "kernels/gpu/device/wait.cuh"

namespace symm {

// In shared memory: the buffer locations of the peers in this call, and the sources of a reduction.
struct ChannelState {
  const void* sources[kMaxDeviceRanks];
  std::uint64_t location[kMaxDeviceRanks];
  double factor[kMaxDeviceRanks];
  bool located[kMaxDeviceRanks];
};

template <class Reducer>
class BlockExecutor {
 public:
  __device__ BlockExecutor(const GroupParams& group, const CollectiveParams& call, Waiter& waiter,
                           ChannelState& state)
      : group_(group),
        call_(call),
        waiter_(waiter),
        state_(state),
        epoch_(local_state(group).channel_epoch[blockIdx.x]) {}

  // Location exchange: stores this rank's buffer location at every peer, once that peer has
  // finished with the one that was stored there before.
  __device__ bool begin() {
    const int peer = static_cast<int>(threadIdx.x);
    bool ok = true;
    if (peer < world_size()) {
      state_.located[peer] = false;
      if (peer == rank()) {
        state_.factor[peer] = call_.factor;
      } else {
        ok = await_done(peer, epoch_ + 1 - kSlots);
        auto* location_words =
            reinterpret_cast<std::uint64_t*>(&signal_at(peer, rank()).locations[epoch_ % kSlots]);
        if (ok) {
          store_relaxed_pair(location_words, call_.location,
                             __builtin_bit_cast(std::uint64_t, call_.factor));
        }
      }
    }
    return block_all(ok);
  }

  // False where a peer gave up before this block had read the peer's memory. Where this rank's data
  // was read in place, waits until no peer reads it any more; then advances the channel's counter
  // past this call.
  __device__ bool end() {
    const int peer = static_cast<int>(threadIdx.x);
    bool ok = true;
    if (peer < world_size() && peer != rank()) {
      ok = !has_read_in_place(peer) || stands(peer);
      if (ok && in_place()) ok = await_done(peer, epoch_ + steps_);
    }
    if (!block_all(ok)) return false;
    if (threadIdx.x == 0) local_state(group_).channel_epoch[blockIdx.x] = epoch_ + steps_;
    return true;
  }

  __device__ Waiter& waiter() const { return waiter_; }
  __device__ const ChannelState& state() const { return state_; }
  __device__ int rank() const { return group_.rank; }
  __device__ int world_size() const { return group_.world_size; }
  __device__ std::size_t chunk_bytes() const { return call_.slot_bytes; }
  __device__ std::size_t element_bytes() const {
    return known_value<Reducer::kElementBytes>(call_.element_bytes);
  }
  __device__ std::size_t accumulate_bytes() const { return Reducer::accumulate_bytes(facts()); }
  __device__ bool in_place() const { return call_.location != 0; }

  __device__ Slice slice(std::size_t bytes) const {
    const std::size_t even = align_up((bytes + gridDim.x - 1) / gridDim.x, kCacheLine);
    const std::size_t begin = min_size(even * blockIdx.x, bytes);
    return {begin, min_size(even, bytes - begin)};
  }

  __device__ bool stage(std::uint32_t step, std::size_t slot_offset, const std::byte* source,
                        std::size_t bytes) {
    if (in_place()) return true;
    std::byte* destination = open_slot(step);
    if (destination == nullptr) return false;
    copy(destination + slot_offset, source, bytes);
    return true;
  }

  __device__ SYMM_OUTLINED_METHOD std::byte* open_slot(std::uint32_t step) {
    took(step);
    const std::uint64_t needed = epoch_ + step + 1 - kSlots;
    if (!has_reached(credit_, needed)) {
      const int peer = static_cast<int>(threadIdx.x);
      const bool waits = peer < world_size() && peer != rank();
      if (!block_all(!waits || await_done(peer, needed))) return nullptr;
      credit_ = needed;
    }
    return slot(rank(), step);
  }

  __device__ void publish(std::uint32_t step) {
    took(step);
    signal_peers(&ChannelSignal::ready, step);
  }

  __device__ SYMM_OUTLINED_METHOD bool await(int peer, std::uint32_t step) {
    took(step);
    return block_all(threadIdx.x != 0 || await_ready(peer, step));
  }

  __device__ SYMM_OUTLINED_METHOD bool await_all(std::uint32_t step) {
    took(step);
    const int peer = static_cast<int>(threadIdx.x);
    const bool waits = peer < world_size() && peer != rank();
    return block_all(!waits || await_ready(peer, step));
  }

  __device__ SYMM_OUTLINED_METHOD const std::byte* source(int peer, std::uint32_t step,
                                                          std::size_t slot_offset,
                                                          std::size_t input_offset) const {
    const std::uint64_t location = state_.location[peer];
    if (location == 0) return slot(peer, step) + slot_offset;
    const auto* table =
        reinterpret_cast<std::byte* const*>(segment_of(group_, rank()) + group_.layout.table);
    const std::uint64_t number = (location >> kLocationShift) - 1;
    const std::uint64_t offset = location & ((std::uint64_t{1} << kLocationShift) - 1);
    return table[number * static_cast<std::uint64_t>(world_size()) +
                 static_cast<std::uint64_t>(peer)] +
           offset + input_offset;
  }

  __device__ void list_source(int rank, const std::byte* source) const {
    if (threadIdx.x == 0) state_.sources[rank] = source;
  }
  __device__ const void* const* sources() const {
    __syncthreads();
    return state_.sources;
  }

  __device__ std::byte* slot(int owner, std::uint32_t step) const {
    const std::uint64_t index =
        static_cast<std::uint64_t>(blockIdx.x) * kSlots + (epoch_ + step) % kSlots;
    return segment_of(group_, owner) + group_.layout.slots + index * group_.layout.slot_bytes;
  }

  __device__ void read_done(std::uint32_t step) {
    took(step);
    signal_peers(&ChannelSignal::done, step);
  }

  __device__ void copy(std::byte* destination, const std::byte* source, std::size_t bytes) const {
    block_copy(destination, source, bytes);
    __syncthreads();
  }

  __device__ void reduce(std::byte* destination, const void* const* sources,
                         std::size_t count) const {
    Reducer::reduce(destination, sources, count, facts());
    __syncthreads();
  }
  __device__ void reduce_to(std::byte* slot, std::byte* destination, const void* const* sources,
                            std::size_t count) const {
    reduce(slot != nullptr ? slot : destination, sources, count);
    if (slot != nullptr && destination != nullptr) {
      copy(destination, slot, count * element_bytes());
    }
  }

  __device__ void accumulate(std::byte* out, const std::byte* in, const std::byte* source,
                             std::size_t count) const {
    Reducer::accumulate(out, in, source, count, facts(), rank());
    __syncthreads();
  }

  __device__ void finish(std::byte* destination, const std::byte* in, const std::byte* source,
                         std::size_t count) const {
    Reducer::finish(destination, in, source, count, facts(), rank());
    __syncthreads();
  }

  __device__ bool count_mismatch(int peer, std::uint64_t theirs, std::uint64_t mine) {
    return waiter_.fail(DeviceFault::kCountMismatch, peer, theirs, mine);
  }

 private:
  // The signal of `sender` to this channel of `receiver`.
  __device__ ChannelSignal& signal_at(int receiver, int sender) const {
    auto* signals = reinterpret_cast<ChannelSignal*>(segment_of(group_, receiver) +
                                                     group_.layout.channel_signals);
    return signals[blockIdx.x * static_cast<unsigned>(world_size()) +
                   static_cast<unsigned>(sender)];
  }

  __device__ bool has_read_in_place(int peer) const {
    return state_.located[peer] && state_.location[peer] != 0;
  }

  // After the block's reads of the peer's memory, before this call ends: the look of NOTE [Memory
  // of a rank that gives up] in symm_mem/group/local_group.hpp. One load over the link.
  __device__ SYMM_OUTLINED_METHOD bool stands(int peer) {
    acquire_for_later_work();
    const auto& theirs =
        *reinterpret_cast<const LocalState*>(segment_of(group_, peer) + group_.layout.local);
    return load_relaxed(&theirs.dead) == 0 || waiter_.fail(DeviceFault::kPeerGaveUp, peer);
  }

  __device__ bool await_done(int peer, std::uint64_t target) {
    const std::uint64_t* done = &signal_at(rank(), peer).done;
    return waiter_.wait(peer, [=] { return counter_reached(done, target); });
  }

  // By one thread. Also takes in the peer's buffer location, at the first step of the call.
  __device__ bool await_ready(int peer, std::uint32_t step) {
    const ChannelSignal& signal = signal_at(rank(), peer);
    const std::uint64_t* ready = &signal.ready;
    const std::uint64_t target = epoch_ + step + 1;
    if (!waiter_.wait(peer, [=] { return counter_reached(ready, target); })) return false;
    if (!state_.located[peer]) {
      const auto* location_words =
          reinterpret_cast<const std::uint64_t*>(&signal.locations[epoch_ % kSlots]);
      std::uint64_t factor = 0;
      load_relaxed_pair(location_words, &state_.location[peer], &factor);
      state_.factor[peer] = __builtin_bit_cast(double, factor);
      state_.located[peer] = true;
    }
    return true;
  }

  __device__ SYMM_OUTLINED_METHOD void signal_peers(std::uint64_t ChannelSignal::*counter,
                                                    std::uint32_t step) {
    release_before_barrier();
    __syncthreads();
    const int peer = static_cast<int>(threadIdx.x);
    if (peer < world_size() && peer != rank()) {
      release_after_barrier();
      store_relaxed(&(signal_at(peer, rank()).*counter), epoch_ + step + 1);
    }
  }

  __device__ void took(std::uint32_t step) { steps_ = step + 1 > steps_ ? step + 1 : steps_; }

  __device__ auto facts() const { return Reducer::Rules::facts_of(state_.factor, call_, group_); }

  const GroupParams& group_;
  const CollectiveParams& call_;
  Waiter& waiter_;
  ChannelState& state_;
  const std::uint64_t epoch_;  // steps of all calls of this channel before this one
  std::uint32_t steps_ = 0;    // steps of this call so far
  std::uint64_t credit_ = epoch_ + 1 - kSlots;  // every peer's done is known to have reached this
};

static_assert(Executor<BlockExecutor<NoReducer>>);

}  // namespace symm
