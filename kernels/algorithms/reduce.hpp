// reduce: combines every rank's input at the root.
//
//   one_shot  all ranks stage, the root combines. Steps: ceil(bytes / chunk). Best for small
//             messages: one hop, and the others do not wait.
//   two_shot  all ranks combine a share, the root collects (two_shot.hpp). Best for large ones:
//             every core works.
#pragma once

#include "kernels/algorithms/two_shot.hpp"

namespace symm {

// `output` is written at the root only and may be `input`.
template <Executor X>
bool reduce_one_shot(X& x, const void* input, void* output, std::size_t bytes, int root) {
  const Pieces pieces{bytes, whole_elements(x.chunk_bytes(), x.element_bytes())};
  for (std::uint32_t step = 0; step < pieces.count(); ++step) {
    const std::size_t offset = pieces.offset(step);
    const std::size_t n = pieces.bytes_of(step, bytes);
    if (x.rank() != root) {
      if (!x.stage(step, 0, as_bytes(input) + offset, n)) return false;
      x.publish(step);
    } else {
      const void* const* sources = await_inputs(x, step, 0, offset, as_bytes(input) + offset);
      if (sources == nullptr) return false;
      x.reduce(as_bytes(output) + offset, sources, n / x.element_bytes());
    }
    x.read_done(step);
  }
  return true;
}

// `output` as above. Shares always pass through slots: only the root has memory for results.
template <Executor X>
bool reduce_two_shot(X& x, const void* input, void* output, std::size_t bytes, int root) {
  return two_shot_reduction(x, as_bytes(input), x.rank() == root ? as_bytes(output) : nullptr,
                            bytes, false);
}

}  // namespace symm
