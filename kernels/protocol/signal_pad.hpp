// Signals that users of symmetric memory exchange: slots that are empty at rest.
//
// NOTE [Signal pads]
// Every rank of a group has a pad for each allocation, zero at the start. A pad is an array of
// 32-bit slots; rank r stores its signals to the pad's owner on a channel in slot [channel *
// world_size + r]. A slot is 0 (empty), 1 (full) or 2 (withdrawn):
//   put   waits until the slot at the receiver is empty, and fills it; release
//   wait  waits until one's own slot is full, and empties it; acquire
//   barrier puts to every other rank, then waits for every other rank
// Writes before a put are visible after the wait that takes it. A second put waits until the first
// is taken, so no signal is lost or merged, and after balanced use a pad is zero again. Channels
// are independent of each other: use one for each stream or thread that signals at the same time.
// This is PyTorch's protocol, and kernels of users may take part in it.
//
// NOTE [Withdrawn signals]
// A rank that gives up a barrier goes back to its user, who may write to memory that the barrier
// was to protect, while its signals would let a late rank pass, and read. So it withdraws them: it
// exchanges its slot of the channel at every peer for 2, which no put and no take matches. A peer
// that has taken the signal before was past the barrier in time; any other raises, as does every
// later use of the channel by this rank. The pad's owner may set the slot to 0 by hand. Kernels of
// users that wait for such a signal wait for ever, as they would for a rank that never came.
//
// Host and device; owns nothing. The functions on slots never wait.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/core/atomics.hpp"
#include "kernels/core/platform.hpp"

namespace symm {

using SignalSlot = std::uint32_t;

inline constexpr SignalSlot kSignalEmpty = 0;
inline constexpr SignalSlot kSignalFull = 1;
inline constexpr SignalSlot kSignalWithdrawn = 2;

// Index in its owner's pad of the slot that `rank` fills on `channel`.
SYMM_INLINE constexpr std::size_t signal_slot(int channel, int world_size, int rank) {
  return static_cast<std::size_t>(channel) * static_cast<std::size_t>(world_size) +
         static_cast<std::size_t>(rank);
}

// Channels, each with a slot for every rank, that a pad of `pad_bytes` holds.
SYMM_INLINE constexpr std::size_t signal_channels(std::size_t pad_bytes, int world_size) {
  return pad_bytes / sizeof(SignalSlot) / static_cast<std::size_t>(world_size);
}

// True where `channel` is one of a pad's.
SYMM_INLINE constexpr bool has_signal_channel(std::size_t pad_bytes, int world_size, int channel) {
  return channel >= 0 && static_cast<std::size_t>(channel) < signal_channels(pad_bytes, world_size);
}

// Throw Error(kInvalidArgument) that names the operation, the given value and the valid range. Host
// only.
void check_signal_channel(const char* operation, std::size_t pad_bytes, int world_size,
                          int channel);
void check_signal_rank(const char* operation, int world_size, int rank);

// Fills an empty slot; releases the caller's earlier writes. False where it is full.
SYMM_INLINE bool try_put(SignalSlot* slot) {
  return compare_exchange_release(slot, kSignalEmpty, kSignalFull);
}

// Empties a full slot; acquires what the thread that filled it released. False where it is empty.
SYMM_INLINE bool try_take(SignalSlot* slot) {
  return compare_exchange_acquire(slot, kSignalFull, kSignalEmpty);
}

// Afterwards nobody takes the signal; what took it before was in time.
SYMM_INLINE void withdraw(SignalSlot* slot) { exchange_seq_cst(slot, kSignalWithdrawn); }

}  // namespace symm
