// Checks of a collective's arguments that need no peer.
#pragma once

#include "kernels/core/collective.hpp"

namespace symm {

// Throws Error(kInvalidArgument) or Error(kUnsupported) that names the argument, what is expected
// and what came. Local.
void validate_collective(const CollectiveArgs& args, int rank, int world_size);

}  // namespace symm
