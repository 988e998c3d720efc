// What a rank is about to do, as it tells ranks of other hosts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/core/collective.hpp"
#include "kernels/core/error.hpp"

namespace symm {

// What must be the same on every rank of the group. Its bytes travel as they are: hosts are of one
// kind of processor.
struct CallNote {
  std::uint64_t sequence = 0;
  std::uint64_t count = 0;        // of the whole list where there is one that all ranks share
  std::uint64_t counts_hash = 0;  // of that list
  std::uint32_t kind = 0;
  std::uint32_t dtype = 0;
  std::uint32_t op = 0;
  std::uint32_t root = 0;
  std::uint32_t layout = 0;
  std::uint32_t unused = 0;
};

CallNote note_of(const CollectiveArgs& args, std::uint64_t sequence);

// Never 0.
std::uint32_t hash_of(const CallNote& note);

bool same_note(const CallNote& a, const CallNote& b);

// kMismatch: `who` made `theirs` where this rank made `mine`.
Error different_notes(const std::string& who, const CallNote& theirs, const CallNote& mine);

}  // namespace symm
