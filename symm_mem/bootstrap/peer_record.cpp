#include "symm_mem/bootstrap/peer_record.hpp"

#include <algorithm>

#include "kernels/core/error.hpp"
#include "symm_mem/bootstrap/bootstrap_mesh.hpp"
#include "symm_mem/process/byte_codec.hpp"

namespace symm {
namespace {

[[noreturn]] void refuse(ErrorCode code, int rank, const std::string& why) {
  throw Error(code, "refused what the Store holds for rank ", rank, ": ", why);
}

// The path goes into connect() and into messages.
bool is_plain_absolute_path(const std::string& path) {
  return path.starts_with('/') && std::all_of(path.begin(), path.end(), [](char c) {
           return static_cast<unsigned char>(c) >= ' ' && c != 0x7f;
         });
}

bool is_plain_boot_id(const std::string& id) {
  return std::all_of(id.begin(), id.end(), [](char c) {
    return c == '-' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  });
}

}  // namespace

std::vector<std::uint8_t> encode_peer_record(const PeerRecord& record) {
  ByteWriter writer;
  writer.integer(PeerRecord::kMagic);
  writer.integer(PeerRecord::kVersion);
  writer.integer(record.rank);
  writer.integer(record.world_size);
  writer.integer(static_cast<std::uint64_t>(record.pid));
  writer.integer(record.uid);
  writer.integer(record.mount_namespace);
  writer.raw(record.nonce);
  writer.sized(record.boot_id);
  writer.sized(record.socket_path);
  writer.sized(record.payload);
  return writer.take();
}

PeerRecord parse_peer_record(std::span<const std::uint8_t> bytes, int rank, int world_size) {
  ByteReader reader(bytes);
  if (reader.integer<std::uint32_t>() != PeerRecord::kMagic) {
    refuse(ErrorCode::kSecurity, rank,
           "it is not a peer record (" + std::to_string(bytes.size()) + " bytes)");
  }
  const auto version = reader.integer<std::uint32_t>();
  if (!reader.failed() && version != PeerRecord::kVersion) {
    refuse(ErrorCode::kMismatch, rank,
           "expected record version " + std::to_string(PeerRecord::kVersion) + ", got " +
               std::to_string(version) + "; every rank must run the same version of symm");
  }
  PeerRecord record;
  record.rank = reader.integer<std::uint32_t>();
  record.world_size = reader.integer<std::uint32_t>();
  record.pid = static_cast<std::int64_t>(reader.integer<std::uint64_t>());
  record.uid = reader.integer<std::uint32_t>();
  record.mount_namespace = reader.integer<std::uint64_t>();
  const std::span<const std::uint8_t> nonce = reader.raw(kNonceBytes);
  std::copy(nonce.begin(), nonce.end(), record.nonce.begin());
  record.boot_id = reader.text(PeerRecord::kMaxBootId);
  record.socket_path = reader.text(PeerRecord::kMaxSocketPath);
  const std::span<const std::uint8_t> payload = reader.sized(BootstrapMesh::kMaxPayload);
  record.payload.assign(payload.begin(), payload.end());
  if (!reader.finished()) {
    refuse(ErrorCode::kSecurity, rank,
           "its " + std::to_string(bytes.size()) + " bytes are not one whole record");
  }
  if (record.rank != static_cast<std::uint32_t>(rank)) {
    refuse(ErrorCode::kSecurity, rank, "it names rank " + std::to_string(record.rank));
  }
  if (record.world_size != static_cast<std::uint32_t>(world_size)) {
    refuse(ErrorCode::kMismatch, rank,
           "its group has " + std::to_string(record.world_size) + " ranks, this one " +
               std::to_string(world_size));
  }
  if (record.pid <= 0) refuse(ErrorCode::kSecurity, rank, "its pid is not positive");
  if (!is_plain_boot_id(record.boot_id))
    refuse(ErrorCode::kSecurity, rank, "its boot id is malformed");
  if (!is_plain_absolute_path(record.socket_path)) {
    refuse(ErrorCode::kSecurity, rank, "its socket path is not a plain absolute path");
  }
  return record;
}

}  // namespace symm
