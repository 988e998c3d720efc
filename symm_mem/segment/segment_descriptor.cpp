#include "symm_mem/segment/segment_descriptor.hpp"

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "symm_mem/process/byte_codec.hpp"

namespace symm {
namespace {

constexpr std::uint32_t kDescriptorMagic = 0x6d676573;
constexpr std::uint32_t kNoError = ~std::uint32_t{0};
constexpr std::size_t kMaxErrorText = 1024;
constexpr std::size_t kMaxDeviceName = 256;

std::string size_text(const SegmentDescriptor& descriptor) {
  return text_of(descriptor.bytes, " bytes (", descriptor.mapped_bytes, " mapped)");
}

// Of a rank's first descriptor. Each chunk's size is held against the sum as the chunks come.
void check_claims(const SegmentDescriptor& descriptor, const std::string& name) {
  const bool fits = descriptor.start < descriptor.chunk_bytes &&
                    descriptor.start <= descriptor.mapped_bytes &&
                    descriptor.bytes <= descriptor.mapped_bytes - descriptor.start;
  const bool sane = descriptor.user_buffer
                        ? descriptor.mapped_bytes <= SegmentDescriptor::kMaxMappedBytes &&
                              descriptor.chunks >= 1 &&
                              descriptor.chunks <= SegmentDescriptor::kMaxChunks && fits
                        : descriptor.chunks == 1 && descriptor.start == 0 && fits;
  if (sane) return;
  throw Error(ErrorCode::kSecurity, "rendezvous: ", name, " offered ", size_text(descriptor),
              " in ", descriptor.chunks, " chunks from byte ", descriptor.start,
              " on, which cannot be");
}

// `code` is that of the error, kNoError where there is none.
template <typename Codec, typename Descriptor, typename Code, typename Text>
void code_descriptor(Codec& codec, Descriptor& descriptor, Text& device_name, Code& code,
                     Text& text) {
  codec.constant(kDescriptorMagic);
  codec.field(descriptor.protocol);
  codec.field(descriptor.device);
  codec.field(device_name, kMaxDeviceName);
  codec.field(descriptor.gpu);
  codec.field(descriptor.multiprocessors);
  codec.field(descriptor.with_lines);
  codec.field(descriptor.bytes);
  codec.field(descriptor.mapped_bytes);
  codec.field(descriptor.user_buffer);
  codec.field(descriptor.start);
  codec.field(descriptor.chunks);
  codec.field(descriptor.chunk_bytes);
  codec.field(descriptor.handles);
  codec.field(descriptor.multicast);
  codec.field(descriptor.free_rows);
  codec.field(code);
  codec.field(text, kMaxErrorText);
}

}  // namespace

void GpuList::write(ByteWriter& writer) const {
  writer.integer(static_cast<std::uint32_t>(gpus.size()));
  for (const GpuUuid& gpu : gpus) writer.raw(gpu);
}

GpuList GpuList::read(ByteReader& reader) {
  GpuList list;
  const auto count = std::size_t{reader.integer<std::uint32_t>()};
  const std::span<const std::uint8_t> bytes = reader.raw(count * sizeof(GpuUuid));
  list.gpus.resize(bytes.size() / sizeof(GpuUuid));
  for (std::size_t i = 0; i < list.gpus.size(); ++i) {
    std::ranges::copy(bytes.subspan(i * sizeof(GpuUuid), sizeof(GpuUuid)), list.gpus[i].begin());
  }
  return list;
}

std::vector<std::uint8_t> SegmentDescriptor::encode() const {
  ByteWriter writer;
  const std::uint32_t code = error ? static_cast<std::uint32_t>(error->code()) : kNoError;
  const std::string_view name = std::string_view(device_name).substr(0, kMaxDeviceName);
  const std::string_view text =
      std::string_view(error ? error->what() : "").substr(0, kMaxErrorText);
  code_descriptor(writer, *this, name, code, text);
  return writer.take();
}

SegmentDescriptor SegmentDescriptor::decode(std::span<const std::uint8_t> bytes, int rank,
                                            const RankNames& names) {
  ByteReader reader(bytes);
  SegmentDescriptor descriptor;
  std::uint32_t code = kNoError;
  std::string text;
  code_descriptor(reader, descriptor, descriptor.device_name, code, text);
  if (!reader.finished()) {
    throw Error(ErrorCode::kSecurity, "rendezvous: ", names.name(rank),
                " sent a malformed descriptor");
  }
  if (code != kNoError) {
    const auto last = static_cast<std::uint32_t>(ErrorCode::kSecurity);
    descriptor.error.emplace(static_cast<ErrorCode>(std::min(code, last)), text);
  }
  return descriptor;
}

void throw_first_failure(std::span<const SegmentDescriptor> descriptors, const RankNames& names) {
  for (std::size_t rank = 0; rank < descriptors.size(); ++rank) {
    const std::optional<Error>& error = descriptors[rank].error;
    if (!error) continue;
    throw Error(error->code(), "rendezvous: ", names.name(static_cast<int>(rank)),
                " failed: ", error->what());
  }
}

void check_descriptors(std::span<const SegmentDescriptor> descriptors, const RankNames& names) {
  throw_first_failure(descriptors, names);
  bool user_buffer = false;
  for (std::size_t rank = 0; rank < descriptors.size(); ++rank) {
    check_claims(descriptors[rank], names.name(static_cast<int>(rank)));
    user_buffer = user_buffer || descriptors[rank].user_buffer;
  }
  for (std::size_t rank = 1; rank < descriptors.size(); ++rank) {
    const SegmentDescriptor& first = descriptors[0];
    const SegmentDescriptor& other = descriptors[rank];
    const std::string name = names.name(static_cast<int>(rank));
    if (other.device != first.device) {
      throw Error(ErrorCode::kMismatch, "rendezvous: ", names.name(0), " and ", name,
                  " brought memory of different devices");
    }
    if (user_buffer ? other.bytes != first.bytes : other.mapped_bytes != first.mapped_bytes) {
      throw Error(ErrorCode::kMismatch,
                  "rendezvous: every rank must bring a segment of the same size; ", names.name(0),
                  " brought ", size_text(first), ", ", name, " brought ", size_text(other));
    }
  }
}

}  // namespace symm
