// What a rank publishes in the Store for its peers, and the parser of what peers claim.
//
// NOTE [Peer record]
// Little-endian, in this order: magic u32, version u32, rank u32, world_size u32, pid u64, start of
// the process u64, pid_namespace u64, uid u32, mount_namespace u64, published u64, joining u32,
// nonce 16 bytes, then boot_id, socket_path and payload, each a u32 length and that many bytes. The
// lengths are bounded and nothing may follow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "symm_mem/bootstrap/host_identity.hpp"
#include "symm_mem/bootstrap/rank_names.hpp"
#include "symm_mem/process/process_identity.hpp"

namespace symm {

struct PeerRecord {
  static constexpr std::uint32_t kMagic = 0x72647073;
  static constexpr std::uint32_t kVersion = 3;
  static constexpr std::size_t kMaxBootId = 64;
  static constexpr std::size_t kMaxPayload = 64 * 1024;
  static constexpr std::size_t kMaxSocketPath = 107;  // what sockaddr_un holds, less its zero

  std::uint32_t rank = 0;
  std::uint32_t world_size = 0;
  ProcessIdentity process;
  std::uint32_t uid = 0;
  std::uint64_t mount_namespace = 0;  // 0: unknown
  std::uint64_t published = 0;        // by host_clock(), in nanoseconds
  std::uint32_t joining = 1;          // 0: the try is over, and the record says who made it
  Nonce nonce{};
  std::string boot_id;      // empty: unknown
  std::string socket_path;  // absolute
  std::vector<std::uint8_t> payload;
};

// Local. The fields must keep the bounds above.
std::vector<std::uint8_t> encode_peer_record(const PeerRecord& record);

// Parses what the Store holds for `rank`. Local, thread safe. Throws
// Error(kSecurity) for anything malformed, Error(kMismatch) for a record of another version; the
// message names the rank.
PeerRecord parse_peer_record(std::span<const std::uint8_t> bytes, int rank,
                             const RankNames& names = {});

// Throws Error(kMismatch) for a record of a group of another size.
void check_world_size(const PeerRecord& record, int world_size, const RankNames& names = {});

}  // namespace symm
