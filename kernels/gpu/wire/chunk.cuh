// What a warp does with one chunk: copies it, passes it on, combines those of all ranks.
//
// The odd ends and addresses, and what surrounds a chunk, must not take registers that the loads of
// the common case need; so these functions are called, where that is of use.
#pragma once

#include "kernels/gpu/device/block_reduce.cuh"

namespace symm {

__device__ inline unsigned warp_thread() { return threadIdx.x % kWarpThreads; }

// Calls body.operator()<n>(at) of a warp for the whole units: kBatch of them, from `at` on and a
// warp apart, while there are so many, and then one by one. Loads that might not happen would keep
// their registers through the loop.
template <std::uint32_t kBatch, class Body>
__device__ __forceinline__ void each_batch(std::uint32_t whole, const Body& body) {
  std::uint32_t at = warp_thread();
  for (; at + (kBatch - 1) * kWarpThreads < whole; at += kBatch * kWarpThreads) {
    body.template operator()<kBatch>(at);
  }
  if constexpr (kBatch > 1) {
#pragma unroll 1
    for (; at < whole; at += kWarpThreads) body.template operator()<1u>(at);
  }
}

inline constexpr std::uint32_t kCopyBatch = 4;  // units that a thread has under way

// Of a warp: loads whole units and hands them to store(at, unit), several under way at once.
template <class Store>
__device__ __forceinline__ void move_units(const Unit* from, std::uint32_t whole,
                                           const Store& store) {
  each_batch<kCopyBatch>(whole, [&]<std::uint32_t kUnits>(std::uint32_t at) {
    Unit units[kUnits];
#pragma unroll
    for (std::uint32_t i = 0; i < kUnits; ++i) units[i] = load_data(from + at + i * kWarpThreads);
#pragma unroll
    for (std::uint32_t i = 0; i < kUnits; ++i) store(at + i * kWarpThreads, units[i]);
  });
}

// By a warp: the units from number `first` on, one by one.
[[maybe_unused]] static __device__ SYMM_OUTLINED_METHOD void warp_copy_odd(std::byte* to,
                                                                           const std::byte* from,
                                                                           std::uint32_t first,
                                                                           std::uint32_t bytes) {
  for (std::uint32_t at = first + warp_thread(); at * kUnitBytes < bytes; at += kWarpThreads) {
    const std::uint32_t left = bytes - at * static_cast<std::uint32_t>(kUnitBytes);
    store_odd_unit(to + at * kUnitBytes, load_odd_unit(from + at * kUnitBytes, left), left);
  }
}

// By a warp, from a piece to a slot or the other way round.
[[maybe_unused]] static __device__ SYMM_OUTLINED_METHOD void warp_copy(std::byte* to,
                                                                       const std::byte* from,
                                                                       std::uint32_t bytes) {
  const bool aligned = is_aligned(to, kUnitBytes) && is_aligned(from, kUnitBytes);
  const std::uint32_t whole = aligned ? bytes / kUnitBytes : 0;
  auto* const units_to = reinterpret_cast<Unit*>(to);
  move_units(reinterpret_cast<const Unit*>(from), whole,
             [&](std::uint32_t at, const Unit& unit) { store_data(units_to + at, unit); });
  if (whole * kUnitBytes < bytes) warp_copy_odd(to, from, whole, bytes);
}

// Where the result of a chunk goes, by rank: null for nowhere. Slots take whole units.
template <int N>
__device__ __forceinline__ void store_all(std::byte* const* to, int world, std::uint32_t at,
                                          const Unit& unit) {
#pragma unroll
  for (int r = 0; r < (N == 0 ? world : N); ++r) {
    std::byte* const each = load_shared(&to[r]);
    if (each != nullptr) store_data(reinterpret_cast<Unit*>(each) + at, unit);
  }
}
// `left` bytes of the unit, or all, to this rank's output.
__device__ inline void store_odd(std::byte* const* to, int world, int rank, std::uint32_t at,
                                 const Unit& unit, std::uint32_t left) {
  for (int r = 0; r < world; ++r) {
    std::byte* const each = load_shared(&to[r]);
    if (each == nullptr) continue;
    if (r == rank) {
      store_odd_unit(each + at * kUnitBytes, unit, left);
    } else {
      store_data(reinterpret_cast<Unit*>(each) + at, unit);
    }
  }
}

// Units of one thread that are combined together, and the ranks whose units are in registers at
// once: as many as leave room for the sums of elements of 16 bits and more.
template <int N>
inline constexpr std::uint32_t kUnitsAtOnce = N == 2   ? 4
                                              : N == 4 ? 3
                                                       : 1;
template <int N>
inline constexpr int kRanksAtOnce = N == 0 ? 4 : N;

// kUnits units of a thread, from `at` on and a warp apart.
template <int N, class Rule, std::uint32_t kUnits>
__device__ __forceinline__ void combine_units(const std::byte* const* from, std::byte* const* to,
                                              int world, std::uint32_t at,
                                              const typename Rule::Facts& facts) {
  constexpr int kRanks = kRanksAtOnce<N>;
  UnitSum<Rule> sums[N == 0 ? kUnits : 1];  // where N is known, one after the other
  for (int base = 0; base < world; base += kRanks) {
    Unit units[kUnits][kRanks];
#pragma unroll
    for (int k = 0; k < kRanks; ++k) {
      if (base + k >= world) continue;
      const auto* source = reinterpret_cast<const Unit*>(load_shared(&from[base + k])) + at;
#pragma unroll
      for (std::uint32_t i = 0; i < kUnits; ++i) units[i][k] = load_data(source + i * kWarpThreads);
    }
#pragma unroll
    for (std::uint32_t i = 0; i < kUnits; ++i) {
      UnitSum<Rule>& sum = sums[N == 0 ? i : 0];
#pragma unroll
      for (int k = 0; k < kRanks; ++k) {
        if (base + k < world) sum.add(units[i][k], facts, base + k);
      }
      if (base + kRanks < world) continue;
      store_all<N>(to, world, at + i * kWarpThreads, sum.finish(facts));
    }
  }
}

// Combines the chunks at `from` in rank order. By a warp.
template <int N, class Rule>
static __device__ SYMM_OUTLINED_METHOD void combine_chunk(const std::byte* const* from,
                                                          std::byte* const* to, int any_world,
                                                          int rank, std::uint32_t bytes,
                                                          typename Rule::Facts facts) {
  const int world = N == 0 ? any_world : N;
  const bool aligned = is_aligned(load_shared(&from[rank]), kUnitBytes) &&
                       is_aligned(load_shared(&to[rank]), kUnitBytes);
  const std::uint32_t whole = aligned ? bytes / kUnitBytes : 0;
  const auto combine_whole = [&]<class OfRule>(OfRule, const typename OfRule::Facts& of_rule) {
    each_batch<kUnitsAtOnce<N>>(whole, [&]<std::uint32_t kUnits>(std::uint32_t at) {
      combine_units<N, OfRule, kUnits>(from, to, world, at, of_rule);
    });
  };
  // Sums and averages of powers of two in one loop, without what the others take.
  if constexpr (kIsScaled<Rule>) {
    if (!facts.premultiplies && has_exact_inverse(facts.divisor)) {
      combine_whole(ScaledSum<Rule>{}, scaled_facts<Rule>(facts, facts.divisor));
    } else {
      combine_whole(Rule{}, facts);
    }
  } else if constexpr (Rule::kScales) {
    if (!facts.premultiplies && facts.divisor == 0) {
      combine_whole(PlainSum<Rule>{}, facts);
    } else {
      combine_whole(Rule{}, facts);
    }
  } else {
    combine_whole(Rule{}, facts);
  }
  for (std::uint32_t at = whole + warp_thread(); at * kUnitBytes < bytes; at += kWarpThreads) {
    const std::uint32_t left = bytes - at * static_cast<std::uint32_t>(kUnitBytes);
    UnitSum<Rule> sum;
    for (int r = 0; r < world; ++r) {
      const std::byte* source = load_shared(&from[r]) + at * kUnitBytes;
      sum.add(r == rank ? load_odd_unit(source, left)
                        : load_data(reinterpret_cast<const Unit*>(source)),
              facts, r);
    }
    store_odd(to, world, rank, at, sum.finish(facts), left);
  }
}

// One chunk to all of `to`, from a slot or at any address. By a warp.
template <int N>
static __device__ SYMM_OUTLINED_METHOD void forward_chunk(const std::byte* from,
                                                          std::byte* const* to, int any_world,
                                                          int rank, std::uint32_t bytes) {
  const int world = N == 0 ? any_world : N;
  const bool aligned =
      is_aligned(from, kUnitBytes) && is_aligned(load_shared(&to[rank]), kUnitBytes);
  const std::uint32_t whole = aligned ? bytes / kUnitBytes : 0;
  move_units(reinterpret_cast<const Unit*>(from), whole,
             [&](std::uint32_t at, const Unit& unit) { store_all<N>(to, world, at, unit); });
  for (std::uint32_t at = whole + warp_thread(); at * kUnitBytes < bytes; at += kWarpThreads) {
    const std::uint32_t left = bytes - at * static_cast<std::uint32_t>(kUnitBytes);
    store_odd(to, world, rank, at, load_odd_unit(from + at * kUnitBytes, left), left);
  }
}

}  // namespace symm
