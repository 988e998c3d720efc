// Copies of large results past the caches.
//
// NOTE [Streaming stores]
// An ordinary store loads the line that it changes, so a result larger than the caches costs its
// bytes three times: it is loaded, changed, and written back over what the next slots need. A
// streaming (non-temporal) store writes whole lines to memory and leaves the caches to the slots
// and the sources. It is the slower one where the line is in a cache: of a small result, hence the
// limit, and of a reduction in place, which has just read it (docs/benchmarks.md, "Streaming
// stores"). Slots are never written so: peers read them at once.
#pragma once

#include <cstddef>

namespace symm {

// Results of so many bytes, of one call on one rank, are written past the caches.
inline constexpr std::size_t kStreamingBytes = std::size_t{8} << 20;

// As memcpy, for buffers that do not overlap, of any alignment. What it stored is ordered before
// later stores, as ordinary stores are. Plain memcpy where the processor has no such stores. Local,
// any thread.
void streaming_copy(void* destination, const void* source, std::size_t bytes);

}  // namespace symm
