// all_gather: each rank stages its share in pieces, every other rank reads them.
//
// Steps: ceil(largest share / chunk). Memory traffic a rank: its share written once (not at all
// when read in place), every share read once. Shares may differ in size; ranks agree on the list.
#pragma once

#include "kernels/algorithms/executor.hpp"

namespace symm {

// `input`: this rank's share, outputs[rank].count elements; outputs[rank].data may be `input`.
template <Executor X>
bool all_gather(X& x, const void* input, const Part* outputs) {
  const std::size_t size = x.element_bytes();
  const int me = x.rank();
  std::size_t largest = 0;
  for (int r = 0; r < x.world_size(); ++r) {
    const std::size_t bytes = outputs[r].count * size;
    if (bytes > largest) largest = bytes;
  }
  const Pieces pieces{largest, x.chunk_bytes()};
  for (std::uint32_t step = 0; step < pieces.count(); ++step) {
    const std::size_t offset = pieces.offset(step);
    const std::size_t own = pieces.bytes_of(step, outputs[me].count * size);
    const std::byte* piece = as_bytes(input) + offset;
    if (!x.stage(step, 0, piece, own)) return false;
    x.publish(step);
    x.copy(as_bytes(outputs[me].data) + offset, piece, own);
    for (int i = 1; i < x.world_size(); ++i) {
      const int peer = nth_peer(me, i, x.world_size());
      if (!x.await(peer, step)) return false;
      x.copy(as_bytes(outputs[peer].data) + offset, x.source(peer, step, 0, offset),
             pieces.bytes_of(step, outputs[peer].count * size));
    }
    x.read_done(step);
  }
  return true;
}

}  // namespace symm
