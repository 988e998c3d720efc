// The part of symmetric memory that synchronises the ranks of a group on one host.
//
// Each rank owns one ControlRegion, written by it alone and read by all; it starts out zero. In
// memory it follows the rank's GroupPage, and the point-to-point mailboxes follow it
// (kernels/protocol/mailbox.hpp).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/core/platform.hpp"
#include "kernels/protocol/device_layout.hpp"
#include "kernels/protocol/signal.hpp"

namespace symm {

// The call of one rank to the collective with number `sequence`. Peers compare the first block with
// their own before they read or write each other's data, so that different calls become an error
// that names both sides; the second block locates this rank's data.
struct alignas(kCacheLine) CallRecord {
  std::uint64_t sequence;
  std::uint64_t count;        // elements, as in CollectiveArgs
  std::uint64_t counts_hash;  // of per-rank counts, where the kind has them and ranks share them
  std::uint32_t layout;
  std::int32_t root;
  std::uint8_t kind;
  std::uint8_t dtype;
  std::uint8_t op;
  std::uint8_t algorithm;
  std::uint32_t chunk_bytes;
  std::uint32_t channels;

  std::uint32_t segment;  // 0: data is staged in slots; else SegmentTable::in_record()
  std::uint64_t offset;   // of the data inside that segment
  double factor;          // PREMUL_SUM
};
static_assert(sizeof(CallRecord) == kCacheLine);

// Number of calls that a rank may be ahead of another: at most kSlots, since each takes a step or
// more.
inline constexpr std::uint64_t kCallRing = 32;
static_assert(kCallRing >= 2 * kSlots);

// The same for calls on a device: a record is posted when the call is put on a stream, eager or
// captured, so a rank may be any number of calls ahead of another. The ring may lap a reader, which
// therefore copies a record between two looks at its sequence (NOTE [Records that may be
// overwritten] in backend/engine/device/device_trace.hpp).
inline constexpr std::uint64_t kDeviceCallRing = 256;

struct DeviceCalls {
  alignas(kCacheLine) std::uint64_t entered;  // highest sequence that was posted
  CallRecord calls[kDeviceCallRing];
};

struct alignas(kCacheLine) ProgressLine {
  std::uint64_t entered;    // highest sequence whose CallRecord can be read
  std::uint64_t completed;  // highest sequence that this rank has finished
};

// Messages up to this size go through slots that every group has from its start.
inline constexpr std::size_t kSmallSlotBytes = 64 * 1024;

struct ControlRegion {
  SignalLine ready;
  SignalLine done;
  SignalLine doorbell;  // rung by peers after a change in a mailbox of this rank
  ProgressLine progress;
  CallRecord calls[kCallRing];
  DeviceCalls device_calls;
  DevicePage device;
  alignas(4096) std::byte small_slots[kSlots][kSmallSlotBytes];
};

}  // namespace symm
