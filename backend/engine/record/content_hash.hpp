// A 64-bit hash of the content of memory, for comparing two runs; no protection against intent.
//
// Words of 8 bytes, little-endian, go by turns into four lanes, so that four multiplications are
// under way at once. A step is a bijection of the lane for each word, and of the word for each
// lane: contents of one length that differ in one word only never have the same hash, others do
// with probability 2^-64. The value is part of the format of audit files (docs/diagnostics.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace symm {

class ContentHash {
 public:
  // One piece of memory; where pieces end is part of the hash.
  void add(std::span<const std::byte> bytes);
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0;
};

}  // namespace symm
