// reduce_scatter: each rank stages a piece of every share in one slot a step; the owner of a share
// combines the pieces in rank order.
//
// Steps: ceil(largest share / (chunk / world_size)). Memory traffic a rank: (N-1) shares written
// (none when read in place), N shares read, one written. Shares may differ in size; ranks agree on
// the list.
#pragma once

#include "kernels/algorithms/executor.hpp"

namespace symm {

// inputs[r]: the share for rank r. `output`: inputs[rank].count elements; may be
// inputs[rank].data. In-place reading needs the inputs to be one array in rank order.
template <Executor X>
bool reduce_scatter(X& x, const Part* inputs, void* output) {
  const int world = x.world_size();
  const int me = x.rank();
  const std::size_t size = x.element_bytes();
  const std::size_t share_bytes =
      whole_elements(x.chunk_bytes() / static_cast<std::size_t>(world), size);
  std::size_t largest = 0;
  std::size_t before_mine = 0;
  for (int r = 0; r < world; ++r) {
    const std::size_t bytes = inputs[r].count * size;
    if (bytes > largest) largest = bytes;
    if (r < me) before_mine += bytes;
  }
  const Pieces pieces{largest, share_bytes};
  for (std::uint32_t step = 0; step < pieces.count(); ++step) {
    const std::size_t offset = pieces.offset(step);
    for (int r = 0; r < world; ++r) {
      if (r == me) continue;
      if (!x.stage(step, static_cast<std::size_t>(r) * share_bytes,
                   as_bytes(inputs[r].data) + offset,
                   pieces.bytes_of(step, inputs[r].count * size))) {
        return false;
      }
    }
    x.publish(step);
    const void* const* sources =
        await_inputs(x, step, static_cast<std::size_t>(me) * share_bytes, before_mine + offset,
                     as_bytes(inputs[me].data) + offset);
    if (sources == nullptr) return false;
    x.reduce(as_bytes(output) + offset, sources,
             pieces.bytes_of(step, inputs[me].count * size) / size);
    x.read_done(step);
  }
  return true;
}

}  // namespace symm
