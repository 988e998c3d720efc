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
SYMM_HOST_DEVICE bool reduce_scatter(X& x, const Part* inputs, void* output) {
  const int world = x.world_size();
  const int me = x.rank();
  const std::size_t size = x.element_bytes();
  const std::size_t lane = whole_elements(x.chunk_bytes() / static_cast<std::size_t>(world), size);
  std::size_t largest = 0;
  std::size_t before_mine = 0;
  for (int r = 0; r < world; ++r) {
    if (inputs[r].count * size > largest) largest = inputs[r].count * size;
    if (r < me) before_mine += inputs[r].count * size;
  }
  const Pieces pieces{largest, lane};
  const void* sources[kMaxRanks];
  for (std::uint32_t step = 0; step < pieces.count(); ++step) {
    const std::size_t offset = pieces.offset(step);
    for (int r = 0; r < world; ++r) {
      if (r == me) continue;
      if (!x.stage(step, static_cast<std::size_t>(r) * lane, as_bytes(inputs[r].data) + offset,
                   pieces.bytes_of(step, inputs[r].count * size))) {
        return false;
      }
    }
    x.publish(step);
    if (!await_inputs(x, step, static_cast<std::size_t>(me) * lane, before_mine + offset,
                      as_bytes(inputs[me].data) + offset, sources)) {
      return false;
    }
    x.reduce(as_bytes(output) + offset, sources,
             pieces.bytes_of(step, inputs[me].count * size) / size);
    x.read_done(step);
  }
  return true;
}

}  // namespace symm
