// A meeting of all ranks of a group in which each says whether it can go on.
#pragma once

#include <optional>

#include "kernels/core/error.hpp"
#include "symm_mem/group/local_group.hpp"
#include "symm_mem/process/deadline.hpp"

namespace symm {

// Collective, one metadata exchange. Throws `own` where there is one, else the error of the first
// rank that has one, with its name; on every rank or on none. Throws as
// LocalGroup::exchange_metadata too.
void exchange_status(LocalGroup& group, LocalGroup::Purpose purpose,
                     const std::optional<Error>& own, const Deadline& deadline);

}  // namespace symm
