// all_to_all: every rank sends a share of its own size to every rank.
//
// NOTE [All-to-all rounds]
// No rank knows the whole matrix of sizes, so step 0 exchanges counts: each rank's small slot holds
// its row of counts and, where all of its data fits behind them, the data. Small exchanges end
// there; the data of one rank may be in step 0 although another's is not. From all rows every rank
// knows the largest share that is still to be moved, hence the number of rounds that follow; in
// round i each rank stages the i-th piece of every share in one slot and reads its pieces from all
// others.
// Steps: 1 + ceil(largest share / (chunk / world_size)).
//
// Where the executor has place_for_peers(), a second row of step 0 says where each share is, for
// those who may read it there. The shares of a rank that has them in symmetric memory are read in
// step 0 itself, and are not in the rounds. Where ranks read each other's processes, one step
// follows in which each rank reads its shares there; where one of them cannot be read so, all
// rounds are as above.
#pragma once

#include "kernels/algorithms/executor.hpp"

namespace symm {

namespace all_to_all_header {

// Whether ranks may say where their shares are.
template <typename X>
inline constexpr bool has_places = requires(X& x) {
  x.place_for_peers(nullptr, std::size_t{0});
};

// Of `rows` rows of a word a rank.
constexpr std::size_t bytes(int world_size, int rows) {
  return align_up(static_cast<std::size_t>(rows * world_size) * sizeof(std::uint64_t), kCacheLine);
}

template <Executor X>
inline constexpr int rows = has_places<X> ? 2 : 1;

inline std::uint64_t row_total(const std::uint64_t* counts, int begin, int end) {
  std::uint64_t total = 0;
  for (int r = begin; r < end; ++r) total += counts[r];
  return total;
}

// True where a rank's data follows its counts in the small slot of step 0.
inline bool is_inline(const std::uint64_t* counts, int world_size, std::size_t element_bytes,
                      std::size_t capacity) {
  return row_total(counts, 0, world_size) * element_bytes <= capacity;
}

}  // namespace all_to_all_header

// What a rank knows after step 0.
struct AllToAllState {
  std::size_t largest = 0;       // bytes of the largest share that is still to be moved
  bool arrived[kMaxRanks] = {};  // by sender: its data has been read in step 0
  bool readable = false;         // every share that is still to be moved, in its owner's process
  std::uint64_t addresses[kMaxRanks] = {};  // by sender: of its share for this rank, there
};

// Step 0: publishes this rank's counts, with the data where it fits, and reads those of all ranks.
template <Executor X>
bool all_to_all_exchange_counts(X& x, const Part* inputs, const Part* outputs,
                                AllToAllState* state) {
  namespace header = all_to_all_header;
  const int world = x.world_size();
  const int me = x.rank();
  const std::size_t size = x.element_bytes();
  std::byte* slot = x.open_slot(0);
  if (slot == nullptr) return false;
  auto* row = reinterpret_cast<std::uint64_t*>(slot);
  for (int r = 0; r < world; ++r) row[r] = r == me ? 0 : inputs[r].count;
  constexpr int rows = header::rows<X>;
  const std::size_t header_bytes = header::bytes(world, rows);
  const std::size_t capacity = x.chunk_bytes() - header_bytes;
  if constexpr (header::has_places<X>) {
    for (int r = 0; r < world; ++r) {
      row[world + r] = x.place_for_peers(inputs[r].data, row[r] * size);
    }
    state->readable = x.reads_processes();
  }
  if (header::is_inline(row, world, size, capacity)) {
    std::byte* data = slot + header_bytes;
    for (int r = 0; r < world; ++r) {
      x.copy(data, as_bytes(inputs[r].data), row[r] * size);
      data += row[r] * size;
    }
  }
  x.publish(0);
  x.copy(as_bytes(outputs[me].data), as_bytes(inputs[me].data), inputs[me].count * size);
  for (int i = 0; i < world; ++i) {
    const int peer = nth_peer(me, i, world);
    if (peer != me && !x.await(peer, 0)) return false;
    const std::byte* theirs = x.slot(peer, 0);
    const auto* counts = reinterpret_cast<const std::uint64_t*>(theirs);
    if (peer != me && counts[me] != outputs[peer].count) {
      return x.count_mismatch(peer, counts[me], outputs[peer].count);
    }
    state->arrived[peer] = header::is_inline(counts, world, size, capacity);
    if constexpr (header::has_places<X>) {
      if (!state->arrived[peer] && x.is_in_place(peer)) {
        state->arrived[peer] = true;
        if (peer != me && !x.copy_share(as_bytes(outputs[peer].data), peer, counts[world + me],
                                        counts[me] * size)) {
          return false;
        }
        continue;
      }
    }
    if (!state->arrived[peer]) {
      for (int r = 0; r < world; ++r) {
        if (counts[r] * size > state->largest) state->largest = counts[r] * size;
        if (rows == 2 && counts[r] > 0 && counts[world + r] == 0) state->readable = false;
      }
      if (rows == 2) state->addresses[peer] = counts[world + me];
    } else if (peer != me) {
      x.copy(as_bytes(outputs[peer].data),
             theirs + header_bytes + header::row_total(counts, 0, me) * size,
             outputs[peer].count * size);
    }
  }
  x.read_done(0);
  return true;
}

// The step that follows where state.largest > 0 and state.readable: on every rank, or on none.
template <Executor X>
bool all_to_all_read(X& x, const Part* outputs, const AllToAllState& state) {
  const int world = x.world_size();
  x.keep_input();
  for (int k = 1; k < world; ++k) {
    const int peer = nth_peer(x.rank(), k, world);
    const std::size_t bytes = outputs[peer].count * x.element_bytes();
    if (state.arrived[peer] || bytes == 0) continue;
    if (!x.read_process(as_bytes(outputs[peer].data), peer, state.addresses[peer], bytes)) {
      return false;
    }
  }
  x.read_done(1);
  return true;
}

// The rounds that follow instead of it.
template <Executor X>
bool all_to_all_rounds(X& x, const Part* inputs, const Part* outputs, const AllToAllState& state) {
  const int world = x.world_size();
  const int me = x.rank();
  const std::size_t size = x.element_bytes();
  const std::size_t share_bytes =
      whole_elements(x.chunk_bytes() / static_cast<std::size_t>(world), size);
  const Pieces pieces{state.largest, share_bytes};
  for (std::uint32_t i = 0; i < pieces.count(); ++i) {
    const std::uint32_t step = i + 1;
    const std::size_t offset = pieces.offset(i);
    for (int r = 0; r < world && !state.arrived[me]; ++r) {
      if (r == me) continue;
      if (!x.stage(step, static_cast<std::size_t>(r) * share_bytes,
                   as_bytes(inputs[r].data) + offset, pieces.bytes_of(i, inputs[r].count * size))) {
        return false;
      }
    }
    x.publish(step);
    for (int k = 1; k < world; ++k) {
      const int peer = nth_peer(me, k, world);
      if (!x.await(peer, step)) return false;
      if (state.arrived[peer]) continue;
      x.copy(as_bytes(outputs[peer].data) + offset,
             x.slot(peer, step) + static_cast<std::size_t>(me) * share_bytes,
             pieces.bytes_of(i, outputs[peer].count * size));
    }
    x.read_done(step);
  }
  return true;
}

}  // namespace symm
