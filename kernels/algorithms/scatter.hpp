// scatter: the root stages a piece for every rank in one slot a step, each rank reads its piece.
//
// Steps: ceil(share / (chunk / world_size)). The root does not wait for the readers, beyond the
// slots' depth.
#pragma once

#include "kernels/algorithms/executor.hpp"

namespace symm {

// `inputs` [world_size] at the root (unread elsewhere), each `bytes` long; `output` on every rank.
// In-place reading needs the inputs to be one array: share r at offset r * bytes.
template <Executor X>
bool scatter(X& x, const Part* inputs, void* output, std::size_t bytes, int root) {
  const int world = x.world_size();
  const int me = x.rank();
  const std::size_t share_bytes =
      whole_elements(x.chunk_bytes() / static_cast<std::size_t>(world), 1);
  const Pieces pieces{bytes, share_bytes};
  for (std::uint32_t step = 0; step < pieces.count(); ++step) {
    const std::size_t offset = pieces.offset(step);
    const std::size_t n = pieces.bytes_of(step, bytes);
    if (me == root) {
      for (int r = 0; r < world; ++r) {
        if (r == root) continue;
        if (!x.stage(step, static_cast<std::size_t>(r) * share_bytes,
                     as_bytes(inputs[r].data) + offset, n)) {
          return false;
        }
      }
      x.publish(step);
      x.copy(as_bytes(output) + offset, as_bytes(inputs[root].data) + offset, n);
    } else {
      if (!x.await(root, step)) return false;
      const std::size_t share = static_cast<std::size_t>(me);
      x.copy(as_bytes(output) + offset,
             x.source(root, step, share * share_bytes, share * bytes + offset), n);
    }
    x.read_done(step);
  }
  return true;
}

}  // namespace symm
