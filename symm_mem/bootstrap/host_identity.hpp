// Which kernel this process runs under, and unguessable numbers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/core/error.hpp"

namespace symm {

inline constexpr std::size_t kNonceBytes = 16;
using Nonce = std::array<std::uint8_t, kNonceBytes>;

// 128 bits from the kernel's generator. Throws Error(kSystem).
Nonce random_nonce();

// Compares in a time that does not depend on the contents.
bool same_nonce(const Nonce& a, const Nonce& b);

// The kernel's random id of this boot (36 characters), the same in every container of a host; empty
// where /proc does not show it. Two equal non-empty ids mean one host.
std::string host_boot_id();

// What a rank says its host is: SYMM_HOST_ID where it is set, else host_boot_id(). Throws
// Error(kInvalidArgument) for a variable that is not 1 to 64 letters, digits, '-', '_' and '.'.
std::string host_id();

inline constexpr std::size_t kMaxHostId = 64;
bool is_plain_host_id(std::string_view id);

// The ranks of a group are not on one host. Every rank of the group throws it where one does.
class SpansHosts : public Error {
 public:
  SpansHosts(const std::string& message, std::vector<std::string> hosts)
      : Error(ErrorCode::kUnsupported, message), hosts_(std::move(hosts)) {}
  // What each rank says its host is.
  const std::vector<std::string>& hosts() const noexcept { return hosts_; }

 private:
  std::vector<std::string> hosts_;
};

// Identifies the mount namespace within a host; 0 where /proc does not show it.
std::uint64_t mount_namespace_id();

}  // namespace symm
