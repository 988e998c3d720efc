// Which of a caller's tensors other ranks read or write, by algorithm: what a program may rely on
// when it decides which tensors to put in symmetric memory. The engine calls the same function
// before it publishes where its input is, so the table cannot differ from what happens.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/core/collective.hpp"
#include "kernels/plan/algorithm.hpp"
#include "kernels/plan/plan.hpp"

namespace symm {

enum class RemoteAccess : std::uint8_t {
  // None: data goes through the group's own memory, wherever the tensors are.
  kNone,
  // Peers read the input in place, if it is in a segment of the group; else it is staged.
  kReadsInput,
  // The same where the output is another tensor; staged where it is the input.
  kReadsInputApart,
  // Peers read the input, and then the results, where the output is the input; else it is staged.
  kReadsInputInPlace,
  // Peers write the output, which must be in a segment of the group, at the same offset on every
  // rank; the input is read by its own rank.
  kWritesOutput,
  // Peers read the input, which must be so; the output is written by its own rank.
  kNeedsInput,
  // Peers read the input and write the output, which must both be so.
  kNeedsBoth,
};

inline constexpr std::array<std::string_view, 7> kRemoteAccessNames = {
    "none",          "reads_input", "reads_input_apart", "reads_input_in_place",
    "writes_output", "needs_input", "needs_both"};

constexpr std::string_view remote_access_name(RemoteAccess access) {
  return kRemoteAccessNames[static_cast<std::size_t>(access)];
}

// For an algorithm that `kind` has on `target`. In rooted collectives peers read the input of the
// ranks that have one: the root of broadcast and scatter; in gather, and in reduce by one_shot, all
// others.
constexpr RemoteAccess remote_access(CollectiveKind kind, Algorithm algorithm, PlanTarget target) {
  if (algorithm == Algorithm::kCopyEngine) return RemoteAccess::kWritesOutput;
  if (algorithm == Algorithm::kMultimem) {
    if (kind == CollectiveKind::kAllReduce) return RemoteAccess::kNeedsBoth;
    return kind == CollectiveKind::kReduceScatter ? RemoteAccess::kNeedsInput
                                                  : RemoteAccess::kWritesOutput;
  }
  // A GPU stores tiles and chunks straight from the input, and a ring passes sums on.
  if (target == PlanTarget::kGpu || algorithm == Algorithm::kRing) return RemoteAccess::kNone;
  switch (kind) {
    case CollectiveKind::kAllReduce:
      // Results of a two-shot replace the input; a one-shot would overwrite data that peers still
      // read.
      return algorithm == Algorithm::kTwoShot ? RemoteAccess::kReadsInputInPlace
                                              : RemoteAccess::kReadsInputApart;
    case CollectiveKind::kBarrier:
      return RemoteAccess::kNone;
    default:
      return RemoteAccess::kReadsInput;
  }
}

// True where the input must be in a segment.
constexpr bool needs_input(RemoteAccess access) {
  return access == RemoteAccess::kNeedsInput || access == RemoteAccess::kNeedsBoth;
}

}  // namespace symm
