// The segments that a group's collectives know: peers read a tensor inside one in place, by its
// buffer location.
//
// Every rank adds and removes the same segments in the same order, so segments have the same
// numbers on every rank, where ranks are at the same call. A number is free again behind a
// remove(); a serial number is not, so it names a segment to a rank that is at another call too.
// Local, thread safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "symm_mem/segment/segment.hpp"

namespace symm {

class SegmentTable {
 public:
  struct Entry {
    std::shared_ptr<Segment> segment;
    // Symmetric registration: the ranks pass tensors at equal offsets of it together.
    bool symmetric = false;
    std::uint64_t serial = 0;  // add() gives it: from 1, and never the same again
  };
  struct Location {
    std::size_t number = 0;  // of the segment, from 0
    std::uint64_t serial = 0;
    std::size_t offset = 0;  // from the start of the rank's buffer
    bool symmetric = false;
  };

  // Gives `entry` the first free number.
  std::size_t add(Entry entry);
  // The number that it had; nullopt where it is not in the table.
  std::optional<std::size_t> remove(const std::shared_ptr<Segment>& segment);
  // From now on the segment is registered for symmetric use; nothing for one that is not there.
  void set_symmetric(const std::shared_ptr<Segment>& segment);

  // Null where the number is free.
  std::shared_ptr<Segment> at(std::size_t number) const;
  // Null where it is not in the table, or not yet.
  std::shared_ptr<Segment> with_serial(std::uint64_t serial) const;
  std::vector<Entry> entries() const;  // by number

  // Where [data, data + bytes) of this rank is; nullopt outside of all segments. One load while the
  // table is empty.
  std::optional<Location> find(const void* data, std::size_t bytes) const;

 private:
  std::atomic<std::size_t> known_{0};  // numbers that are not free
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;  // by number; null where it is free
  std::uint64_t added_ = 0;
};

}  // namespace symm
