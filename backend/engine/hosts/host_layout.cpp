#include "backend/engine/hosts/host_layout.hpp"

#include <algorithm>

#include "kernels/core/error.hpp"

namespace symm {

HostLayout::HostLayout(const std::vector<std::string>& ids) {
  for (std::size_t rank = 0; rank < ids.size(); ++rank) {
    const auto host = static_cast<std::size_t>(std::ranges::find(names, ids[rank]) - names.begin());
    if (host == names.size()) {
      names.push_back(ids[rank]);
      members.emplace_back();
    }
    host_of.push_back(static_cast<int>(host));
    local_of.push_back(static_cast<int>(members[host].size()));
    members[host].push_back(static_cast<int>(rank));
  }
  const auto fewer = [](const auto& a, const auto& b) { return a.size() < b.size(); };
  rails = static_cast<int>(std::ranges::min_element(members, fewer)->size());
}

std::string HostLayout::text() const {
  std::string text;
  for (std::size_t host = 0; host < names.size(); ++host) {
    text +=
        (host == 0 ? "" : "; ") + names[host] + (members[host].size() == 1 ? ": rank" : ": ranks");
    for (std::size_t i = 0; i < members[host].size(); ++i) {
      text += text_of(i == 0 ? " " : ", ", members[host][i]);
    }
  }
  return text;
}

}  // namespace symm
