#include "backend/engine/group/self_messages.hpp"

#include <algorithm>
#include <string>

namespace symm {

Error size_mismatch(const LocalGroup& group, const MessageEnd& sender, const MessageEnd& receiver,
                    std::int64_t tag) {
  return Error(ErrorCode::kMismatch,
               group.prefix() + "send and recv with tag " + std::to_string(tag) +
                   " differ in size: " + group.rank_name(sender.rank) + " sends " +
                   std::to_string(sender.bytes) + " bytes, " + group.rank_name(receiver.rank) +
                   " receives " + std::to_string(receiver.bytes));
}

void SelfMessages::add(std::size_t place, const TransferOp& end) {
  const auto first = std::find_if(open_.begin(), open_.end(), [&](const Open& other) {
    return other.end.tag == end.tag && other.end.is_send != end.is_send;
  });
  if (first == open_.end()) {
    open_.push_back({pairs_.size(), end});
    pairs_.push_back({place, place});
    return;
  }
  if (first->end.bytes != end.bytes) {
    const MessageEnd mine{group_.rank(), end.bytes};
    const MessageEnd other{group_.rank(), first->end.bytes};
    throw size_mismatch(group_, end.is_send ? mine : other, end.is_send ? other : mine, end.tag);
  }
  Pair& pair = pairs_[first->pair];
  (end.is_send ? pair.send : pair.recv) = place;
  open_.erase(first);
}

void SelfMessages::check_all_met() const {
  if (open_.empty()) return;
  const TransferOp& first = open_.front().end;
  throw Error(ErrorCode::kInvalidArgument,
              group_.prefix() + (first.is_send ? "send to" : "recv from") +
                  " this rank itself with tag " + std::to_string(first.tag) + " (" +
                  std::to_string(first.bytes) + " bytes): expected its " +
                  (first.is_send ? "recv" : "send") + " in the same batch, got none");
}

}  // namespace symm
