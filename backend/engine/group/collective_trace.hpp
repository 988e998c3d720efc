// Messages made from the collective traces: of calls on the host (host_trace.hpp) and on devices
// (device_trace.hpp). Local.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "kernels/core/error.hpp"
#include "kernels/protocol/control_region.hpp"
#include "symm_mem/group/local_group.hpp"

namespace symm {

// That this rank and `peer` made calls which do not belong together; `counter` names their common
// number: "seq" or "device seq".
Error different_calls(const LocalGroup& group, const std::string& counter, int peer,
                      const CallRecord& mine, const CallRecord& theirs);

// The arrival report of a time-out: "arrived: rank 1; not arrived: rank 2 (no call yet)".
// `last_call` returns what a peer did last, nullopt for one that has arrived.
std::string arrival_report(const LocalGroup& group,
                           const std::function<std::optional<std::string>(int peer)>& last_call);

}  // namespace symm
