// The handle descriptor of memory that peers map. In a rendezvous a rank posts one of the whole
// memory and its first physical chunk, then one of each further chunk, and at last one that has
// only its status. A group's device segment is posted by one too.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/core/error.hpp"
#include "symm_mem/segment/handle_choice.hpp"
#include "symm_mem/segment/multicast_team.hpp"
#include "symm_mem/segment/table_rows.hpp"

namespace symm {

struct GpuList {
  std::vector<GpuUuid> gpus;

  bool contains(const GpuUuid& gpu) const {
    return std::find(gpus.begin(), gpus.end(), gpu) != gpus.end();
  }
  void write(ByteWriter& writer) const;
  static GpuList read(ByteReader& reader);
};

// Little-endian: magic u32, protocol u32, device kind u32, device name, UUID, multiprocessors u32,
// number of the GPUs with lines u32 and their UUIDs, bytes u64, mapped bytes u64, user buffer u32,
// start u64, number of chunks u32, bytes of the chunk u64, the handles, the multicast capability,
// the free rows, error code u32 (all ones for none), error text.
struct SegmentDescriptor {
  // Of user buffers: more chunks, and more bytes, than any device has.
  static constexpr std::uint32_t kMaxChunks = 1u << 16;
  static constexpr std::uint64_t kMaxMappedBytes = std::uint64_t{1} << 47;

  // Grows with every change of this message, of DeviceLayout, or of what a kernel expects of a
  // peer's memory.
  static constexpr std::uint32_t kProtocol = 8;

  std::uint32_t protocol = kProtocol;
  std::uint32_t device = 0;           // DeviceKind
  std::string device_name;            // for messages; "" for the host
  GpuUuid gpu{};                      // zeros for the host
  std::uint32_t multiprocessors = 0;  // of a group's memory: of its GPU
  GpuList with_lines;                 // of a group's memory: GpuRuntime::gpus_with_lines()
  std::uint64_t bytes = 0;
  std::uint64_t mapped_bytes = 0;  // of all chunks
  bool user_buffer = false;        // memory that another library has made
  std::uint64_t start = 0;         // of the buffer, in the first chunk
  std::uint32_t chunks = 1;
  std::uint64_t chunk_bytes = 0;  // of the chunk whose handles follow
  HandleDescriptor handles;
  MulticastCapability multicast;
  TableRows free_rows;  // of this rank: NOTE [Rows of segments] in table_rows.hpp
  std::optional<Error> error;

  std::vector<std::uint8_t> encode() const;
  // Hostile input from `rank`. Throws Error(kSecurity) that names it, by `names`.
  static SegmentDescriptor decode(std::span<const std::uint8_t> bytes, int rank,
                                  const RankNames& names = {});
};

// Throws the first rank's error, with its name, where one has failed. `descriptors` by rank.
void throw_first_failure(std::span<const SegmentDescriptor> descriptors,
                         const RankNames& names = {});

// `descriptors` by rank, of the first round. Throws Error(kMismatch) where they do not fit
// together, kSecurity for claims that no honest rank makes, or the first rank's error: the same on
// every rank that has the same descriptors. Ranks bring segments of the same mapped size; where one
// brings a user buffer, whose chunks may be cut differently on each rank, buffers of the same
// size.
void check_descriptors(std::span<const SegmentDescriptor> descriptors, const RankNames& names = {});

}  // namespace symm
