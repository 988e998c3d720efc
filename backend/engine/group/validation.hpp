// Checks of a collective's arguments that need no peer.
#pragma once

#include "kernels/core/collective.hpp"
#include "kernels/plan/plan_request.hpp"
#include "symm_mem/bootstrap/rank_names.hpp"

namespace symm {

struct Agreement;

// Throws Error(kInvalidArgument) or Error(kUnsupported) that names the argument, what is expected,
// what came, and the rank by `names`. Local.
void validate_collective(const CollectiveArgs& args, int rank, int world_size,
                         const RankNames& names = {});

// Throws as check_request(), by what the group of `agreement` has. Local, free for an empty one.
void validate_request(CollectiveKind kind, const PlanRequest& request, PlanTarget target,
                      const Agreement& agreement);

}  // namespace symm
