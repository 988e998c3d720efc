// Symmetric memory as one collective sees it: every rank's slots, addressed from here.
//
// A plain struct that owns nothing; it is valid as long as the group whose memory it shows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/protocol/control_region.hpp"

namespace symm {

struct SymmView {
  int rank = 0;  // group rank
  int world_size = 1;
  ControlRegion* const* controls = nullptr;  // [world_size]
  std::byte* const* slots = nullptr;         // [world_size]: first of kSlots slots
  std::size_t slot_bytes = 0;                // distance and capacity of slots

  std::byte* slot(int owner, std::uint32_t step) const {
    return slots[owner] + static_cast<std::size_t>(step % kSlots) * slot_bytes;
  }
};

}  // namespace symm
