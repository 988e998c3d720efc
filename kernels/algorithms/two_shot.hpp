// Two-shot reduction, shared by all_reduce and reduce: each rank combines its share of a chunk,
// then every rank, or the root, collects the shares.
//
// NOTE [Two-shot steps]
// A chunk c of C is staged in step in(c) and its combined shares are published in step out(c). The
// next chunk is staged before this one is combined, so that no rank waits for a copy:
//   in(0)=0  in(1)=1  out(0)=2  in(2)=3  out(1)=4 ... in(c)=2c-1  out(c)=2c+2
// Memory traffic a rank and chunk: (N-1)/N of the chunk written, all of it read once for the
// combination, 1/N written, (N-1)/N read.
#pragma once

#include "kernels/algorithms/executor.hpp"

namespace symm {

namespace two_shot {

constexpr std::uint32_t in_step(std::uint32_t chunk) { return chunk == 0 ? 0 : 2 * chunk - 1; }
constexpr std::uint32_t out_step(std::uint32_t chunk) { return 2 * chunk + 2; }

// The geometry of a call. Bytes throughout.
struct Geometry {
  Pieces chunks;
  std::size_t element_bytes;
  int world_size;
  bool results_in_place;  // a rank whose input is read in place also leaves its results there

  // Shares of a chunk of n bytes: all equal but the last ones, which may be shorter or empty.
  std::size_t share(std::size_t n) const {
    const std::size_t elements = n / element_bytes;
    const std::size_t even = (elements + static_cast<std::size_t>(world_size) - 1) /
                             static_cast<std::size_t>(world_size);
    return align_up(even * element_bytes, element_bytes < kCacheLine ? kCacheLine : element_bytes);
  }
  std::size_t share_begin(std::size_t n, int rank) const {
    return min_size(share(n) * static_cast<std::size_t>(rank), n);
  }
  std::size_t share_bytes(std::size_t n, int rank) const {
    return share_begin(n, rank + 1) - share_begin(n, rank);
  }
};

// Stages this rank's part of chunk `c`, except the share that this rank combines itself.
template <Executor X>
bool stage_chunk(X& x, const Geometry& g, const std::byte* input, std::uint32_t c) {
  const std::size_t n = g.chunks.bytes_of(c, g.chunks.total);
  const std::byte* chunk = input + g.chunks.offset(c);
  const std::size_t mine = g.share_begin(n, x.rank());
  const std::size_t rest = g.share_begin(n, x.rank() + 1);
  if (!x.stage(in_step(c), 0, chunk, mine)) return false;
  if (!x.stage(in_step(c), rest, chunk + rest, n - rest)) return false;
  x.publish(in_step(c));
  return true;
}

// Combines this rank's share of chunk `c` into `result` and publishes it.
template <Executor X>
bool combine_share(X& x, const Geometry& g, const std::byte* input, std::byte* output,
                   std::uint32_t c) {
  const std::size_t offset = g.chunks.offset(c);
  const std::size_t n = g.chunks.bytes_of(c, g.chunks.total);
  const std::size_t begin = g.share_begin(n, x.rank());
  const std::size_t bytes = g.share_bytes(n, x.rank());
  const void* const* sources =
      await_inputs(x, in_step(c), begin, offset + begin, input + offset + begin);
  if (sources == nullptr) return false;
  if (g.results_in_place && x.in_place()) {
    x.reduce(output + offset + begin, sources, bytes / g.element_bytes);
  } else {
    std::byte* slot = nullptr;
    if (g.results_in_place || output == nullptr) {  // another rank collects it
      slot = x.open_slot(out_step(c));
      if (slot == nullptr) return false;
    }
    x.reduce_to(slot, output == nullptr ? nullptr : output + offset + begin, sources,
                bytes / g.element_bytes);
  }
  x.publish(out_step(c));
  return true;
}

// Reads the other ranks' shares of chunk `c` into `output`.
template <Executor X>
bool collect_shares(X& x, const Geometry& g, std::byte* output, std::uint32_t c) {
  const std::size_t offset = g.chunks.offset(c);
  const std::size_t n = g.chunks.bytes_of(c, g.chunks.total);
  for (int i = 1; i < x.world_size(); ++i) {
    const int peer = nth_peer(x.rank(), i, x.world_size());
    if (!x.await(peer, out_step(c))) return false;
    const std::size_t begin = g.share_begin(n, peer);
    const std::byte* result = g.results_in_place ? x.source(peer, out_step(c), 0, offset + begin)
                                                 : x.slot(peer, out_step(c));
    x.copy(output + offset + begin, result, g.share_bytes(n, peer));
  }
  return true;
}

}  // namespace two_shot

// `output` is null on a rank that needs no result. With results_in_place every rank needs one, and
// a rank whose data is read in place has output == input. `bytes`: a multiple of the element size.
template <Executor X>
bool two_shot_reduction(X& x, const std::byte* input, std::byte* output, std::size_t bytes,
                        bool results_in_place) {
  const two_shot::Geometry g{{bytes, whole_elements(x.chunk_bytes(), x.element_bytes())},
                             x.element_bytes(),
                             x.world_size(),
                             results_in_place};
  const std::uint32_t chunks = g.chunks.count();
  if (!two_shot::stage_chunk(x, g, input, 0)) return false;
  for (std::uint32_t c = 0; c < chunks; ++c) {
    if (c + 1 < chunks && !two_shot::stage_chunk(x, g, input, c + 1)) return false;
    if (!two_shot::combine_share(x, g, input, output, c)) return false;
    if (output != nullptr && !two_shot::collect_shares(x, g, output, c)) return false;
    // The next chunk, staged one step before out(c), has not been read yet.
    x.read_done(c + 1 < chunks ? two_shot::out_step(c) - 2 : two_shot::out_step(c));
  }
  return true;
}

}  // namespace symm
