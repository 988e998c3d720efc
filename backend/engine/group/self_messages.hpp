// The messages of a batch from a rank to itself: which recv takes which send. Each such pair is a
// copy inside the rank's memory; nothing of it is sent.
//
// They match as messages between two ranks do: by tag, in the order of the batch. What could never
// end is refused, before anything of the batch has started.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/core/error.hpp"
#include "kernels/gpu/interface/group_kernels.hpp"
#include "symm_mem/group/local_group.hpp"

namespace symm {

// One end of a message, as a group rank and what it gave.
struct MessageEnd {
  int rank;
  std::uint64_t bytes;
  Dtype dtype;

  bool fits(const MessageEnd& other) const { return bytes == other.bytes && dtype == other.dtype; }
};

// The error of a recv that does not fit its message, of oneself or of another rank.
Error end_mismatch(const LocalGroup& group, const MessageEnd& sender, const MessageEnd& receiver,
                   std::int64_t tag);

class SelfMessages {
 public:
  // Places in the batch.
  struct Pair {
    std::size_t send;
    std::size_t recv;
  };

  // `group` must outlive the object.
  explicit SelfMessages(const LocalGroup& group) : group_(group) {}

  // One end, at `place` of the batch. Throws Error(kMismatch) where it meets an end
  // of another size or dtype.
  void add(std::size_t place, const TransferOp& end);

  // After the last end: throws Error(kInvalidArgument) where one has met no other end.
  void check_all_met() const;

  // In the order in which the pairs began.
  const std::vector<Pair>& pairs() const { return pairs_; }

 private:
  struct Open {
    std::size_t pair;
    TransferOp end;
  };

  const LocalGroup& group_;
  std::vector<Pair> pairs_;
  std::vector<Open> open_;  // pairs with one end, in the order of the batch
};

}  // namespace symm
