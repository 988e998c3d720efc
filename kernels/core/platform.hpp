// This header, atomics.hpp and the gpu_api headers hold all differences of compilers and vendors;
// nothing else tests a vendor macro.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

// SYMM_GPU_EMULATED: device code is compiled for the host, where tests run it
// (test/gpu_emulated).
#if defined(__CUDACC__) || defined(__HIP__)
#define SYMM_GPU_COMPILER 1
#define SYMM_HOST_DEVICE __host__ __device__
#elif defined(SYMM_GPU_EMULATED)
#define SYMM_GPU_COMPILER 1
#define SYMM_HOST_DEVICE
#else
#define SYMM_GPU_COMPILER 0
#define SYMM_HOST_DEVICE
#endif

#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
#define SYMM_DEVICE_PASS 1
#else
#define SYMM_DEVICE_PASS 0
#endif

#define SYMM_INLINE SYMM_HOST_DEVICE inline

// For functions that are compiled in translation units of different instruction sets: a copy out of
// line could be linked from the wrong unit.
#if defined(__CUDACC__)
#define SYMM_FORCE_INLINE SYMM_HOST_DEVICE __forceinline__
#else
#define SYMM_FORCE_INLINE SYMM_HOST_DEVICE __attribute__((always_inline)) inline
#endif

namespace symm {

// Flags of different writers never share a line; 128 covers the adjacent-line prefetcher of x86
// and the sector pairs of GPUs.
inline constexpr std::size_t kCacheLine = 128;

// Upper bound of ranks in one group on one host; sizes the per-peer arrays that live on the stack.
inline constexpr int kMaxRanks = 128;

SYMM_INLINE constexpr std::size_t align_up(std::size_t value, std::size_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

SYMM_INLINE constexpr std::size_t align_down(std::size_t value, std::size_t alignment) {
  return value / alignment * alignment;
}

SYMM_INLINE constexpr std::size_t min_size(std::size_t a, std::size_t b) { return a < b ? a : b; }

// `value` / `by`, rounded up, in the type of `value`: a GPU divides 32 bits much sooner than 64.
template <class T>
SYMM_INLINE constexpr T divided_up(T value, std::type_identity_t<T> by) {
  return (value + by - 1) / by;
}

}  // namespace symm
