// all_reduce over an ordered ring: partial sums pass through ranks 0, 1, ... N-1 in the accumulate
// type, chunk by chunk; results pass from rank N-1 on through ranks 0, 1, ... N-2.
//
// NOTE [Ring steps]
// Iteration t of chunks + kLag handles the partial sum of chunk t in step 2t and the result of
// chunk t - kLag in step 2t + 1; each rank reads only its predecessor's slots. The last partial sum
// is the result, so rank 0 reads the result of chunk c from step 2c of rank N-1, kLag iterations
// after that step: this lets kLag chunks be under way at once, and is why rank 0 calls read_done 2
// kLag steps late. With kSlots >= 2 kLag + 2 that delays no rank. Partial t of rank r needs partial
// t of rank r-1, and result c of rank r needs that of rank r-1: every wait is for an earlier
// iteration, or for the same one and an earlier rank, so no cycle of waits exists. Memory traffic a
// rank: one partial and one result written, one of each read, all to and from one neighbour. The
// order of combination, and so the bits, are those of every other algorithm.
#pragma once

#include "kernels/algorithms/executor.hpp"

namespace symm {

namespace ring {

inline constexpr std::uint32_t kLag = 3;
static_assert(kSlots >= 2 * kLag + 2);

constexpr std::uint32_t partial_step(std::uint32_t t) { return 2 * t; }
constexpr std::uint32_t result_step(std::uint32_t t) { return 2 * t + 1; }

// Adds this rank's `count` elements of chunk t to the partial sum; rank N-1 finishes it.
template <Executor X>
bool pass_partial(X& x, const std::byte* input, std::byte* output, std::size_t count,
                  std::uint32_t t) {
  const int me = x.rank();
  const std::byte* previous = nullptr;
  if (me > 0) {
    if (!x.await(me - 1, partial_step(t))) return false;
    previous = x.slot(me - 1, partial_step(t));
  }
  std::byte* slot = x.open_slot(partial_step(t));
  if (slot == nullptr) return false;
  if (me + 1 < x.world_size()) {
    x.accumulate(slot, previous, input, count);
  } else {
    x.finish(slot, previous, input, count);
    x.copy(output, slot, count * x.element_bytes());
  }
  x.publish(partial_step(t));
  return true;
}

// Copies the result of chunk t - kLag from the predecessor and publishes it. Not for rank N-1.
template <Executor X>
bool pass_result(X& x, std::byte* output, std::size_t bytes, std::uint32_t t) {
  const int me = x.rank();
  const int last = x.world_size() - 1;
  const int previous = me == 0 ? last : me - 1;
  const std::uint32_t step = me == 0 ? partial_step(t - kLag) : result_step(t);
  if (!x.await(previous, step)) return false;
  x.copy(output, x.slot(previous, step), bytes);
  if (me + 1 == last) return true;  // the next rank is the one that made the result
  std::byte* slot = x.open_slot(result_step(t));
  if (slot == nullptr) return false;
  x.copy(slot, output, bytes);
  x.publish(result_step(t));
  return true;
}

}  // namespace ring

// `output` may be `input`. Data is always staged. At least two ranks.
template <Executor X>
bool all_reduce_ring(X& x, const void* input, void* output, std::size_t bytes) {
  const std::size_t size = x.element_bytes();
  const std::size_t wide = size < x.accumulate_bytes() ? x.accumulate_bytes() : size;
  const std::size_t elements = whole_elements(x.chunk_bytes(), wide) / wide;
  const Pieces pieces{bytes, elements * size};
  const std::uint32_t chunks = pieces.count();
  const int me = x.rank();
  for (std::uint32_t t = 0; t < chunks + ring::kLag; ++t) {
    if (t < chunks) {
      const std::size_t offset = pieces.offset(t);
      if (!ring::pass_partial(x, as_bytes(input) + offset, as_bytes(output) + offset,
                              pieces.bytes_of(t, bytes) / size, t)) {
        return false;
      }
    }
    if (t >= ring::kLag && me + 1 < x.world_size()) {
      const std::uint32_t c = t - ring::kLag;
      if (!ring::pass_result(x, as_bytes(output) + pieces.offset(c), pieces.bytes_of(c, bytes),
                             t)) {
        return false;
      }
    }
    if (me != 0) {
      x.read_done(ring::result_step(t));
    } else if (t >= ring::kLag) {
      x.read_done(ring::partial_step(t - ring::kLag));
    }
  }
  x.read_done(ring::result_step(chunks + ring::kLag - 1));
  return true;
}

}  // namespace symm
