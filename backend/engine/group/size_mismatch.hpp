// The error of a recv whose size differs from its message's.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/core/error.hpp"
#include "symm_mem/group/local_group.hpp"

namespace symm {

// One end of a message, as a group rank and its bytes.
struct MessageEnd {
  int rank;
  std::uint64_t bytes;
};

inline Error size_mismatch(const LocalGroup& group, const MessageEnd& sender,
                           const MessageEnd& receiver, std::int64_t tag) {
  return Error(ErrorCode::kMismatch,
               group.prefix() + "send and recv with tag " + std::to_string(tag) +
                   " differ in size: " + group.rank_name(sender.rank) + " sends " +
                   std::to_string(sender.bytes) + " bytes, " + group.rank_name(receiver.rank) +
                   " receives " + std::to_string(receiver.bytes));
}

}  // namespace symm
