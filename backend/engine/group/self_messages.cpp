#include "backend/engine/group/self_messages.hpp"

#include <algorithm>
#include <string>

namespace symm {
namespace {

// A peer may make one up.
std::string dtype_text(Dtype dtype) {
  const bool known = static_cast<int>(dtype) < kDtypeCount;
  return known ? std::string(dtype_name(dtype)) : "an unknown dtype";
}

}  // namespace

Error end_mismatch(const LocalGroup& group, const MessageEnd& sender, const MessageEnd& receiver,
                   std::int64_t tag) {
  const std::string ends = text_of(group.prefix(), "send and recv with tag ", tag, " differ in ");
  const std::string sends = group.rank_name(sender.rank) + " sends ";
  const std::string receives = ", " + group.rank_name(receiver.rank) + " receives ";
  if (sender.bytes != receiver.bytes) {
    return {ErrorCode::kMismatch, ends,     "size: ", sends,
            sender.bytes,         " bytes", receives, receiver.bytes};
  }
  return {ErrorCode::kMismatch,      ends, "dtype: ", sends, dtype_text(sender.dtype), receives,
          dtype_text(receiver.dtype)};
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
  const MessageEnd mine{group_.rank(), end.bytes, end.dtype};
  const MessageEnd other{group_.rank(), first->end.bytes, first->end.dtype};
  if (!mine.fits(other)) {
    throw end_mismatch(group_, end.is_send ? mine : other, end.is_send ? other : mine, end.tag);
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
