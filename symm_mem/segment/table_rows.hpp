// Rows of the tables in which the GPUs of a group find its segments (`table` in
// kernels/protocol/device_layout.hpp).
//
// NOTE [Rows of segments]
// A GPU reads a row that a peer names in its own rank's table, unchecked. So a row must never stand
// for one segment on a rank and for another on its peer, though ranks let go of segments at
// different times, and a rendezvous that ends with a time-out may have made the segment on some
// ranks (NOTE [Rounds of a rendezvous] in segment_rendezvous.hpp). Therefore no rank chooses a row
// by its own table: in the posts of a rendezvous each offers the rows that it does not use, and the
// segment gets the first that all have offered. A rank clears what its GPU has in that row before
// it sends its status: so where the segment is had by some ranks only, the others' GPUs find
// nothing there, and the row is offered by all again once all who had the segment have let it go.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "kernels/protocol/device_layout.hpp"
#include "symm_mem/process/byte_codec.hpp"

namespace symm {

struct TableRows {
  static constexpr std::size_t kWordBits = 64;
  static_assert(kMaxSegments % kWordBits == 0);

  std::array<std::uint64_t, kMaxSegments / kWordBits> words{};  // none

  static TableRows all() {
    TableRows rows;
    rows.words.fill(~std::uint64_t{0});
    return rows;
  }
  bool contains(int row) const { return (words[word_of(row)] & bit_of(row)) != 0; }
  void insert(int row) { words[word_of(row)] |= bit_of(row); }
  void erase(int row) { words[word_of(row)] &= ~bit_of(row); }
  void keep(const TableRows& others) {
    for (std::size_t i = 0; i < words.size(); ++i) words[i] &= others.words[i];
  }
  std::optional<int> first() const {
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (words[i] != 0) return static_cast<int>(i * kWordBits) + std::countr_zero(words[i]);
    }
    return std::nullopt;
  }
  bool operator==(const TableRows&) const = default;

  void write(ByteWriter& writer) const {
    for (const std::uint64_t word : words) writer.integer(word);
  }
  static TableRows read(ByteReader& reader) {
    TableRows rows;
    for (std::uint64_t& word : rows.words) word = reader.integer<std::uint64_t>();
    return rows;
  }

 private:
  static std::uint64_t bit_of(int row) {
    return std::uint64_t{1} << static_cast<std::size_t>(row) % kWordBits;
  }
  static std::size_t word_of(int row) { return static_cast<std::size_t>(row) / kWordBits; }
};

}  // namespace symm
