// The compiled table. The threshold and chunk of each row come from the measurements in
// docs/benchmarks.md ("How the table was made").
#include "kernels/core/platform.hpp"
#include "kernels/plan/plan.hpp"
#include "kernels/protocol/control_region.hpp"

namespace symm {

const PlanTable& PlanTable::built_in() {
  using enum CollectiveKind;
  using enum Algorithm;
  constexpr int kAny = kMaxRanks;
  constexpr std::uint64_t kAll = PlanRow::kNoLimit;
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

}  // namespace symm
