// What each rank says of the segment that it brings to a rendezvous: first of all of it and of its
// first piece, then of each further piece, and at last whether it could map the others'.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/core/error.hpp"
#include "symm_mem/segment/handle_choice.hpp"
#include "symm_mem/segment/multicast_team.hpp"

namespace symm {

// Little-endian: magic u32, device kind u32, bytes u64, mapped bytes u64, adopted u32, start u64,
// number of pieces u32, bytes of the piece u64, the handles, what stands in the way of multicast,
// error code u32 (all ones for none), error text.
struct SegmentOffer {
  // Of adopted memory: more pieces, and more bytes, than any device has.
  static constexpr std::uint32_t kMaxPieces = 1u << 16;
  static constexpr std::uint64_t kMaxMappedBytes = std::uint64_t{1} << 47;

  std::uint32_t device = 0;
  std::uint64_t bytes = 0;
  std::uint64_t mapped_bytes = 0;  // of all pieces
  bool adopted = false;            // memory that another library has made
  std::uint64_t start = 0;         // of the buffer, in the first piece
  std::uint32_t pieces = 1;
  std::uint64_t piece_bytes = 0;  // of the piece whose handles follow
  HandleOffer handles;
  MulticastStanding multicast;
  std::optional<Error> error;

  std::vector<std::uint8_t> encode() const;
  // Hostile input from `rank`. Throws Error(kSecurity) that names it.
  static SegmentOffer decode(std::span<const std::uint8_t> bytes, int rank);

  // Throws `rank`'s error where it has one.
  void throw_if_failed(int rank) const;
};

// `offers` by rank, of the first round. Throws Error(kMismatch) where they do not fit together,
// kSecurity for claims that no honest rank makes, or the first rank's error: the same on every rank
// that has the same offers. Ranks bring segments of the same mapped size; where one brings adopted
// memory, whose pieces may be cut differently on each rank, buffers of the same size.
void check_offers(std::span<const SegmentOffer> offers);

}  // namespace symm
