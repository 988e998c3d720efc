// The error of a recv whose size differs from its message's.
#pragma once

#include <cstdint>
#include <string>

#include "backend/engine/group/group_health.hpp"
#include "kernels/core/error.hpp"

namespace symm {

// One end of a message, as a group rank and its bytes.
struct MessageEnd {
  int rank;
  std::uint64_t bytes;
};

inline Error size_mismatch(const GroupHealth& health, const MessageEnd& sender,
                           const MessageEnd& receiver, std::int64_t tag) {
  return Error(ErrorCode::kMismatch,
               health.prefix() + "send and recv with tag " + std::to_string(tag) +
                   " differ in size: " + health.rank_name(sender.rank) + " sends " +
                   std::to_string(sender.bytes) + " bytes, " + health.rank_name(receiver.rank) +
                   " receives " + std::to_string(receiver.bytes));
}

}  // namespace symm
