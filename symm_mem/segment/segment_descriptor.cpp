#include "symm_mem/segment/segment_descriptor.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

#include "symm_mem/process/byte_codec.hpp"

namespace symm {
namespace {

constexpr std::uint32_t kDescriptorMagic = 0x6d676573;
constexpr std::uint32_t kNoError = ~std::uint32_t{0};
constexpr std::size_t kMaxErrorText = 1024;
constexpr std::size_t kMaxDeviceName = 256;

std::string size_text(const SegmentDescriptor& descriptor) {
  return std::to_string(descriptor.bytes) + " bytes (" + std::to_string(descriptor.mapped_bytes) +
         " mapped)";
}

// Of a rank's first descriptor. Each chunk's size is held against the sum as the chunks come.
void check_claims(const SegmentDescriptor& descriptor, std::size_t rank) {
  const bool fits = descriptor.start < descriptor.chunk_bytes &&
                    descriptor.start <= descriptor.mapped_bytes &&
                    descriptor.bytes <= descriptor.mapped_bytes - descriptor.start;
  const bool sane = descriptor.user_buffer
                        ? descriptor.mapped_bytes <= SegmentDescriptor::kMaxMappedBytes &&
                              descriptor.chunks >= 1 &&
                              descriptor.chunks <= SegmentDescriptor::kMaxChunks && fits
                        : descriptor.chunks == 1 && descriptor.start == 0 && fits;
  if (sane) return;
  throw Error(ErrorCode::kSecurity, "rendezvous: rank ", rank, " offered ", size_text(descriptor),
              " in ", descriptor.chunks, " chunks from byte ", descriptor.start,
              " on, which cannot be");
}

}  // namespace

std::vector<std::uint8_t> SegmentDescriptor::encode() const {
  ByteWriter writer;
  writer.integer(kDescriptorMagic);
  writer.integer(protocol);
  writer.integer(device);
  writer.sized(std::string_view(device_name).substr(0, kMaxDeviceName));
  writer.integer(bytes);
  writer.integer(mapped_bytes);
  writer.integer(static_cast<std::uint32_t>(user_buffer));
  writer.integer(start);
  writer.integer(chunks);
  writer.integer(chunk_bytes);
  handles.write(writer);
  multicast.write(writer);
  writer.integer(error ? static_cast<std::uint32_t>(error->code()) : kNoError);
  const std::string text = error ? error->what() : "";
  writer.sized(std::string_view(text).substr(0, kMaxErrorText));
  return writer.take();
}

SegmentDescriptor SegmentDescriptor::decode(std::span<const std::uint8_t> bytes, int rank) {
  ByteReader reader(bytes);
  const auto magic = reader.integer<std::uint32_t>();
  SegmentDescriptor descriptor;
  descriptor.protocol = reader.integer<std::uint32_t>();
  descriptor.device = reader.integer<std::uint32_t>();
  descriptor.device_name = reader.text(kMaxDeviceName);
  descriptor.bytes = reader.integer<std::uint64_t>();
  descriptor.mapped_bytes = reader.integer<std::uint64_t>();
  descriptor.user_buffer = reader.integer<std::uint32_t>() != 0;
  descriptor.start = reader.integer<std::uint64_t>();
  descriptor.chunks = reader.integer<std::uint32_t>();
  descriptor.chunk_bytes = reader.integer<std::uint64_t>();
  descriptor.handles = HandleDescriptor::read(reader);
  descriptor.multicast = MulticastCapability::read(reader);
  const auto code = reader.integer<std::uint32_t>();
  const std::string text = reader.text(kMaxErrorText);
  if (!reader.finished() || magic != kDescriptorMagic) {
    throw Error(ErrorCode::kSecurity, "rendezvous: rank ", rank, " sent a malformed descriptor");
  }
  if (code != kNoError) {
    const auto last = static_cast<std::uint32_t>(ErrorCode::kSecurity);
    descriptor.error.emplace(static_cast<ErrorCode>(std::min(code, last)), text);
  }
  return descriptor;
}

void SegmentDescriptor::throw_if_failed(int rank) const {
  if (!error) return;
  throw Error(error->code(), "rendezvous: rank ", rank, " failed: ", error->what());
}

void check_descriptors(std::span<const SegmentDescriptor> descriptors) {
  for (std::size_t rank = 0; rank < descriptors.size(); ++rank) {
    descriptors[rank].throw_if_failed(static_cast<int>(rank));
  }
  bool user_buffer = false;
  for (std::size_t rank = 0; rank < descriptors.size(); ++rank) {
    check_claims(descriptors[rank], rank);
    user_buffer = user_buffer || descriptors[rank].user_buffer;
  }
  for (std::size_t rank = 1; rank < descriptors.size(); ++rank) {
    const SegmentDescriptor& first = descriptors[0];
    const SegmentDescriptor& other = descriptors[rank];
    if (other.device != first.device) {
      throw Error(ErrorCode::kMismatch, "rendezvous: rank 0 and rank ", rank,
                  " brought memory of different devices");
    }
    if (user_buffer ? other.bytes != first.bytes : other.mapped_bytes != first.mapped_bytes) {
      throw Error(ErrorCode::kMismatch,
                  "rendezvous: every rank must bring a segment of the same size; rank 0 brought ",
                  size_text(first), ", rank ", rank, " brought ", size_text(other));
    }
  }
}

}  // namespace symm
