// The operations that an algorithm needs of its executor.
//
// NOTE [Executors]
// Algorithms are written over an executor: HostExecutor, one a rank and group, or the executor of a
// test, which prints the operations. Steps given to an executor count from 0 in each call; it adds
// the group's epoch. The executor knows the location of each rank's data: in slots, or in place in
// a segment that every rank maps. An operation that returns bool returns false when the call cannot
// go on (a dead peer, an abort, a time-out, a different call on the other side): the algorithm then
// returns false at once, and the executor keeps the reason.
//
//   stage(step, slot_offset, src, bytes)
//                          makes `bytes` of this rank's input readable in `step` once published:
//                          copies into its slot, or does nothing where the data is read in place
//   open_slot(step)        this rank's slot of `step`, free to be written; null when it cannot be
//   publish(step)          what was staged or written for steps <= `step` may be read by peers
//   await(peer, step)      `peer` has published `step`
//   await_all(step)        every other rank has
//   source(peer, step, slot_offset, input_offset)
//                          address of the peer's input: staged at slot_offset, or in place at
//                          input_offset, by the peer's buffer location; valid after await
//   list_source(rank, pointer), sources()
//                          addresses of the inputs of a reduction: listed rank by rank, then read
//   slot(owner, step)      the slot itself, for data that is never in place; a peer's after await
//   read_done(step)        this rank has finished reading steps <= `step`
//   copy(dst, src, bytes)  nothing where dst == src
//   reduce(dst, srcs, count), accumulate(out, in, src, count), finish(dst, in, src, count)
//                          as ReduceKernels, for the call's dtype and op; srcs by group rank
//   reduce_to(slot, dst, srcs, count)
//                          as reduce, into a slot of this rank's, into dst, or into both: null is
//                          left out
//   count_mismatch(peer, theirs, mine)
//                          the peer sends `theirs` elements where this rank expects `mine`: ends
//                          the call, returns false
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

#include "kernels/core/collective.hpp"
#include "kernels/core/platform.hpp"
#include "kernels/protocol/signal.hpp"

namespace symm {

template <class X>
concept Executor = requires(X& x, int peer, std::uint32_t step, std::size_t n, std::byte* dst,
                            const std::byte* src, const void* const* srcs) {
  { x.rank() } -> std::convertible_to<int>;
  { x.world_size() } -> std::convertible_to<int>;
  { x.chunk_bytes() } -> std::convertible_to<std::size_t>;
  { x.element_bytes() } -> std::convertible_to<std::size_t>;
  { x.accumulate_bytes() } -> std::convertible_to<std::size_t>;
  { x.in_place() } -> std::convertible_to<bool>;
  { x.stage(step, n, src, n) } -> std::same_as<bool>;
  { x.open_slot(step) } -> std::same_as<std::byte*>;
  { x.publish(step) } -> std::same_as<void>;
  { x.await(peer, step) } -> std::same_as<bool>;
  { x.await_all(step) } -> std::same_as<bool>;
  { x.source(peer, step, n, n) } -> std::same_as<const std::byte*>;
  { x.list_source(peer, src) } -> std::same_as<void>;
  { x.sources() } -> std::same_as<const void* const*>;
  { x.slot(peer, step) } -> std::same_as<std::byte*>;
  { x.read_done(step) } -> std::same_as<void>;
  { x.copy(dst, src, n) } -> std::same_as<void>;
  { x.reduce(dst, srcs, n) } -> std::same_as<void>;
  { x.reduce_to(dst, dst, srcs, n) } -> std::same_as<void>;
  { x.accumulate(dst, src, src, n) } -> std::same_as<void>;
  { x.finish(dst, src, src, n) } -> std::same_as<void>;
  { x.count_mismatch(peer, n, n) } -> std::same_as<bool>;
};

// Divides a message of `total` bytes into equal pieces; at least one, which may be empty, so that
// every call takes a step and ranks that made different calls meet.
struct Pieces {
  std::size_t total;
  std::size_t piece;

  constexpr std::uint32_t count() const {
    return total == 0 ? 1u : static_cast<std::uint32_t>((total + piece - 1) / piece);
  }
  constexpr std::size_t offset(std::uint32_t index) const { return index * piece; }
  // Bytes of piece `index` of a message of `bytes` <= total (a shorter share ends earlier).
  constexpr std::size_t bytes_of(std::uint32_t index, std::size_t bytes) const {
    const std::size_t start = offset(index);
    return start >= bytes ? 0 : min_size(piece, bytes - start);
  }
};

// Largest piece of whole elements within `capacity` bytes, at least one element; a multiple of a
// line where that costs nothing, so that ranks do not write to one line.
constexpr std::size_t whole_elements(std::size_t capacity, std::size_t element_bytes) {
  const std::size_t lines = align_down(capacity, kCacheLine);
  if (lines >= element_bytes && lines % element_bytes == 0) return lines;
  return align_down(capacity, element_bytes);
}

// The `i`-th peer to read from or write to (1 <= i < world_size): ranks start at different peers,
// so that they do not all read the same memory at once.
constexpr int nth_peer(int rank, int i, int world_size) { return (rank + i) % world_size; }

// Waits for every peer's `step` and lists the inputs to combine by rank: the peers' at the given
// offsets, this rank's at `own`. Null when the call cannot go on.
template <Executor X>
const void* const* await_inputs(X& x, std::uint32_t step, std::size_t slot_offset,
                                std::size_t input_offset, const std::byte* own) {
  if (!x.await_all(step)) return nullptr;
  for (int rank = 0; rank < x.world_size(); ++rank) {
    x.list_source(rank, rank == x.rank() ? own : x.source(rank, step, slot_offset, input_offset));
  }
  return x.sources();
}

inline std::byte* as_bytes(void* pointer) { return static_cast<std::byte*>(pointer); }
inline const std::byte* as_bytes(const void* pointer) {
  return static_cast<const std::byte*>(pointer);
}

}  // namespace symm
