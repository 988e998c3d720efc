#include "kernels/plan/plan.hpp"

#include <algorithm>
#include <initializer_list>

#include "kernels/core/error.hpp"
#include "kernels/core/platform.hpp"
#include "kernels/protocol/control_region.hpp"
#include "kernels/protocol/device_layout.hpp"

namespace symm {

namespace {

std::string row_name(const PlanRow& row) {
  return std::string(collective_name(row.kind)) + " row for worlds " +
         std::to_string(row.min_world) + " to " + std::to_string(row.max_world) + ", max_bytes " +
         (row.max_bytes == PlanRow::kNoLimit ? "unlimited" : std::to_string(row.max_bytes));
}

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, "tuning table: " + message);
}

void check_chunks(const PlanRow& row) {
  if (row.channels != 0) {
    refuse(row_name(row) + ": channels are for gpu_rows, got " + std::to_string(row.channels));
  }
  if (row.chunk_bytes < kLeastChunkBytes || row.chunk_bytes % kCacheLine != 0) {
    refuse(row_name(row) + ": chunk_bytes must be a multiple of " + std::to_string(kCacheLine) +
           " and at least " + std::to_string(kLeastChunkBytes) + ", got " +
           std::to_string(row.chunk_bytes));
  }
}

void check_channels(const PlanRow& row) {
  if (row.chunk_bytes != 0) {
    refuse(row_name(row) + ": chunk_bytes are for rows of the host, got " +
           std::to_string(row.chunk_bytes));
  }
  if (row.channels < 1 || row.channels > kMaxChannels) {
    refuse(row_name(row) + ": channels must be in [1, " + std::to_string(kMaxChannels) + "], got " +
           std::to_string(row.channels));
  }
}

void check_row(PlanTarget target, const PlanRow& row) {
  if (!has_algorithm(row.kind, row.algorithm, target)) {
    refuse(row_name(row) + ": algorithm " + std::string(algorithm_name(row.algorithm)) +
           " does not carry out this collective; it has " + algorithm_list(row.kind, target));
  }
  if (row.algorithm == Algorithm::kCopyEngine) {
    refuse(row_name(row) + ": copy engines are chosen by copy_engine_bytes, not by rows");
  }
  target == PlanTarget::kHost ? check_chunks(row) : check_channels(row);
  if (row.min_world < 2 || row.max_world > kMaxRanks || row.min_world > row.max_world) {
    refuse(row_name(row) +
           ": expected 2 <= min_world <= max_world <= " + std::to_string(kMaxRanks));
  }
}

// Rows of one kind must tile worlds 2..kMaxRanks and, in each range of worlds, all sizes.
void check_cover(CollectiveKind kind, const std::vector<PlanRow>& rows) {
  const std::string name(collective_name(kind));
  int next_world = 2;
  for (std::size_t i = 0; i < rows.size();) {
    const PlanRow& first = rows[i];
    if (first.min_world != next_world) {
      refuse(name + ": worlds from " + std::to_string(next_world) + " on are " +
             (first.min_world > next_world ? "missing" : "covered twice") +
             " (next row: " + row_name(first) + ")");
    }
    std::uint64_t reached = 0;
    bool open = true;
    for (; i < rows.size() && rows[i].min_world == first.min_world; ++i) {
      if (rows[i].max_world != first.max_world) {
        refuse(row_name(rows[i]) + " overlaps the " + row_name(first));
      }
      if (!open || (reached != 0 && rows[i].max_bytes <= reached)) {
        refuse(row_name(rows[i]) + " is never reached: rows before it cover its sizes");
      }
      reached = rows[i].max_bytes;
      open = reached != PlanRow::kNoLimit;
    }
    if (open) {
      refuse(name + ": sizes above " + std::to_string(reached) + " bytes are missing for worlds " +
             std::to_string(first.min_world) + " to " + std::to_string(first.max_world));
    }
    next_world = first.max_world + 1;
  }
  if (next_world != kMaxRanks + 1) {
    refuse(name + ": worlds from " + std::to_string(next_world) + " on are missing");
  }
}

}  // namespace

Algorithm parse_algorithm(std::string_view text, std::string_view source) {
  const auto found = std::find(kAlgorithmNames.begin(), kAlgorithmNames.end(), text);
  if (found == kAlgorithmNames.end()) {
    std::string names;
    for (const std::string_view name : kAlgorithmNames) {
      names += (names.empty() ? "" : ", ") + std::string(name);
    }
    throw Error(ErrorCode::kInvalidArgument, std::string(source) + ": expected one of " + names +
                                                 "; got '" + std::string(text) + "'");
  }
  return static_cast<Algorithm>(found - kAlgorithmNames.begin());
}

namespace {

using enum Algorithm;

constexpr unsigned set_of(std::initializer_list<Algorithm> algorithms) {
  unsigned set = 0;
  for (const Algorithm algorithm : algorithms) set |= 1u << static_cast<unsigned>(algorithm);
  return set;
}

// By CollectiveKind: the algorithms that have it on the host and on a GPU.
constexpr unsigned kAlgorithms[kCollectiveKindCount][2] = {
    {set_of({kOneShot, kTwoShot, kRing}),
     set_of({kLL, kLLTwoShot, kBulk, kMultimem})},                                   // all_reduce
    {set_of({kOneShot, kTwoShot}), set_of({kLL, kBulk})},                            // reduce
    {set_of({kOneShot, kPipelined}), set_of({kLL, kBulk, kCopyEngine, kMultimem})},  // broadcast
    {set_of({kOneShot, kPipelined}), set_of({kLL, kBulk, kCopyEngine, kMultimem})},  // all_gather
    {set_of({kOneShot, kPipelined}), set_of({kLL, kBulk})},                          // gather
    {set_of({kOneShot, kPipelined}), set_of({kLL, kBulk})},                          // scatter
    {set_of({kOneShot, kPipelined}), set_of({kLL, kBulk, kMultimem})},    // reduce_scatter
    {set_of({kOneShot, kPipelined}), set_of({kPipelined, kCopyEngine})},  // all_to_all
    {set_of({kOneShot}), set_of({kLL})},                                  // barrier
};

}  // namespace

bool has_algorithm(CollectiveKind kind, Algorithm algorithm, PlanTarget target) {
  const unsigned set =
      kAlgorithms[static_cast<std::size_t>(kind)][static_cast<std::size_t>(target)];
  return (set & set_of({algorithm})) != 0;
}

std::string algorithm_list(CollectiveKind kind, PlanTarget target) {
  std::string list;
  for (int i = 0; i < kAlgorithmCount; ++i) {
    const auto algorithm = static_cast<Algorithm>(i);
    if (!has_algorithm(kind, algorithm, target)) continue;
    list += (list.empty() ? "" : ", ") + std::string(algorithm_name(algorithm));
  }
  return list;
}

std::uint64_t staged_bytes(CollectiveKind kind, int world_size, std::uint64_t largest_share) {
  switch (kind) {
    case CollectiveKind::kScatter:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllToAll:
      return largest_share * static_cast<std::uint64_t>(world_size);
    default:
      return largest_share;
  }
}

PlanTable::PlanTable(PlanTarget target, std::vector<PlanRow> rows, std::uint64_t copy_engine_bytes)
    : target_(target), rows_(std::move(rows)), copy_engine_bytes_(copy_engine_bytes) {
  for (const PlanRow& row : rows_) check_row(target_, row);
  std::stable_sort(rows_.begin(), rows_.end(), [](const PlanRow& a, const PlanRow& b) {
    return std::pair(a.kind, a.min_world) < std::pair(b.kind, b.min_world);
  });
  for (int i = 0; i < kCollectiveKindCount; ++i) {
    const auto kind = static_cast<CollectiveKind>(i);
    std::vector<PlanRow> of_kind;
    std::copy_if(rows_.begin(), rows_.end(), std::back_inserter(of_kind),
                 [kind](const PlanRow& row) { return row.kind == kind; });
    check_cover(kind, of_kind);
    first_[static_cast<std::size_t>(i) + 1] = first_[static_cast<std::size_t>(i)] + of_kind.size();
  }
}

namespace {

// For a forced algorithm that the table has no row of.
Plan default_plan(Algorithm algorithm, PlanTarget target) {
  if (target == PlanTarget::kHost) {
    return {algorithm, algorithm == Algorithm::kOneShot ? kSmallSlotBytes : 256 * 1024, 0};
  }
  return {algorithm, 0, 16};
}

}  // namespace

Plan PlanTable::select(CollectiveKind kind, int world_size, std::uint64_t staged, Algorithm forced,
                       const PlanRequest& request) const {
  if (request.algorithm != Algorithm::kAuto) forced = request.algorithm;
  const PlanRow* chosen = nullptr;
  const PlanRow* same_algorithm = nullptr;
  const auto place = static_cast<std::size_t>(kind);
  for (std::size_t i = first_[place]; i < first_[place + 1]; ++i) {
    const PlanRow& row = rows_[i];
    if (world_size < row.min_world || world_size > row.max_world) continue;
    if (row.algorithm == forced) same_algorithm = &row;
    if (chosen == nullptr && staged <= row.max_bytes) chosen = &row;
  }
  const bool overrides = forced != Algorithm::kAuto && forced != Algorithm::kCopyEngine &&
                         has_algorithm(kind, forced, target_);
  if (overrides) chosen = same_algorithm;
  Plan plan = chosen == nullptr ? default_plan(forced, target_)
                                : Plan{chosen->algorithm, chosen->chunk_bytes, chosen->channels};
  if (request.chunk_bytes != 0) plan.chunk_bytes = request.chunk_bytes;
  if (request.channels != 0) plan.channels = request.channels;
  return plan;
}

}  // namespace symm
