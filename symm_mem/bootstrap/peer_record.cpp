#include "symm_mem/bootstrap/peer_record.hpp"

#include <algorithm>

#include "kernels/core/error.hpp"
#include "symm_mem/process/byte_codec.hpp"

namespace symm {
namespace {

template <typename... Why>
[[noreturn]] void refuse(ErrorCode code, const std::string& name, const Why&... why) {
  throw Error(code, "refused what the Store holds for ", name, ": ", why...);
}

// The path goes into connect() and into messages.
bool is_plain_absolute_path(const std::string& path) {
  return path.starts_with('/') && std::all_of(path.begin(), path.end(), [](char c) {
           return static_cast<unsigned char>(c) >= ' ' && c != 0x7f;
         });
}

// What follows magic and version.
template <typename Codec, typename Record>
void code_record(Codec& codec, Record& record) {
  codec.field(record.rank);
  codec.field(record.world_size);
  codec.field(record.process.pid);
  codec.field(record.process.start);
  codec.field(record.process.pid_namespace);
  codec.field(record.uid);
  codec.field(record.mount_namespace);
  codec.field(record.published);
  codec.field(record.joining);
  codec.field(record.nonce);
  codec.field(record.boot_id, PeerRecord::kMaxBootId);
  codec.field(record.socket_path, PeerRecord::kMaxSocketPath);
  codec.field(record.payload, PeerRecord::kMaxPayload);
}

}  // namespace

std::vector<std::uint8_t> encode_peer_record(const PeerRecord& record) {
  ByteWriter writer;
  writer.integer(PeerRecord::kMagic);
  writer.integer(PeerRecord::kVersion);
  code_record(writer, record);
  return writer.take();
}

PeerRecord parse_peer_record(std::span<const std::uint8_t> bytes, int rank,
                             const RankNames& names) {
  const std::string name = names.name(rank);
  ByteReader reader(bytes);
  if (reader.integer<std::uint32_t>() != PeerRecord::kMagic) {
    refuse(ErrorCode::kSecurity, name, "it is not a peer record (", bytes.size(), " bytes)");
  }
  const auto version = reader.integer<std::uint32_t>();
  if (!reader.failed() && version != PeerRecord::kVersion) {
    refuse(ErrorCode::kMismatch, name, "expected record version ", PeerRecord::kVersion, ", got ",
           version, "; every rank must run the same version of symm");
  }
  PeerRecord record;
  code_record(reader, record);
  if (!reader.finished()) {
    refuse(ErrorCode::kSecurity, name, "its ", bytes.size(), " bytes are not one whole record");
  }
  if (record.rank != static_cast<std::uint32_t>(rank)) {
    refuse(ErrorCode::kSecurity, name, "it names rank ", record.rank);
  }
  if (record.joining > 1) refuse(ErrorCode::kSecurity, name, "its state is ", record.joining);
  if (record.process.pid <= 0) refuse(ErrorCode::kSecurity, name, "its pid is not positive");
  if (!is_plain_host_id(record.boot_id)) {
    refuse(ErrorCode::kSecurity, name, "its boot id is malformed");
  }
  if (!is_plain_absolute_path(record.socket_path)) {
    refuse(ErrorCode::kSecurity, name, "its socket path is not a plain absolute path");
  }
  return record;
}

void check_world_size(const PeerRecord& record, int world_size, const RankNames& names) {
  if (record.world_size == static_cast<std::uint32_t>(world_size)) return;
  refuse(ErrorCode::kMismatch, names.name(static_cast<int>(record.rank)), "its group has ",
         record.world_size, " ranks, this one ", world_size);
}

}  // namespace symm
