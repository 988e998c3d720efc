#include "symm_mem/group/live_groups.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "kernels/core/error.hpp"
#include "symm_mem/bootstrap/rank_names.hpp"
#include "symm_mem/group/local_group.hpp"
#include "symm_mem/process/fork_guard.hpp"

namespace symm {
namespace {

// Never destroyed, for threads that outlive statics. Use it under a ForkHold.
std::vector<std::weak_ptr<LocalGroup>>& known_groups() {
  static auto* const groups = new std::vector<std::weak_ptr<LocalGroup>>;
  return *groups;
}

bool is_aborted(const LocalGroup& group) {
  return group.failed() && group.failure().code() == ErrorCode::kAborted;
}

// In the order in which they were made.
std::vector<std::shared_ptr<LocalGroup>> groups_in_use() {
  std::vector<std::shared_ptr<LocalGroup>> groups;
  {
    const ForkHold hold;
    for (const std::weak_ptr<LocalGroup>& known : known_groups()) {
      if (auto group = known.lock()) groups.push_back(std::move(group));
    }
  }
  std::erase_if(groups, [](const auto& group) {
    return group->in_forked_child() || group->has_left() || is_aborted(*group);
  });
  return groups;
}

std::optional<int> find_member(const LocalGroup& group, std::int64_t global_rank) {
  const std::vector<int>& members = group.global_ranks();
  const auto found = std::ranges::find(members, global_rank);
  if (found == members.end()) return std::nullopt;
  return static_cast<int>(found - members.begin());
}

}  // namespace

void add_to_live_groups(const std::shared_ptr<LocalGroup>& group) {
  const ForkHold hold;
  std::erase_if(known_groups(), [](const auto& known) { return known.expired(); });
  known_groups().push_back(group);
}

SetUpWatch::SetUpWatch(std::string prefix, int rank, std::vector<std::int64_t> global_ranks)
    : prefix_(std::move(prefix)), rank_(rank), global_ranks_(std::move(global_ranks)) {
  if (global_ranks_.empty()) return;
  for (const std::shared_ptr<LocalGroup>& group : groups_in_use()) {
    const bool has_all = std::ranges::all_of(
        global_ranks_, [&](std::int64_t rank) { return find_member(*group, rank).has_value(); });
    if (!has_all) continue;
    parent_ = group;
    break;
  }
}

void SetUpWatch::look() const {
  if (global_ranks_.empty()) return;
  const std::shared_ptr<LocalGroup> parent = parent_.lock();
  if (parent && !parent->has_left() && is_aborted(*parent)) {
    throw Error(ErrorCode::kAborted, prefix_, "group \"", parent->group_name(),
                "\", which has all its ranks, was aborted during set-up");
  }
  const std::vector<std::shared_ptr<LocalGroup>> live = groups_in_use();
  for (int rank = 0; rank < static_cast<int>(global_ranks_.size()); ++rank) {
    if (rank != rank_) look_at(rank, live);
  }
}

void SetUpWatch::look_at(int rank, const std::vector<std::shared_ptr<LocalGroup>>& live) const {
  const std::int64_t global = global_ranks_[static_cast<std::size_t>(rank)];
  for (const std::shared_ptr<LocalGroup>& group : live) {
    const std::optional<int> member = find_member(*group, global);
    if (!member || group->has_left(*member)) continue;
    // All groups that it is still in show its end.
    if (!group->has_ended(*member)) return;
    throw Error(ErrorCode::kPeerLost, prefix_,
                RankNames(global_ranks_)
                    .name(rank, text_of("pid ", group->mesh().peer(*member).process.pid)),
                " has ended, as group \"", group->group_name(), "\" shows");
  }
}

}  // namespace symm
