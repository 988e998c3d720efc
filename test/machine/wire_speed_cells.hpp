// What wire_speed.cu measures, and the floor of each call.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "kernels/core/collective.hpp"
#include "kernels/plan/algorithm.hpp"
#include "kernels/protocol/device_layout.hpp"

namespace symm::test {

inline constexpr std::size_t kSmallBytes = 32u << 20;
inline constexpr int kResidentBlocks = 128;  // that are on the GPU at once

struct Cell {
  CollectiveKind kind;
  Algorithm algorithm;
  std::size_t bytes;
  const char* name;
  bool transfers = false;  // messages of ranks 0 and 1
  int blocks = 0;          // 0: as many as fit
};

inline std::vector<Cell> large_cells(std::size_t least, std::size_t most, int world,
                                     int ranks_of_gpu) {
  using enum CollectiveKind;
  struct Operation {
    CollectiveKind kind;
    const char* name;
  };
  std::vector<Cell> cells;
  for (std::size_t bytes = least; bytes <= most; bytes *= 4) {
    for (const Operation& op :
         {Operation{kAllReduce, "all_reduce"}, Operation{kReduceScatter, "reduce_scatter"},
          Operation{kAllGather, "all_gather"}, Operation{kBroadcast, "broadcast"},
          Operation{kReduce, "reduce"}, Operation{kGather, "gather"},
          Operation{kScatter, "scatter"}, Operation{kAllToAll, "all_to_all"}}) {
      const bool by_shares = op.kind == kAllToAll;  // which choose for themselves
      if (bytes <= std::size_t{4} << 20 && !by_shares) {
        cells.push_back({op.kind, op.kind == kAllReduce ? Algorithm::kLLTwoShot : Algorithm::kLL,
                         bytes, op.name});
      }
      if (by_shares) cells.push_back({op.kind, Algorithm::kPipelined, bytes, op.name, false, 64});
      for (const int blocks : {8, 16, 24, 32, 64}) {
        if (blocks * ranks_of_gpu > kResidentBlocks || by_shares) continue;
        cells.push_back({op.kind, Algorithm::kBulk, bytes, op.name, false, blocks});
      }
    }
    cells.push_back({kBroadcast, Algorithm::kPipelined, bytes, "send + recv", true});
  }
  return cells;
}

// Bytes that all ranks read and write at least, slots included: a message that goes to a peer is
// read, written to a slot, read there and written again.
inline double traffic(const Cell& cell, int world) {
  const double n = world;
  const double bytes = static_cast<double>(cell.bytes);
  const double part = bytes / n;
  switch (cell.kind) {
    case CollectiveKind::kAllReduce:
      return n * (2 * bytes + 2 * 2 * (n - 1) * part);
    case CollectiveKind::kReduce:
      return world == 2 ? 2 * bytes + 2 * bytes + bytes
                        : n * (bytes + 2 * (n - 1) * part) + 2 * (n - 1) * part + bytes;
    case CollectiveKind::kReduceScatter:
      return n * (bytes + part + 2 * (n - 1) * part);
    case CollectiveKind::kAllGather:
      return n * (part + bytes + 2 * (n - 1) * part);
    case CollectiveKind::kAllToAll:
      return n * (2 * bytes + 2 * (n - 1) * part);
    case CollectiveKind::kBroadcast:
      if (cell.transfers) return 2 * 4 * bytes;
      return bytes + 2 * (n - 1) * bytes + (n - 1) * bytes + bytes;
    default:  // gather, scatter
      return 2 * bytes + 2 * (n - 1) * part;
  }
}

// To `most` bytes; from 1 MiB on lanes beside the wires.
inline std::vector<Cell> cells_of(WireKind wire, bool counts, std::size_t most) {
  using enum CollectiveKind;
  std::vector<Cell> cells;
  constexpr std::size_t kKiB = 1024;
  constexpr std::size_t kMiB = 1024 * kKiB;
  for (std::size_t bytes : {std::size_t{64}, std::size_t{256}, 4 * kKiB, 16 * kKiB, 64 * kKiB,
                            256 * kKiB, 512 * kKiB, kMiB, 2 * kMiB, 3 * kMiB, 4 * kMiB, 6 * kMiB,
                            8 * kMiB, 12 * kMiB, 16 * kMiB, 20 * kMiB, 24 * kMiB, 32 * kMiB}) {
    if (bytes > most) break;
    const bool is_short = !counts || wire == WireKind::kLL;
    if (is_short && bytes != 256 && bytes != 65536 && bytes != 1u << 20) continue;
    cells.push_back({kAllReduce, Algorithm::kLL, bytes, "all_reduce"});
    cells.push_back({kAllReduce, Algorithm::kLLTwoShot, bytes, "all_reduce two hops"});
    cells.push_back({kReduceScatter, Algorithm::kLL, bytes, "reduce_scatter"});
    cells.push_back({kAllGather, Algorithm::kLL, bytes, "all_gather"});
    cells.push_back({kAllToAll, Algorithm::kPipelined, bytes, "all_to_all"});
    cells.push_back({kBroadcast, Algorithm::kLL, bytes, "broadcast"});
    if (bytes == (counts ? 64 : 256)) {
      cells.push_back({kBarrier, Algorithm::kLL, bytes, "barrier"});
    }
    if (!counts) continue;
    cells.push_back({kReduce, Algorithm::kLL, bytes, "reduce"});
    cells.push_back({kGather, Algorithm::kLL, bytes, "gather"});
    cells.push_back({kScatter, Algorithm::kLL, bytes, "scatter"});
    if (wire == WireKind::kLL) continue;
    cells.push_back({kBroadcast, Algorithm::kPipelined, bytes, "send + recv by messages", true});
    if (bytes < kMiB) continue;
    for (const auto& [kind, name] :
         {std::pair{kAllReduce, "all_reduce"}, std::pair{kReduceScatter, "reduce_scatter"},
          std::pair{kAllGather, "all_gather"}, std::pair{kBroadcast, "broadcast"},
          std::pair{kReduce, "reduce"}, std::pair{kGather, "gather"},
          std::pair{kScatter, "scatter"}}) {
      cells.push_back({kind, Algorithm::kBulk, bytes, name});
    }
  }
  return cells;
}

}  // namespace symm::test
