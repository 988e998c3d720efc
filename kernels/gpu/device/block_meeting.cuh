// The blocks of the same number of all ranks' launches meet before and after what they do with each
// other's memory.
//
// NOTE [Meetings]
// A block stores counters and the location of its rank's tensors into the MeetingSignal that each
// peer keeps for it, and polls its own memory. A call that has ended has seen `done` of every peer,
// each of which had read the locations before: so the next call may store over them, and nothing
// has two slots. All methods are cooperative: every thread of the block makes the same call.
#pragma once

#include "kernels/gpu/device/wait.cuh"

namespace symm {

class BlockMeeting {
 public:
  __device__ BlockMeeting(const GroupParams& group, const CollectiveParams& call, Waiter& waiter)
      : group_(group),
        call_(call),
        waiter_(waiter),
        number_(local_state(group).meetings[blockIdx.x] + 1),
        peer_(static_cast<int>(threadIdx.x)),
        has_peer_(peer_ < group.world_size && peer_ != group.rank) {}

  // True once this block of every rank's launch has begun: inputs are written and outputs free.
  // False where a peer does not come, or its tensors lie elsewhere.
  __device__ bool enter() {
    if (has_peer_) {
      store_relaxed_pair(words_of(signal_at(peer_, group_.rank).locations), call_.location,
                         __builtin_bit_cast(std::uint64_t, call_.factor));
    }
    tell(&MeetingSignal::entered);
    return block_all(!has_peer_ || (await(&MeetingSignal::entered) && has_same_locations()));
  }

  // True once this block of every rank has ended its accesses, and no peer gave up before. Advances
  // the block's counter past this call.
  __device__ bool leave() {
    tell(&MeetingSignal::done);
    if (!block_all(!has_peer_ || (stands() && await(&MeetingSignal::done)))) return false;
    if (threadIdx.x == 0) local_state(group_).meetings[blockIdx.x] = number_;
    return true;
  }

 private:
  // The signal of `sender` to this block of `receiver`.
  __device__ MeetingSignal& signal_at(int receiver, int sender) const {
    auto* signals = reinterpret_cast<MeetingSignal*>(segment_of(group_, receiver) +
                                                     group_.layout.meeting_signals);
    return signals[blockIdx.x * static_cast<unsigned>(group_.world_size) +
                   static_cast<unsigned>(sender)];
  }
  template <class Locations>
  __device__ static auto* words_of(Locations& locations) {
    return reinterpret_cast<std::uint64_t*>(&locations);
  }

  __device__ void tell(std::uint64_t MeetingSignal::*counter) {
    release_before_barrier();
    __syncthreads();
    if (!has_peer_) return;
    release_after_barrier();
    store_relaxed(&(signal_at(peer_, group_.rank).*counter), number_);
  }

  __device__ bool await(std::uint64_t MeetingSignal::*counter) {
    const std::uint64_t* theirs = &(signal_at(group_.rank, peer_).*counter);
    const std::uint64_t number = number_;
    return waiter_.wait(peer_, [=] { return counter_reached(theirs, number); });
  }

  __device__ bool has_same_locations() {
    std::uint64_t location = 0;
    std::uint64_t second = 0;
    load_relaxed_pair(words_of(signal_at(group_.rank, peer_).locations), &location, &second);
    const auto mine = __builtin_bit_cast(std::uint64_t, call_.factor);
    if (location != call_.location) {
      return waiter_.fail(DeviceFault::kAsymmetricUse, peer_, location, call_.location);
    }
    return second == mine || waiter_.fail(DeviceFault::kAsymmetricUse, peer_, second, mine);
  }

  // After the block's reads of the peer's memory: the look of NOTE [Memory of a rank that gives up]
  // in symm_mem/group/local_group.hpp. One load over the link.
  __device__ bool stands() {
    acquire_for_later_work();
    const auto& theirs =
        *reinterpret_cast<const LocalState*>(segment_of(group_, peer_) + group_.layout.local);
    return load_relaxed(&theirs.dead) == 0 || waiter_.fail(DeviceFault::kPeerGaveUp, peer_);
  }

  const GroupParams& group_;
  const CollectiveParams& call_;
  Waiter& waiter_;
  const std::uint64_t number_;  // of this call among those of the block
  const int peer_;              // this thread's
  const bool has_peer_;
};

}  // namespace symm
