#include "symm_mem/group/segment_table.hpp"

#include <algorithm>
#include <utility>

namespace symm {

std::size_t SegmentTable::add(Entry entry) {
  const std::lock_guard lock(mutex_);
  auto free = std::ranges::find(entries_, std::shared_ptr<Segment>(), &Entry::segment);
  if (free == entries_.end()) free = entries_.insert(free, Entry{});
  *free = std::move(entry);
  free->serial = ++added_;
  known_.fetch_add(1, std::memory_order_release);
  return static_cast<std::size_t>(free - entries_.begin());
}

std::optional<std::size_t> SegmentTable::remove(const std::shared_ptr<Segment>& segment) {
  Entry gone;  // let go of outside the lock
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(entries_, segment, &Entry::segment);
  if (segment == nullptr || found == entries_.end()) return std::nullopt;
  gone = std::exchange(*found, Entry{});
  known_.fetch_sub(1, std::memory_order_release);
  return static_cast<std::size_t>(found - entries_.begin());
}

void SegmentTable::set_symmetric(const std::shared_ptr<Segment>& segment) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(entries_, segment, &Entry::segment);
  if (found != entries_.end()) found->symmetric = true;
}

std::shared_ptr<Segment> SegmentTable::at(std::size_t number) const {
  const std::lock_guard lock(mutex_);
  return number < entries_.size() ? entries_[number].segment : nullptr;
}

std::shared_ptr<Segment> SegmentTable::with_serial(std::uint64_t serial) const {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(entries_, serial, &Entry::serial);
  return found == entries_.end() ? nullptr : found->segment;
}

std::vector<SegmentTable::Entry> SegmentTable::entries() const {
  const std::lock_guard lock(mutex_);
  return entries_;
}

std::optional<SegmentTable::Location> SegmentTable::find(const void* data,
                                                         std::size_t bytes) const {
  if (known_.load(std::memory_order_acquire) == 0) [[likely]] {
    return std::nullopt;
  }
  const std::lock_guard lock(mutex_);
  for (std::size_t number = 0; number < entries_.size(); ++number) {
    if (!entries_[number].segment) continue;
    const LocalSegment& local = *entries_[number].segment->local();
    if (!local.contains(data, bytes)) continue;
    const auto offset =
        static_cast<std::size_t>(static_cast<const std::byte*>(data) - local.base());
    return Location{number, entries_[number].serial, offset, entries_[number].symmetric};
  }
  return std::nullopt;
}

}  // namespace symm
