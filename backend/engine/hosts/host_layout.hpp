// Which ranks of a group are on which host.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace symm {

// Hosts come in the order of their lowest group ranks, a host's ranks in the order of their group
// ranks. Follows from what the ranks say alone, so it is the same on every rank.
struct HostLayout {
  // `ids`: by group rank, what the rank says its host is.
  explicit HostLayout(const std::vector<std::string>& ids);

  std::vector<std::string> names;         // by host
  std::vector<std::vector<int>> members;  // by host: group ranks
  std::vector<int> host_of;               // by group rank
  std::vector<int> local_of;              // by group rank: its place in its host's members
  int rails = 0;                          // the fewest ranks of a host

  int world_size() const { return static_cast<int>(host_of.size()); }
  int host_count() const { return static_cast<int>(members.size()); }
  // The rank of `host` that stands for place `local` there, where the host may have fewer.
  int stand_in(int host, int local) const {
    const std::vector<int>& ranks = members[static_cast<std::size_t>(host)];
    return ranks[static_cast<std::size_t>(local) % ranks.size()];
  }
  // "node-a: ranks 0, 1; node-b: rank 2"
  std::string text() const;
};

}  // namespace symm
