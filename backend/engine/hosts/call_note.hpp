// What a rank is about to do, as it tells ranks of other hosts.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/core/collective.hpp"
#include "kernels/core/error.hpp"

namespace symm {

// Its bytes travel as they are: hosts are of one kind of processor.
struct CallNote {
  std::uint64_t sequence = 0;
  std::uint64_t count = 0;         // of the whole list where there is one that all ranks share
  std::uint64_t counts_hash = 0;   // of that list
  std::uint64_t bytes_to_you = 0;  // all_to_all: for the rank that reads this
  std::uint32_t kind = 0;
  std::uint32_t dtype = 0;
  std::uint32_t op = 0;
  std::uint32_t root = 0;
  std::uint32_t layout = 0;
  std::uint32_t unused = 0;
};

// What this rank tells `peer` of its call `args`, and what it expects to be told: the same but for
// the bytes of an all_to_all. Ranks are group ranks.
CallNote note_to(const CollectiveArgs& args, std::uint64_t sequence, int peer);
CallNote note_expected_from(const CollectiveArgs& args, std::uint64_t sequence, int peer);

// Of what must be the same on every rank of the group; never 0.
std::uint32_t call_hash(const CollectiveArgs& args, std::uint64_t sequence);

bool same_note(const CallNote& a, const CallNote& b);

// kMismatch: `who` told `got` where `expected` was expected.
Error different_notes(const std::string& who, const CallNote& got, const CallNote& expected);

}  // namespace symm
