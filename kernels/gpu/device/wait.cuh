// How a kernel waits for a peer, and how it ends when the peer does not come.
//
// NOTE [Giving up]
// A thread that waits looks, after every poll_period failed polls, at three things: whether the
// group is already dead, whether the host has set the abort word, whether the time-out has passed
// since its first such look. Whoever gives up first marks the group dead, so that every other wait
// and every later launch ends at once, and tells the host why. Nothing traps: the context stays
// usable. Polling itself reads device memory of this GPU only; the abort word, in host memory, is
// read once in poll_period polls of a wait that has already failed that often.
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

// True once the counter of a peer has reached `target`; what the peer released is seen then.
__device__ inline bool counter_reached(const std::uint32_t* counter, std::uint32_t target) {
  return acquire_if(counter, [=](std::uint32_t value) { return has_reached(value, target); });
}

// What Waiter::fail() does.
static __device__ SYMM_COLD void fail_group(LocalState& local, DevicePage& page, DeviceFault fault,
                                            int peer, ColdValue<std::uint64_t> number,
                                            ColdValue<bool> transfer, std::uint64_t theirs,
                                            std::uint64_t mine) {
  if (device_compare_exchange(&local.dead, 0u, 1u) != 0u) return;
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

  // What follows belongs to the next message.
  __device__ void next() {
    ++number_;
    first_look_ = 0;
  }

  // Polls `ready` until it returns true; false when the launch must end. `peer`: who is waited for,
  // which `ready` may change.
  template <class Ready>
  __device__ bool wait(const int& peer, const Ready& ready) {
    for (std::uint32_t polls = 1;; ++polls) {
      if (ready()) return true;
      if ((polls & (wait_.poll_period - 1)) == 0 && gives_up(peer)) return false;
    }
  }

  // Marks the group dead and tells the host why, unless somebody has done so. Returns false.
  __device__ SYMM_OUTLINED_METHOD bool fail(DeviceFault fault, int peer, std::uint64_t theirs = 0,
                                            std::uint64_t mine = 0) {
    fail_group(local_state(group_), page_of(group_), fault, peer, number_, transfer_, theirs, mine);
    return false;
  }

 private:
  // Not inlined, as fail(): kernels wait in many places and seldom come here.
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

  const GroupParams& group_;
  const WaitParams& wait_;
  std::uint64_t number_;
  std::uint64_t first_look_ = 0;
  bool transfer_;
};

}  // namespace symm
