// Signals between the ranks of one group through pads in host memory
// (kernels/protocol/signal_pad.hpp).
//
// A wait ends with the signal, with the time-out, or as soon as a rank that it needs has ended or
// left the group; the error names the ranks. After an error the pads may hold signals that nobody
// will take, so the channel is not to be used again by this group.
//
// Calls block, without Python's interpreter lock; each thread that signals at the same time needs a
// channel of its own. `timeout` is called when a wait turns out to be long, at most once.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/protocol/signal_pad.hpp"
#include "symm_mem/group/local_group.hpp"

namespace symm {

class HostSignals {
 public:
  using Timeout = std::function<std::chrono::milliseconds()>;

  // `pads` by group rank, each of `pad_bytes`; they and `group` must outlive the object.
  HostSignals(LocalGroup& group, std::vector<SignalSlot*> pads, std::size_t pad_bytes)
      : group_(group), pads_(std::move(pads)), pad_bytes_(pad_bytes) {}

  // Throw Error: kInvalidArgument for a channel or rank that is not there, kTimeout, kPeerLost.
  void barrier(int channel, const Timeout& timeout);
  void put(int destination, int channel, const Timeout& timeout);
  void wait(int source, int channel, const Timeout& timeout);

 private:
  class Patience;
  SignalSlot* slot(int owner, int channel, int writer) const {
    return pads_[static_cast<std::size_t>(owner)] +
           signal_slot(channel, group_.world_size(), writer);
  }
  bool is_full(int owner, int channel, int writer) const {
    return load_relaxed(slot(owner, channel, writer)) == kSignalFull;
  }

  LocalGroup& group_;
  std::vector<SignalSlot*> pads_;
  std::size_t pad_bytes_;
};

}  // namespace symm
