// What wire_speed.cu measures, what must come of it, and the floor of each call.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/core/collective.hpp"
#include "kernels/plan/algorithm.hpp"
#include "kernels/protocol/device_layout.hpp"

namespace symm::test {

inline constexpr std::size_t kSmallBytes = 32u << 20;
inline constexpr int kResidentBlocks = 128;  // that are on the GPU at once

inline constexpr std::size_t kElement = 2;  // a bfloat16

struct Cell {
  CollectiveKind kind;
  Algorithm algorithm;
  std::size_t bytes;
  const char* name;
  bool transfers = false;   // messages of ranks 0 and 1
  int blocks = 0;           // 0: as many as fit
  std::size_t columns = 0;  // of rows that are normed; 0: none are
  std::size_t width = 0;    // of norm_cells(): the columns, also where nothing is normed
  bool one_way = false;     // of messages: rank 0 sends and rank 1 receives

  std::size_t rows() const { return bytes / kElement / width; }
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

// All_reduce with a residual and a norm of its rows, beside all_reduce of as many bytes.
inline std::vector<Cell> norm_cells(std::size_t most) {
  std::vector<Cell> cells;
  for (const std::size_t columns : {4096, 8192, 11008, 16384, 28672}) {
    for (const std::size_t rows : {1, 8, 64, 512}) {
      const std::size_t bytes = rows * columns * kElement;
      if (bytes > most) continue;
      Cell cell{CollectiveKind::kAllReduce, Algorithm::kLL, bytes, "all_reduce"};
      cell.width = columns;
      cells.push_back(cell);
      cell.algorithm = Algorithm::kLLTwoShot;
      cell.name = "all_reduce two hops";
      cells.push_back(cell);
      cell.name = "all_reduce + norm";  // where it is not one launch, the norm behind two hops
      cell.columns = columns;
      cells.push_back(cell);
    }
  }
  return cells;
}

// Small whole numbers: every sum of eight is exact.
inline std::uint16_t bfloat16_of(int value) {
  const float wide = static_cast<float>(value);
  std::uint32_t bits = 0;
  std::memcpy(&bits, &wide, sizeof(bits));
  return static_cast<std::uint16_t>(bits >> 16);
}
inline double value_of(std::uint16_t bfloat16) {
  const std::uint32_t bits = static_cast<std::uint32_t>(bfloat16) << 16;
  float wide = 0;
  std::memcpy(&wide, &bits, sizeof(bits));
  return wide;
}
inline int input_value(int rank, std::size_t index) {
  return static_cast<int>(index % 13) + 3 * rank;
}
inline int residual_value(std::size_t index) { return static_cast<int>(index % 5); }
inline int weight_value(std::size_t column) { return static_cast<int>(column % 3) + 1; }
inline constexpr double kNormEps = 1e-3;

inline std::size_t share_of(const Cell& cell, int world) {
  return cell.bytes / kElement / static_cast<std::size_t>(world);
}
// What element `i` of rank's output must be; below 0: nothing is asked of it.
inline int expected(const Cell& cell, int world, int rank, std::size_t i) {
  const std::size_t each = share_of(cell, world);
  const auto sum = [world](std::size_t index) {
    int total = 0;
    for (int r = 0; r < world; ++r) total += input_value(r, index);
    return total;
  };
  const std::size_t own = each * static_cast<std::size_t>(rank);
  switch (cell.kind) {
    case CollectiveKind::kAllReduce:
      return sum(i) + (cell.columns != 0 ? residual_value(i) : 0);
    case CollectiveKind::kReduce:
      return rank == 0 ? sum(i) : -1;
    case CollectiveKind::kReduceScatter:
      return i < each ? sum(own + i) : -1;
    case CollectiveKind::kBroadcast:
      if (cell.one_way) return rank == 1 ? input_value(0, i) : -1;
      if (cell.transfers) return rank < 2 ? input_value(1 - rank, i) : -1;
      return input_value(0, i);
    case CollectiveKind::kScatter:
      return i < each ? input_value(0, own + i) : -1;
    case CollectiveKind::kAllToAll:
      return each > 0 && i / each < static_cast<std::size_t>(world)
                 ? input_value(static_cast<int>(i / each), own + i % each)
                 : -1;
    case CollectiveKind::kBarrier:
      return -1;
    default:
      if (cell.kind == CollectiveKind::kGather && rank != 0) return -1;
      return each > 0 && i / each < static_cast<std::size_t>(world)
                 ? input_value(static_cast<int>(i / each), i % each)
                 : -1;
  }
}
// Whether the rows of `normed` are the norms of those of `totals`, to the last place but one.
inline bool is_norm(const std::vector<std::uint16_t>& totals,
                    const std::vector<std::uint16_t>& normed, std::size_t columns) {
  for (std::size_t row = 0; row < totals.size(); row += columns) {
    double squares = 0;
    for (std::size_t i = row; i < row + columns; ++i) squares += std::pow(value_of(totals[i]), 2);
    const double scale = 1 / std::sqrt(squares / static_cast<double>(columns) + kNormEps);
    for (std::size_t i = 0; i < columns; ++i) {
      const double want = value_of(totals[row + i]) * scale * weight_value(i);
      if (!(std::abs(value_of(normed[row + i]) - want) <= want / 128)) return false;
    }
  }
  return true;
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
      if (cell.transfers) return (cell.one_way ? 1 : 2) * 4 * bytes;
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
    cells.push_back(cells.back());
    cells.back().name = "send to recv by messages";
    cells.back().one_way = true;
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
