#include "symm_mem/group/freed_segments.hpp"

namespace symm {

void FreedSegments::free(std::uint64_t id) {
  const auto found = is_freed_.find(id);
  if (found != is_freed_.end()) found->second = true;
}

FreedSegments::Ids FreedSegments::posted() const {
  Ids ids;
  for (const auto& [id, freed] : is_freed_) {
    if (ids.size() == kMostPosted) break;
    if (freed) ids.push_back(id);
  }
  return ids;
}

FreedSegments::Ids FreedSegments::take(std::span<const std::span<const std::uint64_t>> lists) {
  std::map<std::uint64_t, std::size_t> ranks_that_freed;
  for (const auto& list : lists) {
    for (const std::uint64_t id : list) ++ranks_that_freed[id];
  }
  Ids everywhere;
  for (const auto& [id, ranks] : ranks_that_freed) {
    if (ranks < lists.size()) {
      is_freed_.try_emplace(id, true);
    } else {
      everywhere.push_back(id);
      is_freed_.erase(id);
    }
  }
  return everywhere;
}

}  // namespace symm
