// broadcast: the root stages one piece a step, every other rank reads it.
//
// Steps: ceil(bytes / chunk). Memory traffic: the root writes the message once (not at all when it
// is read in place), each other rank reads it once. The root does not wait for the readers, beyond
// the slots' depth.
#pragma once

#include "kernels/algorithms/executor.hpp"

namespace symm {

// `input` is read at the root, `output` (may be the same) is written on every rank; `bytes` long.
template <Executor X>
bool broadcast(X& x, const void* input, void* output, std::size_t bytes, int root) {
  const Pieces pieces{bytes, x.chunk_bytes()};
  for (std::uint32_t step = 0; step < pieces.count(); ++step) {
    const std::size_t offset = pieces.offset(step);
    const std::size_t n = pieces.bytes_of(step, bytes);
    if (x.rank() == root) {
      if (!x.stage(step, 0, as_bytes(input) + offset, n)) return false;
      x.publish(step);
      x.copy(as_bytes(output) + offset, as_bytes(input) + offset, n);
    } else {
      if (!x.await(root, step)) return false;
      x.copy(as_bytes(output) + offset, x.source(root, step, 0, offset), n);
    }
    x.read_done(step);
  }
  return true;
}

}  // namespace symm
