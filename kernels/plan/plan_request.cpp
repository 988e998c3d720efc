#include "kernels/plan/plan_request.hpp"

#include <algorithm>

#include "kernels/core/error.hpp"
#include "kernels/plan/plan.hpp"
#include "kernels/protocol/control_region.hpp"

namespace symm {

void check_request(CollectiveKind kind, const PlanRequest& request, PlanTarget target,
                   std::size_t largest_chunk) {
  using enum Algorithm;
  const bool on_host = target == PlanTarget::kHost;
  const std::string on_target = on_host ? " on the host" : " on a GPU";
  const auto refuse = [kind](const char* part, const std::string& problem) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(collective_name(kind)) + ": config." + part + ": " + problem);
  };
  const auto refuse_as_absent = [&](const char* part) {
    refuse(part, "the algorithm " + std::string(algorithm_name(request.algorithm)) + " of " +
                     std::string(collective_name(kind)) + on_target + " has none; leave it out");
  };
  if (request.algorithm != kAuto && !has_algorithm(kind, request.algorithm, target)) {
    refuse("algorithm", "expected one of auto, " + algorithm_list(kind, target) + on_target +
                            "; got " + std::string(algorithm_name(request.algorithm)));
  }
  // all_to_all uses tag channels, with blocks of its own.
  const bool launches_blocks =
      kind != CollectiveKind::kAllToAll && request.algorithm != kCopyEngine;
  if (const int asked = request.channels; asked != 0) {
    if (on_host) {
      refuse("channels", "they are blocks of a GPU's kernel, so there are none on the host; got " +
                             std::to_string(asked));
    }
    if (!launches_blocks) refuse_as_absent("channels");
    if (asked < 1 || asked > kMaxChannels) {
      refuse("channels",
             "expected 1 to " + std::to_string(kMaxChannels) + ", got " + std::to_string(asked));
    }
  }
  if (const std::size_t asked = request.chunk_bytes; asked != 0) {
    if (!on_host) refuse("chunk_bytes", "there are none on a GPU; got " + std::to_string(asked));
    const std::size_t least = std::min(kLeastChunkBytes, largest_chunk);  // slots may be smaller
    if (asked < least || asked > largest_chunk || asked % kCacheLine != 0) {
      refuse("chunk_bytes", "expected a multiple of " + std::to_string(kCacheLine) + " from " +
                                std::to_string(least) + " to " + std::to_string(largest_chunk) +
                                ", the slot of the group" + on_target + "; got " +
                                std::to_string(asked));
    }
  }
}

}  // namespace symm
