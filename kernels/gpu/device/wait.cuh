// Waits of a kernel for a peer, and its end when the peer does not arrive.
//
// NOTE [Giving up]
// After every poll_period failed polls a waiting thread tests three conditions: the group is dead;
// the host has set the abort word; the time-out has passed since the first such test. The first
// thread that gives up marks the group dead, so that every other wait and every later launch ends
// at once, and reports the reason to the host. Nothing traps: the context stays usable. Polling
// reads device memory of this GPU only; the abort word, in host memory, is read once in poll_period
// polls of a wait that has already failed that often. That must be rare: reads over the host's bus
// by all warps of a large kernel follow one another and take up to a millisecond. With looks after
// 0.2 ms, ranks that were once that far apart kept each other looking, and calls of 1.8 ms took 10.
#pragma once

#include "kernels/core/atomics.hpp"
#include "kernels/gpu/interface/call_params.hpp"
#include "kernels/gpu/vendor/gpu_api.hpp"
#include "kernels/protocol/signal.hpp"

namespace symm {

__device__ inline std::byte* segment_of(const GroupParams& group, int rank) {
  return global_pointer(group.segments[rank]);
}

__device__ inline DevicePage& page_of(const GroupParams& group) {
  return *global_pointer(group.page);
}

__device__ inline LocalState& local_state(const GroupParams& group) {
  return *reinterpret_cast<LocalState*>(segment_of(group, group.rank) + group.layout.local);
}

// True once the counter of a peer has reached `target`; acquires what the peer released.
template <class Counter>
__device__ inline bool counter_reached(const Counter* counter, Counter target) {
  return acquire_if(counter, [=](Counter value) { return has_reached(value, target); });
}

// The body of Waiter::fail().
static __device__ SYMM_COLD void fail_group(LocalState& local, DevicePage& page, DeviceFault fault,
                                            int peer, ColdValue<std::uint64_t> number,
                                            ColdValue<bool> transfer, std::uint64_t theirs,
                                            std::uint64_t mine) {
  if (device_compare_exchange(&local.dead, 0u, 1u) != 0u) return;
  // Before the stream goes on to what may write to memory that a peer is still to read in place.
  release_earlier_work();
  DevicePage::Report& report = page.report;
  store_data(&report.peer, peer);
  store_data(&report.sequence, number);
  store_data(&report.transfer, transfer ? 1 : 0);
  store_data(&report.theirs, theirs);
  store_data(&report.mine, mine);
  store_release(&report.fault, static_cast<std::uint32_t>(fault));
}

class Waiter {
 public:
  // `number`: the sequence of the collective, or of the message where `transfer`.
  __device__ Waiter(const GroupParams& group, const WaitParams& wait, std::uint64_t number,
                    bool transfer)
      : group_(group), wait_(wait), number_(number), transfer_(transfer) {}

  // The next message begins.
  __device__ void next() {
    ++number_;
    first_look_ = 0;
  }

  // Polls `ready` until it returns true; false when the launch must end. `peer`: the rank that is
  // waited for, which `ready` may change.
  template <class Ready>
  __device__ bool wait(const int& peer, const Ready& ready) {
    for (std::uint32_t polls = 1;; ++polls) {
      if (ready()) return true;
      if (is_due(polls) && gives_up(peer)) return false;
    }
  }
  // For other loops: whether after so many polls gives_up() is due, which is true when the launch
  // must end.
  __device__ bool is_due(std::uint32_t polls) const {
    return (polls & (wait_.poll_period - 1)) == 0;
  }
  // Not inlined, like fail(): kernels wait in many places and seldom call this.
  __device__ SYMM_OUTLINED_METHOD bool gives_up(int peer) {
    if (load_relaxed(&local_state(group_).dead) != 0) return true;
    if (load_relaxed(&page_of(group_).abort) != 0) {
      fail(DeviceFault::kAborted, peer);
      return true;
    }
    const std::uint64_t now = device_clock_ns();
    if (first_look_ == 0) first_look_ = now;
    if (now - first_look_ < wait_.timeout_ns) return false;
    fail(DeviceFault::kTimeout, peer);
    return true;
  }

  // Marks the group dead and reports the fault to the host, unless another thread has done so.
  // Returns false.
  __device__ SYMM_OUTLINED_METHOD bool fail(DeviceFault fault, int peer, std::uint64_t theirs = 0,
                                            std::uint64_t mine = 0) {
    fail_group(local_state(group_), page_of(group_), fault, peer, number_, transfer_, theirs, mine);
    return false;
  }

 private:
  const GroupParams& group_;
  const WaitParams& wait_;
  std::uint64_t number_;
  std::uint64_t first_look_ = 0;
  bool transfer_;
};

}  // namespace symm
