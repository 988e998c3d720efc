// Which kernel this process runs under, and unguessable numbers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

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

// Identifies the mount namespace within a host; 0 where /proc does not show it.
std::uint64_t mount_namespace_id();

}  // namespace symm
