// Copies by all threads of a block, and accesses of 16 bytes at any alignment.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/gpu/gpu_api.hpp"

namespace symm {

// 16 bytes of payload: the unit of packets and of vector accesses. Every dtype divides it.
struct alignas(16) Unit {
  std::uint32_t words[4];
};
inline constexpr std::size_t kUnitBytes = sizeof(Unit);

__device__ inline bool is_aligned(const void* pointer, std::size_t alignment) {
  return (reinterpret_cast<std::uintptr_t>(pointer) & (alignment - 1)) == 0;
}

// Out of line: ends of messages and odd addresses must not cost the common case registers.
static __device__ __noinline__ Unit load_odd_unit(const std::byte* source, std::size_t bytes) {
  if (bytes >= kUnitBytes && is_aligned(source, 4)) {
    const auto* words = reinterpret_cast<const std::uint32_t*>(source);
    return {{words[0], words[1], words[2], words[3]}};
  }
  Unit unit{};
  const auto* from = reinterpret_cast<const std::uint8_t*>(source);
#pragma unroll
  for (std::size_t i = 0; i < kUnitBytes; ++i) {
    if (i < bytes) unit.words[i / 4] |= static_cast<std::uint32_t>(from[i]) << (8 * (i % 4));
  }
  return unit;
}

static __device__ __noinline__ void store_odd_unit(std::byte* destination, Unit unit,
                                                   std::size_t bytes) {
  if (bytes >= kUnitBytes && is_aligned(destination, 4)) {
    auto* words = reinterpret_cast<std::uint32_t*>(destination);
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = unit.words[i];
    return;
  }
  auto* to = reinterpret_cast<std::uint8_t*>(destination);
#pragma unroll
  for (std::size_t i = 0; i < kUnitBytes; ++i) {
    if (i < bytes) to[i] = static_cast<std::uint8_t>(unit.words[i / 4] >> (8 * (i % 4)));
  }
}

// The first `bytes` (1 to 16) from `source`; the rest of the unit is zero.
__device__ inline Unit load_unit(const std::byte* source, std::size_t bytes) {
  if (bytes >= kUnitBytes && is_aligned(source, 16)) return *reinterpret_cast<const Unit*>(source);
  return load_odd_unit(source, bytes);
}

__device__ inline void store_unit(std::byte* destination, const Unit& unit, std::size_t bytes) {
  if (bytes >= kUnitBytes && is_aligned(destination, 16)) {
    *reinterpret_cast<Unit*>(destination) = unit;
  } else {
    store_odd_unit(destination, unit, bytes);
  }
}

// Both pointers stand alike relative to sizeof(T). No barrier.
template <class T>
__device__ inline void block_copy_as(std::byte* destination, const std::byte* source,
                                     std::size_t bytes) {
  const std::size_t threads = blockDim.x;
  const std::size_t lead = (0 - reinterpret_cast<std::uintptr_t>(destination)) & (sizeof(T) - 1);
  const std::size_t head = min_size(lead, bytes);
  if (threadIdx.x < head) destination[threadIdx.x] = source[threadIdx.x];
  auto* to = reinterpret_cast<T*>(destination + head);
  const auto* from = reinterpret_cast<const T*>(source + head);
  const std::size_t count = (bytes - head) / sizeof(T);
  std::size_t i = threadIdx.x;
  // Four independent loads in flight a thread.
  for (; i + 3 * threads < count; i += 4 * threads) {
    const T a = from[i];
    const T b = from[i + threads];
    const T c = from[i + 2 * threads];
    const T d = from[i + 3 * threads];
    to[i] = a;
    to[i + threads] = b;
    to[i + 2 * threads] = c;
    to[i + 3 * threads] = d;
  }
  for (; i < count; i += threads) to[i] = from[i];
  const std::size_t done = head + count * sizeof(T);
  if (threadIdx.x < bytes - done) destination[done + threadIdx.x] = source[done + threadIdx.x];
}

// Copies by the whole block; the memories do not overlap, or are the same. No barrier: the caller
// orders what follows. At least 16 threads. Not inlined: kernels copy in many places.
static __device__ __noinline__ void block_copy(std::byte* destination, const std::byte* source,
                                               std::size_t bytes) {
  if (bytes == 0 || destination == source) return;
  const std::uintptr_t difference =
      reinterpret_cast<std::uintptr_t>(destination) ^ reinterpret_cast<std::uintptr_t>(source);
  if ((difference & 15) == 0) {
    block_copy_as<Unit>(destination, source, bytes);
  } else if ((difference & 7) == 0) {
    block_copy_as<std::uint64_t>(destination, source, bytes);
  } else if ((difference & 3) == 0) {
    block_copy_as<std::uint32_t>(destination, source, bytes);
  } else if ((difference & 1) == 0) {
    block_copy_as<std::uint16_t>(destination, source, bytes);
  } else {
    block_copy_as<std::uint8_t>(destination, source, bytes);
  }
}

}  // namespace symm
