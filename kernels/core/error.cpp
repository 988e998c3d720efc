#include "kernels/core/error.hpp"

namespace symm {

const char* error_code_name(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid_argument";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kTimeout:
      return "timeout";
    case ErrorCode::kPeerLost:
      return "peer_lost";
    case ErrorCode::kPeerLeft:
      return "peer_left";
    case ErrorCode::kMismatch:
      return "mismatch";
    case ErrorCode::kAborted:
      return "aborted";
    case ErrorCode::kSystem:
      return "system";
    case ErrorCode::kSecurity:
      return "security";
  }
  return "unknown";
}

}  // namespace symm
