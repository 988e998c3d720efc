// The record of a call that a rank publishes: made from its arguments, compared, and named in the
// messages of the collective traces, of calls on the host (host_trace.hpp) and on devices
// (device_trace.hpp).
// Everything here is local.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "kernels/core/collective.hpp"
#include "kernels/core/error.hpp"
#include "kernels/plan/algorithm.hpp"
#include "kernels/protocol/control_region.hpp"
#include "kernels/protocol/device_layout.hpp"

namespace symm {

class LocalGroup;
struct Plan;
enum class PlanTarget : std::uint8_t;

// The bytes that a plan is chosen by (staged_bytes). Of an all_to_all a rank knows its own row
// only, so its plan follows from the kind alone: the call finds out in its first step
// (NOTE [All-to-all rounds]).
std::uint64_t plan_bytes(const CollectiveArgs& args, int world_size);
// The same for a GPU's table. Over `line` larger calls take longer where they are reductions other
// than the sums of training, and where so many ranks share a GPU (`ranks_of_gpu`, of the one with
// most) that blocks that fill a multiprocessor do not all fit: those count twice.
std::uint64_t device_plan_bytes(const CollectiveArgs& args, int world_size, WireKind wire,
                                int ranks_of_gpu);

// This rank's input where it is one array that the algorithm lets peers read in place; else null.
struct InputArray {
  const void* data = nullptr;
  std::size_t bytes = 0;
};
InputArray input_array(const CollectiveArgs& args, int rank, Algorithm algorithm,
                       PlanTarget target);

// The bytes of the input that `peer` lets others read in place, by this rank's arguments.
std::size_t input_bytes(const CollectiveArgs& args, int peer, int world_size);

// The list of shares that every rank passes alike; empty where the kind has none.
std::span<const Part> common_list(const CollectiveArgs& args);

// Of the ranks' counts: lists that are the same on all ranks must be equal element by element.
std::uint64_t hash_counts(std::span<const Part> parts);

// The start and the bytes of `parts` where they follow each other in memory; else null.
InputArray joined_parts(std::span<const Part> parts, std::size_t element_bytes);

// The record of a call, without the location of its data.
CallRecord make_record(const CollectiveArgs& args, const Plan& plan, std::uint64_t sequence);

// True where two ranks made calls that belong together. The location of the data and a rank's
// factor may differ.
bool same_call(const CallRecord& a, const CallRecord& b);

// "all_reduce(float32, SUM, count 4, one_shot)".
std::string describe_call(const CallRecord& record);

// That this rank and `peer` made calls which do not belong together; `counter` names their common
// number, that of `mine`: "seq" or "device seq". Where one of the records is none of this call, the
// memory of its rank was written over, and the error says so.
Error different_calls(const LocalGroup& group, const std::string& counter, int peer,
                      const CallRecord& mine, const CallRecord& theirs);

// Call `sequence` of those that a rank has put on its device; nullopt where it is not, or no
// longer, in the ring. Any thread, also while the rank posts.
std::optional<CallRecord> read_device_call(const DeviceCalls& calls, std::uint64_t sequence);

// The arrival report of a time-out: "arrived: rank 1; not arrived: rank 2 (no call yet)".
// `last_call` returns what a peer did last, nullopt for one that has arrived. A process that is
// stopped is called so, whether it has arrived or not.
std::string arrival_report(const LocalGroup& group,
                           const std::function<std::optional<std::string>(int peer)>& last_call);

}  // namespace symm
