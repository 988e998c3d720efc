// What a rank tells its peers of a call: made from its arguments, compared, and put into words.
// Everything here is local.
#pragma once

#include <cstdint>
#include <string>

#include "backend/engine/group_memory.hpp"
#include "kernels/core/collective.hpp"
#include "kernels/core/control_region.hpp"
#include "kernels/plan/plan.hpp"

namespace symm {

// The bytes that a plan is chosen by (staged_bytes). Of an all_to_all a rank knows its own row
// only, so its plan follows from the kind alone: the call finds out in its first step
// (NOTE [All-to-all rounds]).
std::uint64_t plan_bytes(const CollectiveArgs& args, int world_size);

// The record of this rank's call number `sequence`. Where the input is one array inside a segment
// of the group, and the method allows it, the record says so, and peers read it in place.
CallRecord make_record(const CollectiveArgs& args, const Plan& plan, std::uint64_t sequence,
                       int rank, const GroupMemory& memory);

// True where two ranks made calls that belong together. Where the data stands and a rank's factor
// may differ.
bool same_call(const CallRecord& a, const CallRecord& b);

// "all_reduce(float32, SUM, count 4, one_shot)".
std::string describe_call(const CallRecord& record);

}  // namespace symm
