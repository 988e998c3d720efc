// The one error type below the torch seam. Host only.
//
// A message states the argument, the expected value, the given value, and the rank. The backend
// converts the error into c10's exception, once.
#pragma once

#include <array>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace symm {

enum class ErrorCode {
  kInvalidArgument,  // the caller's input is wrong; nothing was sent
  kUnsupported,      // a combination without meaning or implementation, named in the message
  kTimeout,          // a peer did not arrive within the operation's time-out
  kPeerLost,         // a peer's process ended while it was needed
  kPeerLeft,         // a peer destroyed its group while it was needed
  kMismatch,         // two ranks made different calls at the same sequence number
  kAborted,          // abort() on this rank or on a peer, or a call on a group that has failed
  kSystem,           // the operating system refused: memory, descriptors, sockets
  kSecurity,         // a peer, a descriptor or a Store value failed a check
  kInvalidType,      // kInvalidArgument, of a tensor's dtype
};

// Stable, in the order of ErrorCode; they appear in messages and in the flight record.
inline constexpr std::array kErrorCodeNames = {
    "invalid_argument", "unsupported", "timeout", "peer_lost", "peer_left",
    "mismatch",         "aborted",     "system",  "security",  "invalid_type"};

// "unknown" for a value that a peer made up.
constexpr const char* error_code_name(ErrorCode code) noexcept {
  const auto index = static_cast<std::size_t>(code);
  return index < kErrorCodeNames.size() ? kErrorCodeNames[index] : "unknown";
}

// `parts`, texts and whole numbers, one after the other.
template <typename... Parts>
std::string text_of(const Parts&... parts) {
  std::string text;
  const auto append = [&text](const auto& part) {
    if constexpr (std::is_integral_v<std::remove_cvref_t<decltype(part)>>) {
      text += std::to_string(part);
    } else {
      text += part;
    }
  };
  (append(parts), ...);
  return text;
}

class Error : public std::runtime_error {
 public:
  // The message is text_of(first, rest...).
  template <typename First, typename... Rest>
  Error(ErrorCode code, const First& first, const Rest&... rest)
      : std::runtime_error(text_of(first, rest...)), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace symm
