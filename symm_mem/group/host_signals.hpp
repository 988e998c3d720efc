// Signals between the ranks of one group through pads in host memory
// (kernels/protocol/signal_pad.hpp).
//
// A wait ends with the signal, with the time-out, or as soon as a rank that it needs has ended or
// left the group; the error names the ranks. A put or a wait that gives up has changed nothing. A
// barrier that gives up withdraws its signals (NOTE [Withdrawn signals] in signal_pad.hpp): a late
// rank raises in place of passing it, and so does every later use of the channel by this rank.
//
// Calls block, without Python's interpreter lock; each thread that signals at the same time needs a
// channel of its own. `timeout` is called when a wait turns out to be long, at most once.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>

#include "kernels/gpu/interface/signal_kernels.hpp"
#include "kernels/protocol/signal_pad.hpp"
#include "symm_mem/group/local_group.hpp"

namespace symm {

class HostSignals {
 public:
  using Timeout = std::function<std::chrono::milliseconds()>;

  // `group` and the addresses of `pads` must outlive the object.
  HostSignals(LocalGroup& group, const SignalPads& pads) : group_(group), pads_(pads) {}

  // Throw Error: kInvalidArgument for a channel or rank that is not there, kTimeout, kPeerLost.
  void barrier(int channel, const Timeout& timeout);
  void put(int destination, int channel, const Timeout& timeout);
  void wait(int source, int channel, const Timeout& timeout);

 private:
  class Patience;
  enum class Standing;
  // The puts and the takes of a barrier.
  void meet(int channel, Patience& patience);
  // Where this rank stands with a peer for whose slot a put, or a take, waits.
  Standing before_put(int destination, int channel) const;
  Standing before_take(int source, int channel) const;
  SignalSlot* slot(int owner, int channel, int writer) const {
    return reinterpret_cast<SignalSlot*>(pads_.addresses[static_cast<std::size_t>(owner)]) +
           signal_slot(channel, group_.world_size(), writer);
  }

  LocalGroup& group_;
  const SignalPads pads_;
};

}  // namespace symm
