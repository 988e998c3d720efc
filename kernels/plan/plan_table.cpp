// The compiled tables.
#include <initializer_list>
#include <utility>
#include <vector>

#include "kernels/core/platform.hpp"
#include "kernels/plan/plan.hpp"
#include "kernels/protocol/control_region.hpp"

namespace symm {

using enum CollectiveKind;
using enum Algorithm;

namespace {

constexpr int kAny = kMaxRanks;
constexpr std::uint64_t kAll = PlanRow::kNoLimit;

}  // namespace

// The threshold and chunk of each row come from the measurements in docs/benchmarks.md ("How the
// table was made").
const PlanTable& PlanTable::built_in() {
  constexpr std::uint64_t kSmall = kSmallSlotBytes;
  constexpr std::size_t kSlot = kSmallSlotBytes;
  constexpr std::size_t kChunk = 256 * 1024;
  static const PlanTable table(PlanTarget::kHost,
                               {
                                   {kAllReduce, 2, kAny, kSmall, kOneShot, kSlot},
                                   {kAllReduce, 2, kAny, kAll, kTwoShot, kChunk},
                                   {kReduce, 2, kAny, kSmall, kOneShot, kSlot},
                                   {kReduce, 2, kAny, kAll, kTwoShot, kChunk},
                                   {kBroadcast, 2, kAny, kSmall, kOneShot, kSlot},
                                   {kBroadcast, 2, kAny, kAll, kPipelined, kChunk},
                                   {kAllGather, 2, kAny, kSmall, kOneShot, kSlot},
                                   {kAllGather, 2, kAny, kAll, kPipelined, kChunk},
                                   {kGather, 2, kAny, kSmall, kOneShot, kSlot},
                                   {kGather, 2, kAny, kAll, kPipelined, kChunk},
                                   {kScatter, 2, kAny, kSmall, kOneShot, kSlot},
                                   {kScatter, 2, kAny, kAll, kPipelined, kChunk},
                                   {kReduceScatter, 2, kAny, kSmall, kOneShot, kSlot},
                                   {kReduceScatter, 2, kAny, kAll, kPipelined, kChunk},
                                   {kAllToAll, 2, kAny, kSmall, kOneShot, kSlot},
                                   {kAllToAll, 2, kAny, kAll, kPipelined, kChunk},
                                   {kBarrier, 2, kAny, kAll, kOneShot, kSlot},
                               });
  return table;
}

namespace {

constexpr std::uint64_t kKiB = 1024;
constexpr std::uint64_t kMiB = 1024 * kKiB;

// Up to how many staged bytes wires are faster than lanes.
struct WireLimits {
  int min_world;
  int max_world;
  int channels;           // blocks of a launch over a wire
  int bulk_channels;      // and of one by lanes
  std::uint64_t one_hop;  // of all_reduce; beyond it two
  std::uint64_t all_reduce;
  std::uint64_t reduce;
  std::uint64_t broadcast;
  std::uint64_t all_gather;
  std::uint64_t gather;
  std::uint64_t scatter;
  std::uint64_t reduce_scatter;
};

void add_rows(const WireLimits& limits, std::vector<PlanRow>& rows) {
  const auto add = [&](CollectiveKind kind, std::uint64_t most_bytes, Algorithm algorithm,
                       int channels) {
    rows.push_back({kind, limits.min_world, limits.max_world, most_bytes, algorithm, 0, channels});
  };
  const auto divide = [&](CollectiveKind kind, std::uint64_t limit, Algorithm wire) {
    add(kind, limit, wire, limits.channels);
    add(kind, kAll, kBulk, limits.bulk_channels);
  };
  add(kAllReduce, limits.one_hop, kLL, limits.channels);
  divide(kAllReduce, limits.all_reduce, kLLTwoShot);
  divide(kReduce, limits.reduce, kLL);
  divide(kBroadcast, limits.broadcast, kLL);
  divide(kAllGather, limits.all_gather, kLL);
  divide(kGather, limits.gather, kLL);
  divide(kScatter, limits.scatter, kLL);
  divide(kReduceScatter, limits.reduce_scatter, kLL);
  add(kAllToAll, kAll, kPipelined, kMaxChannels);
  add(kBarrier, kAll, kLL, 1);
}

PlanTable table_of(std::initializer_list<WireLimits> limits) {
  constexpr std::uint64_t kCopyEngineBytes = 64 * kMiB;
  std::vector<PlanRow> rows;
  for (const WireLimits& range : limits) add_rows(range, rows);
  return {PlanTarget::kGpu, std::move(rows), kCopyEngineBytes};
}

}  // namespace

// The limits of two ranks are measured (docs/experiments.md, "Wires and pipelines", of lines
// "Rounds of tiles"), and those of lines among four (the same); the others are estimated from the
// bytes that a rank sends and from the boxes, which are smaller.
const PlanTable& PlanTable::built_in_gpu(WireKind wire) {
  static const PlanTable ll = table_of({{.min_world = 2,
                                         .max_world = 2,
                                         .channels = 64,
                                         .bulk_channels = 64,
                                         .one_hop = 256 * kKiB,
                                         .all_reduce = kMiB,
                                         .reduce = 2 * kMiB,
                                         .broadcast = kMiB,
                                         .all_gather = kMiB,
                                         .gather = kMiB,
                                         .scatter = 2 * kMiB,
                                         .reduce_scatter = 2 * kMiB},
                                        {.min_world = 3,
                                         .max_world = 4,
                                         .channels = 64,
                                         .bulk_channels = 64,
                                         .one_hop = 128 * kKiB,
                                         .all_reduce = kMiB,
                                         .reduce = kMiB,
                                         .broadcast = kMiB,
                                         .all_gather = 512 * kKiB,
                                         .gather = 512 * kKiB,
                                         .scatter = kMiB,
                                         .reduce_scatter = kMiB},
                                        {.min_world = 5,
                                         .max_world = kAny,
                                         .channels = 32,
                                         .bulk_channels = 32,
                                         .one_hop = 32 * kKiB,
                                         .all_reduce = 512 * kKiB,
                                         .reduce = 512 * kKiB,
                                         .broadcast = 512 * kKiB,
                                         .all_gather = 128 * kKiB,
                                         .gather = 128 * kKiB,
                                         .scatter = 512 * kKiB,
                                         .reduce_scatter = 512 * kKiB}});
  static const PlanTable line = table_of({{.min_world = 2,
                                           .max_world = 2,
                                           .channels = 64,
                                           .bulk_channels = 64,
                                           .one_hop = 512 * kKiB,
                                           .all_reduce = 14 * kMiB,
                                           .reduce = 14 * kMiB,
                                           .broadcast = 8 * kMiB,
                                           .all_gather = 8 * kMiB,
                                           .gather = 10 * kMiB,
                                           .scatter = 16 * kMiB,
                                           .reduce_scatter = 24 * kMiB},
                                          {.min_world = 3,
                                           .max_world = 3,
                                           .channels = 64,
                                           .bulk_channels = 64,
                                           .one_hop = 128 * kKiB,
                                           .all_reduce = 4 * kMiB,
                                           .reduce = 4 * kMiB,
                                           .broadcast = 4 * kMiB,
                                           .all_gather = kMiB,
                                           .gather = kMiB,
                                           .scatter = 4 * kMiB,
                                           .reduce_scatter = 4 * kMiB},
                                          {.min_world = 4,
                                           .max_world = 4,
                                           .channels = 64,
                                           .bulk_channels = 64,
                                           .one_hop = 128 * kKiB,
                                           .all_reduce = 10 * kMiB,
                                           .reduce = 14 * kMiB,
                                           .broadcast = 4 * kMiB,
                                           .all_gather = 3 * kMiB,
                                           .gather = 2 * kMiB,
                                           .scatter = 20 * kMiB,
                                           .reduce_scatter = 14 * kMiB},
                                          {.min_world = 5,
                                           .max_world = kAny,
                                           .channels = 32,
                                           .bulk_channels = 32,
                                           .one_hop = 32 * kKiB,
                                           .all_reduce = 2 * kMiB,
                                           .reduce = 2 * kMiB,
                                           .broadcast = 2 * kMiB,
                                           .all_gather = 256 * kKiB,
                                           .gather = 256 * kKiB,
                                           .scatter = 2 * kMiB,
                                           .reduce_scatter = 2 * kMiB}});
  return wire == WireKind::kLL ? ll : line;
}

}  // namespace symm
