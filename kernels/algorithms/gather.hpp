// gather: each rank stages its share in pieces, the root reads them.
//
// Steps: ceil(share / chunk). The other ranks do not wait for the root, beyond the slots' depth.
#pragma once

#include "kernels/algorithms/executor.hpp"

namespace symm {

// `input`: `bytes` on every rank; `outputs` [world_size] at the root, unread elsewhere.
template <Executor X>
bool gather(X& x, const void* input, std::size_t bytes, const Part* outputs, int root) {
  const Pieces pieces{bytes, x.chunk_bytes()};
  for (std::uint32_t step = 0; step < pieces.count(); ++step) {
    const std::size_t offset = pieces.offset(step);
    const std::size_t n = pieces.bytes_of(step, bytes);
    if (x.rank() != root) {
      if (!x.stage(step, 0, as_bytes(input) + offset, n)) return false;
      x.publish(step);
    } else {
      x.copy(as_bytes(outputs[root].data) + offset, as_bytes(input) + offset, n);
      for (int i = 1; i < x.world_size(); ++i) {
        const int peer = nth_peer(root, i, x.world_size());
        if (!x.await(peer, step)) return false;
        x.copy(as_bytes(outputs[peer].data) + offset, x.source(peer, step, 0, offset), n);
      }
    }
    x.read_done(step);
  }
  return true;
}

}  // namespace symm
