// What one call asks of its plan, over the table and over what the group was told to force.
//
// NOTE [What may decide] in plan.hpp holds: every rank of the group must ask for the same. The
// ranks compare the plan that follows, so different requests become an error that names both.
#pragma once

#include <cstddef>
#include <string>

#include "kernels/core/collective.hpp"
#include "kernels/plan/algorithm.hpp"

namespace symm {

enum class PlanTarget : std::uint8_t;

// Zero, and kAuto, leave a part to the table.
struct PlanRequest {
  Algorithm algorithm = Algorithm::kAuto;
  int channels = 0;             // blocks of a GPU's kernel
  std::size_t chunk_bytes = 0;  // that a step moves at most

  bool empty() const { return algorithm == Algorithm::kAuto && channels == 0 && chunk_bytes == 0; }
  bool operator==(const PlanRequest&) const = default;
};

// Of tuning tables and of requests; a chunk is also a multiple of kCacheLine.
inline constexpr std::size_t kLeastChunkBytes = 16 * 1024;

// Throws Error(kInvalidArgument) that names the part, what is possible and what came: an algorithm
// that `kind` has not on `target`; a part that this algorithm has not; a value out of range.
// `largest_chunk`: what a slot of the group holds, in bytes. Local.
void check_request(CollectiveKind kind, const PlanRequest& request, PlanTarget target,
                   std::size_t largest_chunk);

}  // namespace symm
