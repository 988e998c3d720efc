// all_reduce: combines every rank's input, in group-rank order, on every rank.
//
//   one_shot  every rank stages its input and combines all inputs. Steps: ceil(bytes / chunk).
//             One hop; reads N messages a rank. Best for small messages.
//   two_shot  shares (two_shot.hpp). Reads 2 messages a rank. Best for large messages.
//   ring      all_reduce_ring.hpp.
//
// All three combine in the order 0..N-1 and so give the same bits.
#pragma once

#include "kernels/algorithms/two_shot.hpp"

namespace symm {

// `output` may be `input`, unless data is read in place (a peer could then read a result).
template <Executor X>
bool all_reduce_one_shot(X& x, const void* input, void* output, std::size_t bytes) {
  const Pieces pieces{bytes, whole_elements(x.chunk_bytes(), x.element_bytes())};
  for (std::uint32_t step = 0; step < pieces.count(); ++step) {
    const std::size_t offset = pieces.offset(step);
    const std::size_t n = pieces.bytes_of(step, bytes);
    if (!x.stage(step, 0, as_bytes(input) + offset, n)) return false;
    x.publish(step);
    const void* const* sources = await_inputs(x, step, 0, offset, as_bytes(input) + offset);
    if (sources == nullptr) return false;
    x.reduce(as_bytes(output) + offset, sources, n / x.element_bytes());
    x.read_done(step);
  }
  return true;
}

// `output` may be `input`, and is where data is read in place.
template <Executor X>
bool all_reduce_two_shot(X& x, const void* input, void* output, std::size_t bytes) {
  return two_shot_reduction(x, as_bytes(input), as_bytes(output), bytes, true);
}

}  // namespace symm
