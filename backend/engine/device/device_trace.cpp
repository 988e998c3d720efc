#include "backend/engine/device/device_trace.hpp"

#include <algorithm>
#include <cstring>

#include "backend/engine/group/call_record.hpp"
#include "kernels/core/atomics.hpp"

namespace symm {

namespace {

constexpr std::size_t kRecordWords = sizeof(CallRecord) / sizeof(std::uint64_t);
static_assert(offsetof(CallRecord, sequence) == 0);

std::uint64_t* words_of(CallRecord& record) { return reinterpret_cast<std::uint64_t*>(&record); }

}  // namespace

DeviceTrace::DeviceTrace(const LocalGroup& group, GroupMemory* memory)
    : group_(group), memory_(memory), verified_(static_cast<std::size_t>(group.world_size())) {
  if (memory == nullptr) {
    alone_ = std::make_unique<Alone>();
    pages_ = {&alone_->page};
    calls_ = {&alone_->calls};
    return;
  }
  for (int r = 0; r < group.world_size(); ++r) {
    pages_.push_back(&memory->control(r).device);
    calls_.push_back(&memory->control(r).device_calls);
  }
}

std::uint64_t DeviceTrace::launched() const { return load_acquire(&calls(group_.rank()).entered); }

// Every word is released, so that a reader that sees a new one also sees the cleared sequence.
void DeviceTrace::post(const CallRecord& record, std::chrono::milliseconds timeout) {
  DeviceCalls& own = *calls_[static_cast<std::size_t>(group_.rank())];
  CallRecord& place = own.calls[record.sequence % kDeviceCallRing];
  timeouts_[record.sequence % kDeviceCallRing].store(timeout.count(), std::memory_order_relaxed);
  store_release(&place.sequence, std::uint64_t{0});
  std::uint64_t words[kRecordWords];
  std::memcpy(words, &record, sizeof(record));
  for (std::size_t i = 1; i < kRecordWords; ++i) store_release(words_of(place) + i, words[i]);
  store_release(&place.sequence, record.sequence);
  store_release(&own.entered, record.sequence);
}

std::optional<CallRecord> DeviceTrace::record(int rank, std::uint64_t sequence) const {
  return read_device_call(calls(rank), sequence);
}

std::optional<Error> DeviceTrace::difference(bool wait) {
  std::unique_lock lock(verify_mutex_, std::try_to_lock);
  if (!lock.owns_lock()) {
    if (!wait) return std::nullopt;
    lock.lock();
  }
  const std::uint64_t own = launched();
  compared_at_.store(own, std::memory_order_relaxed);
  for (int peer = 0; peer < static_cast<int>(calls_.size()); ++peer) {
    std::uint64_t& verified = verified_[static_cast<std::size_t>(peer)];
    if (peer == group_.rank() || verified == own) continue;
    const std::uint64_t theirs = load_acquire(&calls(peer).entered);
    const std::uint64_t furthest = std::max(own, theirs);
    if (furthest > kDeviceCallRing) verified = std::max(verified, furthest - kDeviceCallRing);
    for (; verified < std::min(own, theirs); ++verified) {
      const auto mine = record(group_.rank(), verified + 1);
      const auto other = record(peer, verified + 1);
      if (!mine || !other || same_call(*mine, *other)) continue;
      return different_calls(group_, "device seq", peer, *mine, *other);
    }
  }
  return std::nullopt;
}

std::string DeviceTrace::call_name(std::uint64_t sequence) const {
  const std::string number = " device seq " + std::to_string(sequence);
  if (captured()) return "a collective (replays of graphs count)" + number;
  const auto found = record(group_.rank(), sequence);
  return (found ? describe_call(*found) : "a collective") + number;
}

std::string DeviceTrace::current_call() const {
  const std::uint64_t completed = load_acquire(&own_page().completed);
  const std::uint64_t entered = load_acquire(&own_page().entered);
  if (entered > completed) return call_name(entered);
  // Put on a stream, and not begun; replays are put there without being counted.
  if (!captured() && launched() > completed) return call_name(completed + 1);
  return "after device seq " + std::to_string(completed);
}

std::optional<std::chrono::milliseconds> DeviceTrace::timeout_of(std::uint64_t sequence) const {
  if (captured() || !record(group_.rank(), sequence)) return std::nullopt;
  return std::chrono::milliseconds(
      timeouts_[sequence % kDeviceCallRing].load(std::memory_order_relaxed));
}

std::string DeviceTrace::call_on_host(int peer) const {
  if (memory_ == nullptr) return "";
  const ControlRegion& control = memory_->control(peer);
  const std::uint64_t entered = load_acquire(&control.progress.entered);
  if (entered == load_acquire(&control.progress.completed)) return "";
  return text_of("in ", describe_call(control.calls[entered % kCallRing]), " seq ", entered,
                 " on the host; ");
}

std::string DeviceTrace::arrival_report(std::uint64_t sequence) const {
  return symm::arrival_report(group_, [&](int peer) -> std::optional<std::string> {
    const std::uint64_t begun = load_acquire(&page(peer).entered);
    if (begun >= sequence) return std::nullopt;
    const std::uint64_t posted = load_acquire(&calls(peer).entered);
    const auto last = record(peer, posted);
    const std::string on_host = call_on_host(peer);
    if (posted == 0 || !last) return on_host + "no call yet";
    return on_host + "last put on a stream: " + describe_call(*last) + " device seq " +
           std::to_string(posted) + "; its device has begun " + std::to_string(begun) +
           " and ended " + std::to_string(load_acquire(&page(peer).completed));
  });
}

}  // namespace symm
