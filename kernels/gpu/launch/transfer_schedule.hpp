// Divides a batch of messages into launches. Host, free of vendor headers.
//
// NOTE [Order of messages]
// A launch holds a bounded number of messages, and those of a later launch wait for the earlier
// one, so two ranks that divide their batches differently must not wait for each other. Messages
// are therefore ordered by (d, k, t): d is the distance from sender to receiver, t the tag channel,
// and k counts the messages from that sender to that receiver on it in this batch. Both ends of a
// message give it the same (d, k, t). A rank has at most two messages of one order, one that it
// sends and one that it receives, and no launch divides them: else all ranks of a ring could wait
// for what they have in the next launch. So all messages that have the smallest order of those
// unfinished are in launches that run at both of their ends, and can progress.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <tuple>
#include <vector>

#include "kernels/gpu/interface/call_params.hpp"
#include "kernels/gpu/interface/group_kernels.hpp"

namespace symm {

class TransferSchedule {
 public:
  // `most_blocks` of a collective.
  TransferSchedule(int rank, int world_size, const DeviceLayout& layout, bool poisons,
                   int most_blocks = kMaxChannels);

  // Before the first message to or from `peer`; else kLL.
  void set_wire(int peer, WireKind wire) { wires_[static_cast<std::size_t>(peer)] = wire; }

  // How many ranks share the GPU that most of them share; before the first message, else 1.
  void set_ranks_of_gpu(int ranks);

  // Calls `launch` for each launch that `ops` need. `ops` as for GroupKernels::transfer. A launch
  // carries at most one message of this rank to itself, which waits for no rank, so any launch will
  // do. Reuses its memory: warm calls of no more messages than before allocate nothing.
  void plan(std::span<const TransferOp> ops,
            const std::function<void(const TransferParams&)>& launch);

 private:
  struct Entry {
    int distance;          // d
    std::uint32_t number;  // k
    TransferGroup group;   // of this message alone: no first, no count
    TransferItem item;
    Dtype dtype;

    std::tuple<int, std::uint32_t, int> order() const {
      return {distance, number, group.tag_channel};
    }
  };

  void list(std::span<const TransferOp> ops);
  int channels_of(const Entry& entry) const;
  std::size_t fitting(std::span<const Entry> rest) const;
  std::size_t fill(std::size_t first);

  const int rank_;
  const int world_size_;
  const DeviceLayout layout_;
  const int most_blocks_;  // of a group
  int most_blocks_of_launch_ = 0;
  std::vector<WireKind> wires_;  // by peer
  std::vector<Entry> entries_;
  std::vector<DeviceCopy> own_;        // without those that move nothing
  std::vector<std::uint32_t> counts_;  // by peer, direction and tag channel
  TransferParams params_{};
};

}  // namespace symm
