// Which segments of a group no rank has any more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace symm {

// NOTE [Freed segments]
// A rank frees its memory of a segment when it likes; peers may read the segment in calls until
// they have freed theirs. So each rank posts in every rendezvous the ids of what it has freed, and
// a segment goes once all lists have its id. A rendezvous can succeed on some ranks alone: then the
// others never have the segment and never free it, and would keep it there for good. So a rank also
// posts what peers have posted and it has not.
//
// An id is the number of the rendezvous, the same on every rank. All members are local.
// Thread safety: none.
class FreedSegments {
 public:
  static constexpr std::size_t kMostPosted = 128;
  using Ids = std::vector<std::uint64_t>;

  // This rank has segment `id` from now on.
  void join(std::uint64_t id) { is_freed_[id] = false; }
  // Nothing where this rank has none of that id.
  void free(std::uint64_t id);
  // This rank has it no longer, whatever peers have.
  void forget(std::uint64_t id) { is_freed_.erase(id); }

  // What this rank posts: the lowest ids.
  Ids posted() const;
  // `lists`: what the ranks have posted in one rendezvous, before any segment of a later one is
  // freed here. Returns what all have freed, which this rank then no longer posts.
  Ids take(std::span<const std::span<const std::uint64_t>> lists);

 private:
  std::map<std::uint64_t, bool> is_freed_;  // also of segments that this rank never had: true
};

}  // namespace symm
