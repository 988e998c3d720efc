// The messages of a batch from a rank to itself: which recv takes which send. Each such pair is a
// copy inside the rank's memory; nothing of it is sent.
//
// They match as messages between two ranks do: by tag, in the order of the batch. What could never
// end is refused, before anything of the batch has started.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "symm_mem/group/local_group.hpp"

namespace symm {

class SelfMessages {
 public:
  // Places in the batch.
  struct Pair {
    std::size_t send;
    std::size_t recv;
  };

  // `group` must outlive the object.
  SelfMessages(const LocalGroup& group, int rank) : group_(group), rank_(rank) {}

  // One end, at `place` of the batch. Throws Error(kMismatch) where it meets an end
  // of another size.
  void add(std::size_t place, bool is_send, std::int64_t tag, std::uint64_t bytes);

  // After the last end: throws Error(kInvalidArgument) where one has met no other end.
  void check_all_met() const;

  // In the order in which the pairs began.
  const std::vector<Pair>& pairs() const { return pairs_; }

 private:
  struct Open {
    std::size_t pair;
    bool is_send;
    std::int64_t tag;
    std::uint64_t bytes;
  };

  const LocalGroup& group_;
  const int rank_;
  std::vector<Pair> pairs_;
  std::vector<Open> open_;  // pairs with one end, in the order of the batch
};

}  // namespace symm
