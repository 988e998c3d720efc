// What the blocks of a launch tell each other.
//
// NOTE [Values of blocks]
// The blocks of a launch that ends a call may tell each other one value each, in words of 16 bits
// of it and the number of the call, which never repeats: a word says by itself that it is there, so
// that nothing is fenced or reset. The launch before has ended, so nobody still reads what is
// written over. The blocks that wait for each other must all be running, so they are neighbours,
// and few: a launch has at most kMaxWireBlocks.
#pragma once

#include <type_traits>

#include "kernels/gpu/device/call_end.cuh"

namespace symm {

template <class T>
using ValueBits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;

// Of a call, in units of kSequenceUnit: whichever blocks of it have ended. `sequence`: when the
// block began.
__device__ inline std::uint64_t call_number(std::uint64_t sequence) {
  static_assert(kSequenceUnit == 1u << 16);
  return (sequence / kSequenceUnit + 1) * kSequenceUnit;
}

// By one thread of the block.
template <class T>
__device__ __forceinline__ void share_value(LocalState& local, std::uint64_t sequence, T value) {
  const auto bits = __builtin_bit_cast(ValueBits<T>, value);
  const std::uint64_t call = call_number(sequence);
#pragma unroll
  for (unsigned i = 0; i < sizeof(T) / 2; i += 2) {
    store_relaxed_pair(&local.block_values[blockIdx.x][i], call | (bits >> 16 * i & 0xffff),
                       call | (bits >> 16 * (i + 1) & 0xffff));
  }
}

// The value of another block, or of this one; false where the launch must end. By any thread.
// `params`: of a launch over a wire, of rank `rank`.
template <class T, class Params>
__device__ __forceinline__ bool await_value(LocalState& local, const Params& params,
                                            std::uint64_t sequence, unsigned block, T* value,
                                            int rank) {
  const std::uint64_t call = call_number(sequence);
  std::uint64_t first_look = 0;
  for (std::uint32_t polls = 1;; ++polls) {
    ValueBits<T> bits = 0;
    bool here = true;
#pragma unroll
    for (unsigned i = 0; i < sizeof(T) / 2; i += 2) {
      std::uint64_t words[2];
      load_relaxed_pair(&local.block_values[block][i], &words[0], &words[1]);
#pragma unroll
      for (unsigned k = 0; k < 2; ++k) {
        here = here && words[k] / kSequenceUnit == call / kSequenceUnit;
        bits |= static_cast<ValueBits<T>>(words[k] % kSequenceUnit) << 16 * (i + k);
      }
    }
    *value = __builtin_bit_cast(T, bits);
    if (here) return true;
    if ((polls & (params.poll_period - 1)) != 0) continue;
    // Where a peer does not come, the block that waits for it reports it.
    first_look = look_up(&local, params.page, 2 * params.timeout_ns, rank, first_look);
    if (first_look == 0) return false;
  }
}

}  // namespace symm
