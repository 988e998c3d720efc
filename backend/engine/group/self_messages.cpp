#include "backend/engine/group/self_messages.hpp"

#include <algorithm>
#include <string>

#include "backend/engine/group/size_mismatch.hpp"

namespace symm {

void SelfMessages::add(std::size_t place, bool is_send, std::int64_t tag, std::uint64_t bytes) {
  const auto first = std::find_if(open_.begin(), open_.end(), [&](const Open& other) {
    return other.tag == tag && other.is_send != is_send;
  });
  if (first == open_.end()) {
    open_.push_back({pairs_.size(), is_send, tag, bytes});
    pairs_.push_back({place, place});
    return;
  }
  if (first->bytes != bytes) {
    const MessageEnd mine{rank_, bytes};
    const MessageEnd other{rank_, first->bytes};
    throw size_mismatch(group_, is_send ? mine : other, is_send ? other : mine, tag);
  }
  Pair& pair = pairs_[first->pair];
  (is_send ? pair.send : pair.recv) = place;
  open_.erase(first);
}

void SelfMessages::check_all_met() const {
  if (open_.empty()) return;
  const Open& first = open_.front();
  throw Error(ErrorCode::kInvalidArgument,
              group_.prefix() + (first.is_send ? "send to" : "recv from") +
                  " this rank itself with tag " + std::to_string(first.tag) + " (" +
                  std::to_string(first.bytes) + " bytes): expected its " +
                  (first.is_send ? "recv" : "send") + " in the same batch, got none");
}

}  // namespace symm
