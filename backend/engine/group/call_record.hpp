// The record of a call that a rank publishes: made from its arguments, compared, and named in text.
// Everything here is local.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "kernels/core/collective.hpp"
#include "kernels/plan/algorithm.hpp"
#include "kernels/protocol/control_region.hpp"

namespace symm {

struct Plan;

// The bytes that a plan is chosen by (staged_bytes). Of an all_to_all a rank knows its own row
// only, so its plan follows from the kind alone: the call finds out in its first step
// (NOTE [All-to-all rounds]).
std::uint64_t plan_bytes(const CollectiveArgs& args, int world_size);

// This rank's input where it is one array that the algorithm lets peers read in place; else null.
struct InputArray {
  const void* data = nullptr;
  std::size_t bytes = 0;
};
InputArray input_array(const CollectiveArgs& args, int rank, Algorithm algorithm);

// The start and the bytes of `parts` where they follow each other in memory; else null.
InputArray joined_parts(std::span<const Part> parts, std::size_t element_bytes);

// The record of a call, without the location of its data.
CallRecord make_record(const CollectiveArgs& args, const Plan& plan, std::uint64_t sequence);

// True where two ranks made calls that belong together. The location of the data and a rank's
// factor may differ.
bool same_call(const CallRecord& a, const CallRecord& b);

// What two calls that do not belong together differ in, as far as describe_call() does not say it:
// " with chunk_bytes 65536 and 16384", or nothing.
std::string describe_difference(const CallRecord& a, const CallRecord& b);

// "all_reduce(float32, SUM, count 4, one_shot)".
std::string describe_call(const CallRecord& record);

}  // namespace symm
