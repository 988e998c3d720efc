// The local groups of this process that are in use, which know of a rank's end before a group that
// is being made does.
//
// NOTE [Ranks that never publish]
// A rank that ends before it has published its record has no connection by which the others would
// notice. But it was connected to them in other groups, most often the default one: so while a rank
// waits in set-up, it looks at the connections of the groups that have the same global ranks as
// members. A group that was left, destroyed or aborted says nothing: a peer may close its
// connections then in good order.
//
// Local, thread safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace symm {

class LocalGroup;

// Does not keep it alive.
void add_to_live_groups(const std::shared_ptr<LocalGroup>& group);

// What a rank that sets a group up watches meanwhile.
class SetUpWatch {
 public:
  // Of the members of the new group by group rank; none where they are unknown, which watches
  // nothing. `prefix` is for messages.
  SetUpWatch(std::string prefix, int rank, std::vector<std::int64_t> global_ranks);

  // Throws Error: kPeerLost for a member whose process has ended, kAborted where the first group
  // that has all members was aborted since the construction.
  void look() const;

 private:
  void look_at(int rank, const std::vector<std::shared_ptr<LocalGroup>>& live) const;

  const std::string prefix_;
  const int rank_;
  const std::vector<std::int64_t> global_ranks_;
  std::weak_ptr<LocalGroup> parent_;
};

}  // namespace symm
