// The messages on the sockets between ranks. One packet is one message (SOCK_SEQPACKET).
//
// NOTE [Peer frames]
// Hello, 32 bytes: magic u32, version u32, rank u32, zero u32, nonce 16 bytes. The connector sends
// its rank and the acceptor's nonce; the acceptor answers with its rank and the connector's nonce.
// Exchange, 24 bytes and the message: magic u32, flags u32 (bit 0: a descriptor is attached; bit 1:
// a post), sequence u64 (of a post: its topic), length u32, zero u32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "symm_mem/bootstrap/host_identity.hpp"

namespace symm {

struct HelloFrame {
  static constexpr std::size_t kBytes = 32;

  std::uint32_t rank = 0;
  Nonce nonce{};
};

std::vector<std::uint8_t> encode_hello(const HelloFrame& hello);

// Empty for anything malformed. Local, thread safe.
std::optional<HelloFrame> parse_hello(std::span<const std::uint8_t> packet);

enum class FrameKind { kExchange, kPost };

struct ExchangeFrame {
  static constexpr std::size_t kHeaderBytes = 24;
  static constexpr std::size_t kMaxMessage = 4096;
  static constexpr std::size_t kMaxBytes = kHeaderBytes + kMaxMessage;

  FrameKind kind = FrameKind::kExchange;
  std::uint64_t sequence = 0;  // of a post: its topic
  bool has_descriptor = false;
  std::vector<std::uint8_t> message;
};

std::vector<std::uint8_t> encode_exchange(std::uint64_t sequence, bool has_descriptor,
                                          std::span<const std::uint8_t> message,
                                          FrameKind kind = FrameKind::kExchange);

// Empty for anything malformed. Local, thread safe.
std::optional<ExchangeFrame> parse_exchange(std::span<const std::uint8_t> packet);

}  // namespace symm
