#include "symm_mem/bootstrap/peer_frame.hpp"

#include "symm_mem/process/byte_codec.hpp"

namespace symm {
namespace {

constexpr std::uint32_t kHelloMagic = 0x6f6c6568;
constexpr std::uint32_t kHelloVersion = 2;
constexpr std::uint32_t kExchangeMagic = 0x68637865;
constexpr std::uint32_t kHasDescriptor = 1;
constexpr std::uint32_t kIsPost = 2;

template <typename Codec, typename Hello>
void code_hello(Codec& codec, Hello& hello) {
  codec.constant(kHelloMagic);
  codec.constant(kHelloVersion);
  codec.field(hello.rank);
  codec.constant(0);
  codec.field(hello.nonce);
  codec.field(hello.published);
}

}  // namespace

std::vector<std::uint8_t> encode_hello(const HelloFrame& hello) {
  ByteWriter writer;
  code_hello(writer, hello);
  return writer.take();
}

std::optional<HelloFrame> parse_hello(std::span<const std::uint8_t> bytes) {
  ByteReader reader(bytes);
  HelloFrame hello;
  code_hello(reader, hello);
  return reader.finished() ? std::optional(hello) : std::nullopt;
}

std::vector<std::uint8_t> encode_exchange(FramePosition position, bool has_descriptor,
                                          std::span<const std::uint8_t> message, FrameKind kind) {
  ByteWriter writer;
  writer.integer(kExchangeMagic);
  writer.integer((has_descriptor ? kHasDescriptor : 0u) |
                 (kind == FrameKind::kPost ? kIsPost : 0u));
  writer.integer(position.number);
  writer.integer(static_cast<std::uint32_t>(message.size()));
  writer.integer(static_cast<std::uint32_t>(position.stream));
  writer.raw(message);
  return writer.take();
}

std::optional<ExchangeFrame> parse_exchange(std::span<const std::uint8_t> bytes) {
  ByteReader reader(bytes);
  const auto magic = reader.integer<std::uint32_t>();
  const auto flags = reader.integer<std::uint32_t>();
  ExchangeFrame frame;
  const auto number = reader.integer<std::uint64_t>();
  const auto length = reader.integer<std::uint32_t>();
  const auto stream = reader.integer<std::uint32_t>();
  if (length > ExchangeFrame::kMaxMessage) return std::nullopt;
  const std::span<const std::uint8_t> message = reader.raw(length);
  if (!reader.finished() || magic != kExchangeMagic || (flags & ~(kHasDescriptor | kIsPost)) != 0 ||
      stream >= kFrameStreams) {
    return std::nullopt;
  }
  frame.position = {static_cast<FrameStream>(stream), number};
  frame.kind = (flags & kIsPost) != 0 ? FrameKind::kPost : FrameKind::kExchange;
  frame.has_descriptor = (flags & kHasDescriptor) != 0;
  frame.message.assign(message.begin(), message.end());
  return frame;
}

}  // namespace symm
