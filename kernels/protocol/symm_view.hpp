// The symmetric memory of one collective: the slots of every rank, mapped in this process.
//
// A plain struct that owns nothing; valid as long as the group that owns the memory.
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
