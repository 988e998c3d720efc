// Which messages the ranks have started with each other, compared between their two ends.
//
// NOTE [Message notes]
// Messages of two ranks with one tag belong together in the order in which they were started,
// whatever device their tensors are on: the n-th send with a tag meets the n-th recv. The host's
// engine and a GPU's kernels each match what they are given; neither can find a send of a CPU
// tensor whose recv is for a GPU, and kernels compare sizes, not dtypes. So the host of a rank
// notes every message that it starts, in its Inbox for the peer, and whoever waits compares the
// notes of the peers with its own. A note is in a ring of kMessageNotes, so that only ends among
// the last few of a pair are compared: a message that cannot end stays among them.
//
// No ordinal is known for a tag, and nothing with it is noted any more, once a recv from any rank
// has asked for it, a message with it was captured into a graph, or was refused late; nor for more
// than kMostTags tags of a peer.
//
// Thread safety: every member may be called from any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "backend/engine/group/group_memory.hpp"
#include "kernels/core/error.hpp"
#include "kernels/gpu/interface/group_kernels.hpp"
#include "symm_mem/device/device_runtime.hpp"
#include "symm_mem/group/local_group.hpp"

namespace symm {

class MessageComparison {
 public:
  // `memory` is null in a group of one, where nothing is noted. Both must outlive the object.
  MessageComparison(const LocalGroup& group, GroupMemory* memory);

  // This rank starts `op`, whose tensor is on `device`, with another rank.
  void note(const TransferOp& op, DeviceKind device);
  // The ordinals of messages with the tag of `op` are not known any more; `op.peer` may be any
  // (kAnySource).
  void lose_count(const TransferOp& op);

  // Compares what is there by now: the error that names both ends of a message that do not belong
  // together. Two loads a peer where nothing is new.
  std::optional<Error> difference();

 private:
  static constexpr std::size_t kMostTags = 1024;
  struct Tag {
    std::uint64_t count = 0;
    bool known = true;
  };
  struct Direction {
    std::unordered_map<std::int64_t, Tag> tags;
    std::uint64_t compared_mine = 0;  // notes that were there when they were last compared
    std::uint64_t compared_theirs = 0;
  };

  MessageNotes& notes(int owner, int peer, bool of_sends) const;
  std::optional<Error> compare(int peer, bool is_send);

  const LocalGroup& group_;
  GroupMemory* const memory_;
  std::mutex mutex_;
  std::vector<std::array<Direction, 2>> peers_;  // [..][1]: sends
};

}  // namespace symm
