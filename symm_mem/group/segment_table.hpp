// The segments that a group's collectives know: peers read a tensor inside one in place, by its
// buffer location.
//
// A segment's number is that of the exchange of its rendezvous (Segment::number()), so it names the
// same segment on every rank that has it, whatever other segments a rank has, and is not used
// again. Ranks name segments to each other by it; a rank that has no segment of that number says
// so. GPUs name them by rows (NOTE [Rows of segments] in table_rows.hpp).
// Local, thread safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "symm_mem/segment/segment.hpp"
#include "symm_mem/segment/table_rows.hpp"

namespace symm {

class SegmentTable {
 public:
  struct Entry {
    std::shared_ptr<Segment> segment;
    // Symmetric registration: the ranks pass tensors at equal offsets of it together.
    bool symmetric = false;
  };
  struct Location {
    std::shared_ptr<Segment> segment;
    std::size_t offset = 0;  // from the start of the rank's buffer
    bool symmetric = false;
  };

  // What CallRecord::segment has for a segment of that number: its number modulo 2^32 - 1, and 1
  // more, since 0 stands for none.
  static constexpr std::uint32_t in_record(std::uint64_t number) {
    return static_cast<std::uint32_t>(number % std::numeric_limits<std::uint32_t>::max()) + 1;
  }

  // Throws Error(kInvalidArgument) where another segment has its row: one that was made before and
  // added since.
  void add(Entry entry);
  // Nothing for one that is not there; nor in what follows.
  void remove(const std::shared_ptr<Segment>& segment);
  // From now on the segment is registered for symmetric use.
  void set_symmetric(const std::shared_ptr<Segment>& segment);

  // Null where it is not in the table, or not yet.
  std::shared_ptr<Segment> with_number(std::uint64_t number) const;
  std::shared_ptr<Segment> with_record_number(std::uint32_t in_record) const;
  std::vector<Entry> entries() const;  // by ascending number
  TableRows free_rows() const;

  // Where [data, data + bytes) of this rank is: in the last segment that was made of that memory,
  // since a rank may alone have one before it. nullopt outside of all segments. One load while the
  // table is empty.
  std::optional<Location> find(const void* data, std::size_t bytes) const;

 private:
  std::atomic<std::size_t> known_{0};  // entries
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;  // by ascending number
};

}  // namespace symm
