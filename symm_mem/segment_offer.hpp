// What each rank says of the segment that it brings to a rendezvous, and later of whether it could
// map the others'.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/core/error.hpp"
#include "symm_mem/handle_choice.hpp"
#include "symm_mem/multicast_team.hpp"

namespace symm {

// Little-endian: magic u32, device kind u32, bytes u64, mapped bytes u64, the handles, what stands
// in the way of multicast, error code u32 (all ones for none), error text.
struct SegmentOffer {
  std::uint32_t device = 0;
  std::uint64_t bytes = 0;
  std::uint64_t mapped_bytes = 0;
  HandleOffer handles;
  MulticastStanding multicast;
  std::optional<Error> error;

  std::vector<std::uint8_t> encode() const;
  // Hostile input from `rank`. Throws Error(kSecurity) that names it.
  static SegmentOffer decode(std::span<const std::uint8_t> bytes, int rank);

  // Throws `rank`'s error where it has one.
  void throw_if_failed(int rank) const;
};

// `offers` by rank. Throws Error(kMismatch) where they do not fit together, or the first rank's
// error: the same on every rank that has the same offers.
void check_offers(std::span<const SegmentOffer> offers);

}  // namespace symm
