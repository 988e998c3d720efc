// What a communicator is made with.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/plan/algorithm.hpp"

namespace symm {

struct CommunicatorConfig {
  std::string group_name;
  int rank = 0;  // group rank
  int world_size = 1;
  std::vector<std::int64_t> global_ranks;  // by group rank; for messages. Empty: same as group rank
  std::chrono::milliseconds timeout{1'800'000};    // default of every operation, and of set-up
  Algorithm algorithm = Algorithm::kAuto;          // forced for every collective that has it
  std::size_t workspace_bytes = 8u << 20;          // a rank; multiple of 64 KiB, 512 KiB to 1 GiB
  std::size_t device_workspace_bytes = 64u << 20;  // on a GPU; multiple of 1 MiB, 4 MiB to 4 GiB
  int max_device_blocks = 64;                      // of a collective on a GPU: 1 to 64
  // Reductions give the same bits by every algorithm, so algorithms that cannot are refused. The
  // same on every rank.
  bool deterministic = true;
  int busy_threads = 0;        // LocalGroupConfig::busy_threads
  bool high_priority = false;  // raises nothing on the host; the torch-facing half reads it
};

}  // namespace symm
