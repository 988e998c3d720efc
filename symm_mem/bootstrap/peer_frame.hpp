// The messages on the sockets between ranks. One frame is one message (SOCK_SEQPACKET).
//
// NOTE [Peer frames]
// Hello, 40 bytes: magic u32, version u32, rank u32, zero u32, nonce 16 bytes, published u64. The
// connector sends its rank, the acceptor's nonce and when it published its record, by which the
// acceptor sees whether it has read that one; the acceptor answers with its rank, the connector's
// nonce and when it published its own.
// Exchange, 24 bytes and the message: magic u32, flags u32 (bit 0: a descriptor is attached; bit 1:
// a post), number u64 (of an exchange: its sequence; of a post: its topic), length u32, stream u32.
//
// NOTE [Streams of frames]
// One mesh carries two ordered streams: that of a group's collectives and that of its symmetric
// memory. Each has numbers of its own, so neither waits for the other, and a stream that broke off
// in the middle of an exchange can start again (BootstrapMesh::restart) while the other goes on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "symm_mem/bootstrap/host_identity.hpp"

namespace symm {

struct HelloFrame {
  static constexpr std::size_t kBytes = 40;

  std::uint32_t rank = 0;
  Nonce nonce{};
  std::uint64_t published = 0;  // the sender's PeerRecord::published
};

std::vector<std::uint8_t> encode_hello(const HelloFrame& hello);

// Empty for anything malformed. Local, thread safe.
std::optional<HelloFrame> parse_hello(std::span<const std::uint8_t> bytes);

enum class FrameKind { kExchange, kPost };
enum class FrameStream : std::uint32_t { kCollectives = 0, kSymmetricMemory = 1 };
inline constexpr std::size_t kFrameStreams = 2;

// Where a frame belongs: a stream and a number in it. A number alone is one of the collectives'.
struct FramePosition {
  // NOLINTNEXTLINE(google-explicit-constructor)
  FramePosition(std::uint64_t at) : number(at) {}
  FramePosition(FrameStream in, std::uint64_t at) : stream(in), number(at) {}

  FrameStream stream = FrameStream::kCollectives;
  std::uint64_t number;  // sequence of the exchange, or topic of the post
};

struct ExchangeFrame {
  static constexpr std::size_t kHeaderBytes = 24;
  static constexpr std::size_t kMaxMessage = 4096;
  static constexpr std::size_t kMaxBytes = kHeaderBytes + kMaxMessage;

  FrameKind kind = FrameKind::kExchange;
  FramePosition position = 0;
  bool has_descriptor = false;
  std::vector<std::uint8_t> message;
};

std::vector<std::uint8_t> encode_exchange(FramePosition position, bool has_descriptor,
                                          std::span<const std::uint8_t> message,
                                          FrameKind kind = FrameKind::kExchange);

// Empty for anything malformed. Local, thread safe.
std::optional<ExchangeFrame> parse_exchange(std::span<const std::uint8_t> bytes);

}  // namespace symm
