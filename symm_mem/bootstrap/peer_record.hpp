// What a rank publishes in the Store for its peers, and the parser of what peers claim.
//
// NOTE [Peer record]
// Little-endian, in this order: magic u32, version u32, rank u32, world_size u32, pid u64, uid u32,
// mount_namespace u64, nonce 16 bytes, then boot_id, socket_path and payload, each a u32 length and
// that many bytes. The lengths are bounded and nothing may follow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "symm_mem/bootstrap/host_identity.hpp"

namespace symm {

struct PeerRecord {
  static constexpr std::uint32_t kMagic = 0x72647073;
  static constexpr std::uint32_t kVersion = 1;
  static constexpr std::size_t kMaxBootId = 64;
  static constexpr std::size_t kMaxPayload = 64 * 1024;
  static constexpr std::size_t kMaxSocketPath = 107;  // what sockaddr_un holds, less its zero

  std::uint32_t rank = 0;
  std::uint32_t world_size = 0;
  std::int64_t pid = 0;
  std::uint32_t uid = 0;
  std::uint64_t mount_namespace = 0;  // 0: unknown
  Nonce nonce{};
  std::string boot_id;      // empty: unknown
  std::string socket_path;  // absolute
  std::vector<std::uint8_t> payload;
};

// Local. The fields must keep the bounds above.
std::vector<std::uint8_t> encode_peer_record(const PeerRecord& record);

// Parses what the Store holds for `rank` of a group of `world_size`. Local, thread safe. Throws
// Error(kSecurity) for anything malformed, Error(kMismatch) for a record of another version or of
// a group of another size; the message names the rank.
PeerRecord parse_peer_record(std::span<const std::uint8_t> bytes, int rank, int world_size);

}  // namespace symm
