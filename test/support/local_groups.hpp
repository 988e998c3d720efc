// Local groups whose ranks are threads of this process.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "symm_mem/group/local_group.hpp"
#include "test/support/memory_store.hpp"
#include "test/support/rank_threads.hpp"

namespace symm::test {

using Groups = std::vector<std::shared_ptr<LocalGroup>>;

inline constexpr std::chrono::milliseconds kTimeout{20000};

// Global ranks are 10, 11, ... so that the two kinds of rank differ.
inline LocalGroupConfig config_of(int rank, int world_size,
                                  std::chrono::milliseconds timeout = kTimeout) {
  std::vector<std::int64_t> global_ranks;
  for (int member = 0; member < world_size; ++member) global_ranks.push_back(10 + member);
  return {.group_name = "test",
          .rank = rank,
          .world_size = world_size,
          .global_ranks = std::move(global_ranks),
          .timeout = timeout,
          .payload = {}};
}

inline Groups connect_groups(int world_size, std::uint64_t first_exchange = 0) {
  MemoryStore store;
  Groups groups(static_cast<std::size_t>(world_size));
  run_ranks(world_size, [&](int rank) {
    LocalGroupConfig config = config_of(rank, world_size);
    config.first_exchange = first_exchange;
    groups[static_cast<std::size_t>(rank)] = LocalGroup::connect(store, config);
  });
  return groups;
}

inline LocalGroup& of(const Groups& groups, int rank) {
  return *groups[static_cast<std::size_t>(rank)];
}

// What `rank` says in exchange `number`: no two are the same, nor of the same size.
inline std::vector<std::uint8_t> message_of(int rank, int number) {
  std::vector<std::uint8_t> message(static_cast<std::size_t>(1 + (17 * rank + 5 * number) % 4000));
  for (std::size_t i = 0; i < message.size(); ++i) {
    message[i] = static_cast<std::uint8_t>(31 * rank + 7 * number + static_cast<int>(i));
  }
  return message;
}

// Exchange `number` of `group`, of these messages.
inline LocalGroup::Metadata<std::uint8_t> exchange(
    LocalGroup& group, int number, LocalGroup::Purpose purpose = LocalGroup::Purpose::kView,
    std::chrono::milliseconds timeout = kTimeout) {
  return group.exchange_metadata(purpose, message_of(group.rank(), number), Deadline(timeout));
}

}  // namespace symm::test
