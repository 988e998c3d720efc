// Which of a caller's tensors other ranks touch, by method: what a program may rely on when it
// decides where its tensors are to stand. The engine asks the same function before it announces a
// tensor to the peers, so this is what happens, not a description of it.
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/core/collective.hpp"
#include "kernels/plan/algorithm.hpp"

namespace symm {

enum class RemoteAccess : std::uint8_t {
  // Nothing: data goes through the group's own memory, whatever the tensors stand in.
  kNone,
  // Peers read the input where it stands, if that is a segment of the group; else it is staged.
  kReadsInput,
  // The same where the output is another tensor; staged where it is the input.
  kReadsInputApart,
  // Peers read the input, and then the results, where the output is the input; else it is staged.
  kReadsInputInPlace,
  // Peers write the output, which must stand in a segment of the group at the same place on every
  // rank; the input is read by its own rank.
  kWritesOutput,
  // Peers read the input, which must stand so; the output is written by its own rank.
  kNeedsInput,
  // Peers read the input and write the output, which must both stand so.
  kNeedsBoth,
};

constexpr std::string_view remote_access_name(RemoteAccess access) {
  switch (access) {
    case RemoteAccess::kNone:
      return "none";
    case RemoteAccess::kReadsInput:
      return "reads_input";
    case RemoteAccess::kReadsInputApart:
      return "reads_input_apart";
    case RemoteAccess::kReadsInputInPlace:
      return "reads_input_in_place";
    case RemoteAccess::kWritesOutput:
      return "writes_output";
    case RemoteAccess::kNeedsInput:
      return "needs_input";
    case RemoteAccess::kNeedsBoth:
      return "needs_both";
  }
  return "none";
}

// For an algorithm that `kind` has on some target. The two targets run the same algorithms, so the
// answer does not depend on it. Inputs of rooted collectives are touched on the ranks that have
// one to give: the root of broadcast and scatter; in gather, and in reduce by one_shot, all others.
constexpr RemoteAccess remote_access(CollectiveKind kind, Algorithm algorithm) {
  if (algorithm == Algorithm::kCopyEngine) return RemoteAccess::kWritesOutput;
  if (algorithm == Algorithm::kMultimem) {
    if (kind == CollectiveKind::kAllReduce) return RemoteAccess::kNeedsBoth;
    return kind == CollectiveKind::kReduceScatter ? RemoteAccess::kNeedsInput
                                                  : RemoteAccess::kWritesOutput;
  }
  // Packets leave from the input at once, and a ring passes sums on.
  if (algorithm != Algorithm::kOneShot && algorithm != Algorithm::kTwoShot &&
      algorithm != Algorithm::kPipelined) {
    return RemoteAccess::kNone;
  }
  switch (kind) {
    case CollectiveKind::kAllReduce:
      // Results of a two-shot stay where the input was; a one-shot would overwrite what is read.
      return algorithm == Algorithm::kTwoShot ? RemoteAccess::kReadsInputInPlace
                                              : RemoteAccess::kReadsInputApart;
    case CollectiveKind::kAllToAll:
    case CollectiveKind::kBarrier:
      return RemoteAccess::kNone;
    default:
      return RemoteAccess::kReadsInput;
  }
}

// True where the input must stand in a segment, whatever else is the case.
constexpr bool needs_input(RemoteAccess access) {
  return access == RemoteAccess::kNeedsInput || access == RemoteAccess::kNeedsBoth;
}

}  // namespace symm
