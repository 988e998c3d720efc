// Copies by all threads of a block, and accesses of 16 bytes at any alignment.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/gpu/vendor/gpu_api.hpp"

namespace symm {

// 16 bytes of payload: the unit of tiles and of vector accesses. The size of every dtype
// divides it.
struct alignas(16) Unit {
  std::uint32_t words[4];
};
inline constexpr std::size_t kUnitBytes = sizeof(Unit);

__device__ inline bool is_aligned(const void* pointer, std::size_t alignment) {
  return (reinterpret_cast<std::uintptr_t>(pointer) & (alignment - 1)) == 0;
}

// Out of line: the ends of messages and odd addresses must not cost the common case registers.
[[maybe_unused]] static __device__ SYMM_OUTLINED Unit load_odd_unit(const std::byte* source,
                                                                    std::size_t bytes) {
  Unit unit{};
  if (is_aligned(source, 4) && bytes % 4 == 0) {
    const auto* words = reinterpret_cast<const std::uint32_t*>(source);
#pragma unroll
    for (std::size_t i = 0; i < 4; ++i) {
      if (4 * i < bytes) unit.words[i] = load_data(words + i);
    }
    return unit;
  }
  const auto* from = reinterpret_cast<const std::uint8_t*>(source);
#pragma unroll
  for (std::size_t i = 0; i < kUnitBytes; ++i) {
    if (i < bytes) {
      unit.words[i / 4] |= static_cast<std::uint32_t>(load_data(&from[i])) << (8 * (i % 4));
    }
  }
  return unit;
}

[[maybe_unused]] static __device__ SYMM_OUTLINED void store_odd_unit(std::byte* destination,
                                                                     Unit unit, std::size_t bytes) {
  if (is_aligned(destination, 4) && bytes % 4 == 0) {
    auto* words = reinterpret_cast<std::uint32_t*>(destination);
#pragma unroll
    for (std::size_t i = 0; i < 4; ++i) {
      if (4 * i < bytes) store_data(words + i, unit.words[i]);
    }
    return;
  }
  auto* to = reinterpret_cast<std::uint8_t*>(destination);
#pragma unroll
  for (std::size_t i = 0; i < kUnitBytes; ++i) {
    if (i < bytes) {
      store_data(&to[i], static_cast<std::uint8_t>(unit.words[i / 4] >> (8 * (i % 4))));
    }
  }
}

// The first `bytes` (1 to 16) from `source`; the rest of the unit is zero.
__device__ inline Unit load_unit(const std::byte* source, std::size_t bytes) {
  if (bytes >= kUnitBytes && is_aligned(source, 16)) {
    return load_data(reinterpret_cast<const Unit*>(source));
  }
  return load_odd_unit(source, bytes);
}

__device__ inline void store_unit(std::byte* destination, const Unit& unit, std::size_t bytes) {
  if (bytes >= kUnitBytes && is_aligned(destination, 16)) {
    store_data(reinterpret_cast<Unit*>(destination), unit);
  } else {
    store_odd_unit(destination, unit, bytes);
  }
}

// Both pointers have the same remainder modulo sizeof(T). By `threads` threads, 16 or more, of
// which this is number `thread`. No barrier.
template <class T>
__device__ inline void copy_as(std::byte* destination, const std::byte* source, std::size_t bytes,
                               std::size_t thread, std::size_t threads) {
  const std::size_t lead = (0 - reinterpret_cast<std::uintptr_t>(destination)) & (sizeof(T) - 1);
  const std::size_t head = min_size(lead, bytes);
  if (thread < head) {
    const std::byte byte = load_data(&source[thread]);
    store_data(&destination[thread], byte);
  }
  auto* to = reinterpret_cast<T*>(destination + head);
  const auto* from = reinterpret_cast<const T*>(source + head);
  const std::size_t count = (bytes - head) / sizeof(T);
  std::size_t i = thread;
  // Four independent loads in flight a thread.
  for (; i + 3 * threads < count; i += 4 * threads) {
    const T a = load_data(&from[i]);
    const T b = load_data(&from[i + threads]);
    const T c = load_data(&from[i + 2 * threads]);
    const T d = load_data(&from[i + 3 * threads]);
    store_data(&to[i], a);
    store_data(&to[i + threads], b);
    store_data(&to[i + 2 * threads], c);
    store_data(&to[i + 3 * threads], d);
  }
  for (; i < count; i += threads) {
    const T value = load_data(&from[i]);
    store_data(&to[i], value);
  }
  const std::size_t done = head + count * sizeof(T);
  if (thread < bytes - done) {
    const std::byte byte = load_data(&source[done + thread]);
    store_data(&destination[done + thread], byte);
  }
}

// The ranges do not overlap, or are the same; threads as above.
__device__ inline void copy_by_threads(std::byte* destination, const std::byte* source,
                                       std::size_t bytes, std::size_t thread, std::size_t threads) {
  if (bytes == 0 || destination == source) return;
  const std::uintptr_t difference =
      reinterpret_cast<std::uintptr_t>(destination) ^ reinterpret_cast<std::uintptr_t>(source);
  if ((difference & 15) == 0) {
    copy_as<Unit>(destination, source, bytes, thread, threads);
  } else if ((difference & 7) == 0) {
    copy_as<std::uint64_t>(destination, source, bytes, thread, threads);
  } else if ((difference & 3) == 0) {
    copy_as<std::uint32_t>(destination, source, bytes, thread, threads);
  } else if ((difference & 1) == 0) {
    copy_as<std::uint16_t>(destination, source, bytes, thread, threads);
  } else {
    copy_as<std::uint8_t>(destination, source, bytes, thread, threads);
  }
}

// Copies by the whole block; the ranges do not overlap, or are the same. No barrier: the caller
// orders later accesses. At least 16 threads. Not inlined: kernels copy in many places.
[[maybe_unused]] static __device__ SYMM_OUTLINED void block_copy(std::byte* destination,
                                                                 const std::byte* source,
                                                                 std::size_t bytes) {
  copy_by_threads(destination, source, bytes, threadIdx.x, blockDim.x);
}

}  // namespace symm
