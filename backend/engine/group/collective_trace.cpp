#include "backend/engine/group/collective_trace.hpp"

#include "backend/engine/group/call_record.hpp"

namespace symm {

Error different_calls(const LocalGroup& group, const std::string& counter, int peer,
                      const CallRecord& mine, const CallRecord& theirs) {
  return Error(ErrorCode::kMismatch,
               group.prefix() + "different calls at " + counter + " " +
                   std::to_string(mine.sequence) + ": " + group.rank_name(group.rank()) +
                   " called " + describe_call(mine) + ", " + group.rank_name(peer) + " called " +
                   describe_call(theirs) + describe_difference(mine, theirs));
}

std::string arrival_report(const LocalGroup& group,
                           const std::function<std::optional<std::string>(int peer)>& last_call) {
  std::string arrived;
  std::string missing;
  for (int peer = 0; peer < group.world_size(); ++peer) {
    if (peer == group.rank()) continue;
    const std::optional<std::string> last = last_call(peer);
    std::string& names = last ? missing : arrived;
    names += (names.empty() ? "" : ", ") + group.rank_name(peer);
    if (last) names += " (" + *last + ")";
  }
  return "arrived: " + (arrived.empty() ? "no other rank" : arrived) +
         "; not arrived: " + (missing.empty() ? "none" : missing);
}

}  // namespace symm
