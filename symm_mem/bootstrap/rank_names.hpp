// How messages of the peer mesh name ranks.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace symm {

// "rank 3" or "ranks 1, 3".
inline std::string rank_list(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  return text;
}

}  // namespace symm
