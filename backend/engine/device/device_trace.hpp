// The collective trace of devices: the pages that the GPUs of a group write, and the records that
// the hosts post of the calls that they put on streams.
//
// NOTE [Records that may be overwritten]
// A host posts the record of a call when it puts the call on a stream, so it may be far ahead of
// its peers, and its ring may lap them. A record's sequence is 0 while the record is written and is
// stored last; a reader copies the record between two looks at it. Records that are no longer in
// both rings are not compared. The watchdog compares every few milliseconds; a rank that posts
// faster than that looks itself before its ring is full (comparison_is_due), so that a launch does
// not look at lines that its peers write.
//
// NOTE [Device sequence]
// Calls on a device are counted apart from those on the host. The host counts the calls that it has
// put on streams; the GPU counts those that it has begun and ended (DevicePage). The two counts
// mean the same call until a stream is captured: a captured call is posted once and carried out
// once a replay, so that its number no longer names a record.
//
// Thread safety: post() by one thread at a time; every other member by any thread.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "backend/engine/group/group_memory.hpp"
#include "kernels/protocol/control_region.hpp"

namespace symm {

class DeviceTrace {
 public:
  // `memory` is null in a group of one, which gets a page of its own. References must outlive the
  // trace.
  DeviceTrace(const LocalGroup& group, GroupMemory* memory);

  DevicePage& page(int rank) const { return *pages_[static_cast<std::size_t>(rank)]; }
  DevicePage& own_page() const { return page(group_.rank()); }

  // Number of this rank's next call.
  std::uint64_t next_sequence() const { return launched() + 1; }
  // Calls that this rank has posted.
  std::uint64_t launched() const;
  // True once a call or a message was put on a captured stream.
  bool captured() const { return captured_.load(std::memory_order_relaxed); }
  void note_capture() { captured_.store(true, std::memory_order_relaxed); }

  void post(const CallRecord& record, std::chrono::milliseconds timeout);

  // Whether this rank has posted so many calls since anybody looked that it should look itself.
  bool comparison_is_due() const {
    return launched() - compared_at_.load(std::memory_order_relaxed) >= kDeviceCallRing / 4;
  }
  // Compares what peers have posted since the last look with this rank's records: the error that
  // names both sides where they differ. Where another thread is looking, `wait` says whether to
  // look as well.
  std::optional<Error> difference(bool wait = false);

  // "all_reduce(float32, SUM, count 4, ll) device seq 3".
  std::string call_name(std::uint64_t sequence) const;
  // The call that the device has begun and not ended, else the first on its stream, or that there
  // is none.
  std::string current_call() const;

  // The time-out that call `sequence` was given; nullopt where that is not known any more.
  std::optional<std::chrono::milliseconds> timeout_of(std::uint64_t sequence) const;

  // For a time-out: whose device has begun call `sequence`, and what the others did last.
  std::string arrival_report(std::uint64_t sequence) const;

 private:
  // What a group of one has in place of a control region.
  struct Alone {
    DevicePage page{};
    DeviceCalls calls{};
  };

  const DeviceCalls& calls(int rank) const { return *calls_[static_cast<std::size_t>(rank)]; }
  std::optional<CallRecord> record(int rank, std::uint64_t sequence) const;
  // "in barrier seq 3 on the host; " where `peer` is in a call there, else "".
  std::string call_on_host(int peer) const;

  const LocalGroup& group_;
  GroupMemory* memory_;  // null in a group of one
  std::unique_ptr<Alone> alone_;
  std::vector<DevicePage*> pages_;                                     // by rank
  std::vector<DeviceCalls*> calls_;                                    // by rank
  std::array<std::atomic<std::int64_t>, kDeviceCallRing> timeouts_{};  // ms, by call
  std::atomic<bool> captured_{false};
  std::atomic<std::uint64_t> compared_at_{0};  // this rank's calls at the last look
  std::mutex verify_mutex_;
  std::vector<std::uint64_t> verified_;  // by peer: calls up to here were compared
};

}  // namespace symm
