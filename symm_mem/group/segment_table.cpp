#include "symm_mem/group/segment_table.hpp"

#include <algorithm>
#include <utility>

#include "kernels/core/error.hpp"

namespace symm {
namespace {

std::uint64_t number_of(const SegmentTable::Entry& entry) { return entry.segment->number(); }

}  // namespace

void SegmentTable::add(Entry entry) {
  const std::lock_guard lock(mutex_);
  const std::optional<int> row = entry.segment->row();
  const auto has_the_row = [&](const Entry& other) { return other.segment->row() == row; };
  if (row && std::ranges::any_of(entries_, has_the_row)) {
    throw Error(ErrorCode::kInvalidArgument, "segment ", entry.segment->number(),
                " has a row that another segment has: a segment must be added before the next "
                "one is made");
  }
  const auto behind = std::ranges::upper_bound(entries_, number_of(entry), {}, number_of);
  entries_.insert(behind, std::move(entry));
  known_.store(entries_.size(), std::memory_order_release);
}

void SegmentTable::remove(const std::shared_ptr<Segment>& segment) {
  Entry gone;  // let go of outside the lock
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(entries_, segment, &Entry::segment);
  if (found == entries_.end()) return;
  gone = std::move(*found);
  entries_.erase(found);
  known_.store(entries_.size(), std::memory_order_release);
}

void SegmentTable::set_symmetric(const std::shared_ptr<Segment>& segment) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(entries_, segment, &Entry::segment);
  if (found != entries_.end()) found->symmetric = true;
}

std::shared_ptr<Segment> SegmentTable::with_number(std::uint64_t number) const {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(entries_, number, number_of);
  return found == entries_.end() ? nullptr : found->segment;
}

std::shared_ptr<Segment> SegmentTable::with_record_number(std::uint32_t in_record) const {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(entries_, in_record, [](const Entry& one) {
    return SegmentTable::in_record(number_of(one));
  });
  return found == entries_.end() ? nullptr : found->segment;
}

std::vector<SegmentTable::Entry> SegmentTable::entries() const {
  const std::lock_guard lock(mutex_);
  return entries_;
}

TableRows SegmentTable::free_rows() const {
  TableRows rows = TableRows::all();
  const std::lock_guard lock(mutex_);
  for (const Entry& one : entries_) {
    if (const std::optional<int> row = one.segment->row()) rows.erase(*row);
  }
  return rows;
}

std::optional<SegmentTable::Location> SegmentTable::find(const void* data,
                                                         std::size_t bytes) const {
  if (known_.load(std::memory_order_acquire) == 0) [[likely]] {
    return std::nullopt;
  }
  const std::lock_guard lock(mutex_);
  for (auto entry = entries_.rbegin(); entry != entries_.rend(); ++entry) {
    const Entry& one = *entry;
    const LocalSegment& local = *one.segment->local();
    if (!local.contains(data, bytes)) continue;
    const auto offset =
        static_cast<std::size_t>(static_cast<const std::byte*>(data) - local.base());
    return Location{one.segment, offset, one.symmetric};
  }
  return std::nullopt;
}

}  // namespace symm
