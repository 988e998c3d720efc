// Device side of signal pads: put, take, and the end of a kernel whose peer does not arrive (NOTE
// [Signals that fail] in signal_kernels.hpp, NOTE [Giving up] in wait.cuh).
#pragma once

#include "kernels/core/atomics.hpp"
#include "kernels/gpu/interface/signal_params.hpp"
#include "kernels/gpu/vendor/gpu_api.hpp"
#include "kernels/protocol/signal_pad.hpp"

namespace symm {

class SignalThread {
 public:
  __device__ explicit SignalThread(const SignalParams& params) : params_(params) {}

  // Puts a signal of this rank to `peer` on `channel`; false when the kernel must end.
  __device__ bool put(int peer, int channel) {
    SignalSlot* const slot = slot_at(peer, channel);
    return poll(slot, peer, channel, true, [slot] { return try_put(slot); });
  }

  // Takes the signal of `peer` on `channel`; false when the kernel must end.
  __device__ bool take(int peer, int channel) {
    SignalSlot* const slot =
        params_.pads[params_.rank] + signal_slot(channel, params_.world_size, peer);
    return poll(slot, peer, channel, false, [slot] { return try_take(slot); });
  }

  // Takes the signal to `peer` back, whether it was taken or not.
  __device__ void withdraw_from(int peer, int channel) { withdraw(slot_at(peer, channel)); }

  __device__ bool is_dead() const { return load_relaxed(&params_.state->dead) != 0; }

  // Ends this kernel and all later ones, for splits that cannot be served.
  __device__ void refuse(const RowExchangeShape& shape, const SplitFault& fault) {
    if (device_compare_exchange(&params_.state->dead, 0u, 1u) != 0u) return;
    SignalPage::Report& report = params_.page->report;
    store_data(&report.operation, params_.operation);
    store_words(&report.shape, shape);
    store_words(&report.split, fault);
    store_release(&report.fault, static_cast<std::uint32_t>(DeviceFault::kWrongSplits));
  }

 private:
  // Any type of whole words; to memory of the host.
  template <class T>
  __device__ static void store_words(T* to, const T& from) {
    struct Words {
      std::uint32_t word[sizeof(T) / sizeof(std::uint32_t)];
    };
    const auto words = __builtin_bit_cast(Words, from);
#pragma unroll
    for (std::size_t i = 0; i < sizeof(T) / sizeof(std::uint32_t); ++i) {
      store_data(reinterpret_cast<std::uint32_t*>(to) + i, words.word[i]);
    }
  }

  // The slot at `peer` that this rank fills.
  __device__ SignalSlot* slot_at(int peer, int channel) const {
    return params_.pads[peer] + signal_slot(channel, params_.world_size, params_.rank);
  }

  template <class Try>
  __device__ bool poll(const SignalSlot* slot, int peer, int channel, bool putting,
                       const Try& attempt) {
    std::uint64_t first_look = 0;
    for (std::uint32_t polls = 1;; ++polls) {
      if (attempt()) return true;
      if ((polls & (params_.poll_period - 1)) != 0) continue;
      const bool gone = is_gone(peer);
      if (gone && attempt()) return true;  // what a rank did before it went counts
      if (gives_up(slot, peer, channel, putting, gone, first_look)) return false;
    }
  }

  __device__ bool is_gone(int rank) const {
    return (load_acquire(&params_.page->gone) >> rank & 1) != 0;
  }

  __device__ SYMM_OUTLINED_METHOD bool gives_up(const SignalSlot* slot, int peer, int channel,
                                                bool putting, bool gone,
                                                std::uint64_t& first_look) {
    if (is_dead()) return true;
    if (load_relaxed(slot) == kSignalWithdrawn) {
      report(DeviceFault::kPeerGaveUp, putting ? params_.rank : peer, channel, putting);
      return true;
    }
    if (gone) {
      report(DeviceFault::kAborted, peer, channel, putting);
      return true;
    }
    const std::uint64_t now = device_clock_ns();
    if (first_look == 0) first_look = now;
    if (params_.timeout_ns == 0 || now - first_look < params_.timeout_ns) return false;
    report(DeviceFault::kTimeout, peer, channel, putting);
    return true;
  }

  // The first thread that gives up reports to the host.
  __device__ void report(DeviceFault fault, int peer, int channel, bool putting) {
    if (device_compare_exchange(&params_.state->dead, 0u, 1u) != 0u) return;
    SignalPage::Report& report = params_.page->report;
    store_data(&report.peer, peer);
    store_data(&report.channel, channel);
    store_data(&report.operation, params_.operation);
    store_data(&report.putting, putting ? 1 : 0);
    store_data(&report.timeout_ns, params_.timeout_ns);
    store_release(&report.fault, static_cast<std::uint32_t>(fault));
  }

  const SignalParams& params_;
};

// A barrier of all ranks on `channel`, by a block with a thread for each rank, or more. A rank that
// gives up withdraws its signals (NOTE [Withdrawn signals] in signal_pad.hpp), and gets false.
__device__ inline bool signal_barrier(const SignalParams& params, int channel) {
  const int peer = static_cast<int>(threadIdx.x);
  const bool has_peer = peer < params.world_size && peer != params.rank;
  SignalThread thread(params);
  const bool met = !has_peer || (thread.put(peer, channel) && thread.take(peer, channel));
  if (block_all(met)) return true;
  if (has_peer) thread.withdraw_from(peer, channel);
  return false;
}

}  // namespace symm
