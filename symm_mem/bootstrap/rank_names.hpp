// How messages name the ranks of a group: by group rank, with the global rank beside it where that
// is known and is another number. Local.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/error.hpp"

namespace symm {

class RankNames {
 public:
  RankNames() = default;
  // By group rank; empty where they are unknown.
  explicit RankNames(std::vector<std::int64_t> global_ranks)
      : global_ranks_(std::move(global_ranks)) {}

  // "rank 1" or "rank 1 (global rank 5)"; with `more`, "rank 1 (pid 7)" or "rank 1 (global rank 5,
  // pid 7)".
  std::string name(int rank, const std::string& more = "") const {
    return "rank " + number(rank, more);
  }

  // "rank 3", "ranks 1, 3" or "ranks 1 (global rank 5), 3 (global rank 7)".
  std::string list(const std::vector<int>& ranks) const {
    std::string text = ranks.size() == 1 ? "rank" : "ranks";
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      text += (i == 0 ? " " : ", ") + number(ranks[i], "");
    }
    return text;
  }

 private:
  std::string number(int rank, const std::string& more) const {
    const auto index = static_cast<std::size_t>(rank);
    std::string beside;
    if (index < global_ranks_.size() && global_ranks_[index] != rank) {
      beside = text_of("global rank ", global_ranks_[index]);
    }
    if (!more.empty()) beside += (beside.empty() ? "" : ", ") + more;
    return beside.empty() ? std::to_string(rank) : text_of(rank, " (", beside, ")");
  }

  std::vector<std::int64_t> global_ranks_;
};

}  // namespace symm
