// The compiled tables.
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

// Limits are in staged bytes (staged_bytes()); channels are the blocks of a kernel. The first
// values come from prototypes; they are to be replaced by measurements.
const PlanTable& PlanTable::built_in_gpu() {
  constexpr int kFew = 4;  // up to this many ranks, ll pays for larger messages than above it
  constexpr std::uint64_t kKiB = 1024;
  constexpr std::uint64_t kCopyEngineBytes = 64 * 1024 * kKiB;
  constexpr std::size_t kChunk = 64 * 1024;
  static const PlanTable table(PlanTarget::kGpu,
                               {
                                   {kAllReduce, 2, kFew, 128 * kKiB, kLL, kChunk, 16},
                                   {kAllReduce, 2, kFew, 512 * kKiB, kLLTwoShot, kChunk, 32},
                                   {kAllReduce, 2, kFew, kAll, kTwoShot, kChunk, 64},
                                   {kAllReduce, kFew + 1, kAny, 32 * kKiB, kLL, kChunk, 16},
                                   {kAllReduce, kFew + 1, kAny, 512 * kKiB, kLLTwoShot, kChunk, 32},
                                   {kAllReduce, kFew + 1, kAny, kAll, kTwoShot, kChunk, 64},
                                   {kReduce, 2, kAny, 256 * kKiB, kLL, kChunk, 16},
                                   {kReduce, 2, kAny, kAll, kTwoShot, kChunk, 64},
                                   {kBroadcast, 2, kAny, 256 * kKiB, kLL, kChunk, 16},
                                   {kBroadcast, 2, kAny, kAll, kPipelined, kChunk, 64},
                                   {kAllGather, 2, kAny, 256 * kKiB, kLL, kChunk, 32},
                                   {kAllGather, 2, kAny, kAll, kPipelined, kChunk, 64},
                                   {kGather, 2, kAny, 128 * kKiB, kLL, kChunk, 16},
                                   {kGather, 2, kAny, kAll, kPipelined, kChunk, 64},
                                   {kScatter, 2, kAny, 512 * kKiB, kLL, kChunk, 16},
                                   {kScatter, 2, kAny, kAll, kPipelined, kChunk, 64},
                                   {kReduceScatter, 2, kAny, 512 * kKiB, kLL, kChunk, 32},
                                   {kReduceScatter, 2, kAny, kAll, kPipelined, kChunk, 64},
                                   {kAllToAll, 2, kAny, kAll, kPipelined, kChunk, 64},
                                   {kBarrier, 2, kAny, kAll, kLL, kChunk, 1},
                               },
                               kCopyEngineBytes);
  return table;
}

}  // namespace symm
