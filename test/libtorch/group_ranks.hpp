// Ranks of a c10d group that are forked processes and meet through a file; nothing of torch runs
// before the fork.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <symm/ProcessGroupSymm.hpp>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <vector>

#include "test/support/forked_child.hpp"
#include "test/support/temporary_directory.hpp"

namespace symm::test {

inline constexpr char kGroup[] = "test_group";

// A c10d group of the name kGroup whose backend is symm.
inline c10::intrusive_ptr<c10d::ProcessGroup> make_group(const std::string& path, int rank,
                                                         int size) {
  auto options = c10::make_intrusive<ProcessGroupSymm::Options>();
  options->timeout = std::chrono::seconds(30);
  auto store = c10::make_intrusive<c10d::FileStore>(path, size);
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
  group->setBackend(c10::kCPU, c10d::ProcessGroup::BackendType::CUSTOM,
                    c10::make_intrusive<ProcessGroupSymm>(store, rank, size, options));
  group->setGroupName(kGroup);
  c10d::register_process_group(kGroup, group);
  return group;
}

// Runs `body(rank)` on forked ranks of a group; what a rank finds wrong stands on its output.
inline void run_ranks(int size, const std::function<void(int)>& body) {
  const TemporaryDirectory directory;
  std::vector<std::unique_ptr<ForkedChild>> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.push_back(std::make_unique<ForkedChild>([&, rank] {
      try {
        const auto group = make_group(directory.path() + "/store", rank, size);
        body(rank);
        group->barrier()->wait();
        c10d::unregister_process_group(kGroup);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
      std::fflush(stdout);
      return ::testing::Test::HasFailure() ? 1 : 0;
    }));
  }
  for (int rank = 0; rank < size; ++rank) EXPECT_EQ(ranks[rank]->wait(), 0) << "rank " << rank;
}

// Distinct by rank and position.
inline at::Tensor pattern(c10::IntArrayRef sizes, int rank) {
  return torch::arange(c10::multiply_integers(sizes), torch::kInt).view(sizes) + 1000 * (rank + 1);
}

}  // namespace symm::test
