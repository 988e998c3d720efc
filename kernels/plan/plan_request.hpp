// The plan that one call requests, over the table and over the group's forced algorithm.
//
// NOTE [What may decide] in plan.hpp holds: every rank of the group must request the same. The
// ranks compare the plans that follow, so different requests become an error that names both.
#pragma once

#include <cstddef>
#include <string>

#include "kernels/core/collective.hpp"
#include "kernels/plan/algorithm.hpp"

namespace symm {

enum class PlanTarget : std::uint8_t;

// Zero, and kAuto, leave a field to the table.
struct PlanRequest {
  Algorithm algorithm = Algorithm::kAuto;
  int channels = 0;             // blocks of a GPU's kernel
  std::size_t chunk_bytes = 0;  // of the host: upper bound of a step

  bool empty() const { return algorithm == Algorithm::kAuto && channels == 0 && chunk_bytes == 0; }
  bool operator==(const PlanRequest&) const = default;
};

// Of tuning tables and of requests; a chunk is also a multiple of kCacheLine.
inline constexpr std::size_t kLeastChunkBytes = 16 * 1024;

// Throws Error(kInvalidArgument) that names the field, the valid values and the given one, where
// `kind` does not have the algorithm on `target`, where the algorithm does not have the field, and
// where a value is out of range. `largest_chunk`: size of a slot of the host's, in bytes. Local.
void check_request(CollectiveKind kind, const PlanRequest& request, PlanTarget target,
                   std::size_t largest_chunk);

}  // namespace symm
