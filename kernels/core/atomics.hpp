// System-scope atomic accesses: ordered between every processor that maps the memory, other
// processes and GPUs included. T is a 4- or 8-byte integer, naturally aligned.
//
// This header alone uses the memory-model builtins of the compilers.
//
// NOTE [Publishing from a block]
// On a GPU the threads of a block write data, and a few of them store the flags that publish it:
//   every thread: write data; release_before_barrier(); block barrier;
//   each storing thread: release_after_barrier(); store_relaxed(flag)
// On NVIDIA the fence after the barrier covers the whole block's writes (fences are cumulative). On
// AMD a wave's fence covers its own stores only, so each writer fences before the barrier.
#pragma once

#include "kernels/core/platform.hpp"

#if defined(__CUDA_ARCH__)
#define SYMM_PTX 1
#else
#define SYMM_PTX 0
#endif
#if defined(__HIP_DEVICE_COMPILE__)
#define SYMM_AMDGCN 1
#else
#define SYMM_AMDGCN 0
#endif

namespace symm {

#if SYMM_PTX
// PTX names the width of an access: `asm_load` and `asm_store` are opcodes without it.
#define SYMM_PTX_LOAD(T, opcode, address)                                          \
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);                                 \
  if constexpr (sizeof(T) == 4) {                                                  \
    std::uint32_t value;                                                           \
    asm volatile(opcode ".u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory"); \
    return static_cast<T>(value);                                                  \
  } else {                                                                         \
    std::uint64_t value;                                                           \
    asm volatile(opcode ".u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory"); \
    return static_cast<T>(value);                                                  \
  }
#define SYMM_PTX_STORE(T, opcode, address, value)                                \
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);                               \
  if constexpr (sizeof(T) == 4) {                                                \
    asm volatile(opcode ".u32 [%0], %1;" ::"l"(address), "r"(value) : "memory"); \
  } else {                                                                       \
    asm volatile(opcode ".u64 [%0], %1;" ::"l"(address), "l"(value) : "memory"); \
  }
#define SYMM_PTX_COMPARE_EXCHANGE(T, opcode, address, expected, desired) \
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);                       \
  if constexpr (sizeof(T) == 4) {                                        \
    std::uint32_t found;                                                 \
    asm volatile(opcode ".b32 %0, [%1], %2, %3;"                         \
                 : "=r"(found)                                           \
                 : "l"(address), "r"(expected), "r"(desired)             \
                 : "memory");                                            \
    return static_cast<T>(found) == expected;                            \
  } else {                                                               \
    std::uint64_t found;                                                 \
    asm volatile(opcode ".b64 %0, [%1], %2, %3;"                         \
                 : "=l"(found)                                           \
                 : "l"(address), "l"(expected), "l"(desired)             \
                 : "memory");                                            \
    return static_cast<T>(found) == expected;                            \
  }
#endif

#if SYMM_AMDGCN
// A pointer to memory of a GPU or of the host: an access then needs no test of the address space.
template <class T>
using AmdGlobal = __attribute__((address_space(1))) T;
template <class T>
__device__ inline AmdGlobal<T>* amd_global(T* address) {
  return (AmdGlobal<T>*)address;
}

template <class T>
__device__ inline bool amd_compare_exchange(T* address, T expected, T desired) {
  return __hip_atomic_compare_exchange_strong(amd_global(address), &expected, desired,
                                              __ATOMIC_RELAXED, __ATOMIC_RELAXED,
                                              __HIP_MEMORY_SCOPE_SYSTEM);
}

// Orders later accesses behind a relaxed load, or exchange, that found a flag.
__device__ inline void acquire_fence() { __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, ""); }
#endif

#if SYMM_GPU_COMPILER
__device__ inline void release_before_barrier() {
#if SYMM_AMDGCN
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "");  // of the system's scope
  // Some compilers leave this wait out when the wave itself has no store pending.
  asm volatile("s_waitcnt vmcnt(0)" ::: "memory");
#endif
}

__device__ inline void release_after_barrier() {
#if SYMM_PTX
  asm volatile("fence.acq_rel.sys;" ::: "memory");
#elif !SYMM_AMDGCN
  __atomic_thread_fence(__ATOMIC_ACQ_REL);
#endif
}

// For tiles, which are relaxed, in a kernel that is a barrier: the sending thread releases
// what its stream did before the kernel; the receiving thread acquires what the sender's stream
// released.
__device__ inline void release_earlier_work() {
  release_before_barrier();
  release_after_barrier();
}

__device__ inline void acquire_for_later_work() {
#if SYMM_PTX
  asm volatile("fence.acq_rel.sys;" ::: "memory");
#elif SYMM_AMDGCN
  acquire_fence();
#else
  __atomic_thread_fence(__ATOMIC_ACQ_REL);
#endif
}
#endif

template <class T>
SYMM_INLINE T load_acquire(const T* address) {
#if SYMM_PTX
  SYMM_PTX_LOAD(T, "ld.acquire.sys", address)
#elif SYMM_AMDGCN
  return __hip_atomic_load(amd_global(address), __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM);
#else
  return __atomic_load_n(address, __ATOMIC_ACQUIRE);
#endif
}

template <class T>
SYMM_INLINE T load_relaxed(const T* address) {
#if SYMM_PTX
  SYMM_PTX_LOAD(T, "ld.relaxed.sys", address)
#elif SYMM_AMDGCN
  return __hip_atomic_load(amd_global(address), __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
#else
  return __atomic_load_n(address, __ATOMIC_RELAXED);
#endif
}

template <class T>
SYMM_INLINE void store_relaxed(T* address, T value) {
#if SYMM_PTX
  SYMM_PTX_STORE(T, "st.relaxed.sys", address, value)
#elif SYMM_AMDGCN
  __hip_atomic_store(amd_global(address), value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
#else
  __atomic_store_n(address, value, __ATOMIC_RELAXED);
#endif
}

template <class T>
SYMM_INLINE void store_release(T* address, T value) {
#if SYMM_PTX
  SYMM_PTX_STORE(T, "st.release.sys", address, value)
#elif SYMM_AMDGCN
  release_before_barrier();
  store_relaxed(address, value);
#else
  __atomic_store_n(address, value, __ATOMIC_RELEASE);
#endif
}

// Replaces `expected` by `desired`; true where the value was `expected`. Ordered as the name says
// on success, relaxed on failure.
template <class T>
SYMM_INLINE bool compare_exchange_acquire(T* address, T expected, T desired) {
#if SYMM_PTX
  SYMM_PTX_COMPARE_EXCHANGE(T, "atom.acquire.sys.cas", address, expected, desired)
#elif SYMM_AMDGCN
  if (!amd_compare_exchange(address, expected, desired)) return false;
  acquire_fence();
  return true;
#else
  return __atomic_compare_exchange_n(address, &expected, desired, false, __ATOMIC_ACQUIRE,
                                     __ATOMIC_RELAXED);
#endif
}

template <class T>
SYMM_INLINE bool compare_exchange_release(T* address, T expected, T desired) {
#if SYMM_PTX
  SYMM_PTX_COMPARE_EXCHANGE(T, "atom.release.sys.cas", address, expected, desired)
#elif SYMM_AMDGCN
  // A thread that polls must not write the caches back each time.
  if (load_relaxed(address) != expected) return false;
  release_before_barrier();
  return amd_compare_exchange(address, expected, desired);
#else
  return __atomic_compare_exchange_n(address, &expected, desired, false, __ATOMIC_RELEASE,
                                     __ATOMIC_RELAXED);
#endif
}

// Sequentially consistent; on a GPU of 4 bytes, and on AMD between a release and an acquire fence.
template <class T>
SYMM_INLINE T exchange_seq_cst(T* address, T value) {
#if SYMM_PTX
  static_assert(sizeof(T) == 4);
  std::uint32_t before;
  asm volatile("fence.sc.sys;" ::: "memory");
  asm volatile("atom.acquire.sys.exch.b32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(address), "r"(value)
               : "memory");
  return static_cast<T>(before);
#elif SYMM_AMDGCN
  // The fences are ours: the compiler's own before an ordered exchange is not waited for.
  release_before_barrier();
  const T before = __hip_atomic_exchange(amd_global(address), value, __ATOMIC_RELAXED,
                                         __HIP_MEMORY_SCOPE_SYSTEM);
  acquire_fence();
  return before;
#else
  return __atomic_exchange_n(address, value, __ATOMIC_SEQ_CST);
#endif
}

#if SYMM_GPU_COMPILER

// Two relaxed 8-byte accesses of adjacent memory, 16-byte aligned, in one instruction where the
// device has one. Each half is atomic, the pair is not.
__device__ inline void load_relaxed_pair(const std::uint64_t* address, std::uint64_t* low,
                                         std::uint64_t* high) {
#if SYMM_PTX
  asm volatile("ld.relaxed.sys.v2.u64 {%0, %1}, [%2];"
               : "=l"(*low), "=l"(*high)
               : "l"(address)
               : "memory");
#else
  *low = load_relaxed(address);
  *high = load_relaxed(address + 1);
#endif
}

__device__ inline void store_relaxed_pair(std::uint64_t* address, std::uint64_t low,
                                          std::uint64_t high) {
#if SYMM_PTX
  asm volatile("st.relaxed.sys.v2.u64 [%0], {%1, %2};" ::"l"(address), "l"(low), "l"(high)
               : "memory");
#else
  store_relaxed(address, low);
  store_relaxed(address + 1, high);
#endif
}

// True where the value that load_acquire() returns passes `test`. For polling: on AMD a failed test
// leaves the caches alone.
template <class T, class Test>
__device__ inline bool acquire_if(const T* address, const Test& test) {
#if SYMM_AMDGCN
  if (!test(load_relaxed(address))) return false;
  acquire_fence();
  return true;
#else
  return test(load_acquire(address));
#endif
}

// Orders this thread's accesses for all blocks of this GPU.
__device__ inline void device_fence() {
#if SYMM_AMDGCN
  __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent");
  asm volatile("s_waitcnt vmcnt(0)" ::: "memory");  // as in release_before_barrier()
#elif SYMM_PTX
  __threadfence();
#endif
}

// Orders this thread's accesses for the host and all devices; its stores have then arrived.
__device__ inline void system_fence() {
#if SYMM_AMDGCN
  __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "");
  asm volatile("s_waitcnt vmcnt(0)" ::: "memory");  // as in release_before_barrier()
#elif SYMM_PTX
  __threadfence_system();
#endif
}

// Relaxed, in the scope of this GPU: for memory that the blocks of one launch share.
__device__ inline std::uint32_t device_fetch_add(std::uint32_t* address, std::uint32_t value) {
#if SYMM_AMDGCN
  return __hip_atomic_fetch_add(amd_global(address), value, __ATOMIC_RELAXED,
                                __HIP_MEMORY_SCOPE_AGENT);
#elif SYMM_PTX
  return atomicAdd(address, value);
#else
  return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
#endif
}
__device__ inline std::uint64_t device_fetch_add(std::uint64_t* address, std::uint64_t value) {
#if SYMM_AMDGCN
  return __hip_atomic_fetch_add(amd_global(address), value, __ATOMIC_RELAXED,
                                __HIP_MEMORY_SCOPE_AGENT);
#elif SYMM_PTX
  return atomicAdd(reinterpret_cast<unsigned long long*>(address), value);
#else
  return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
#endif
}
__device__ inline std::uint32_t device_compare_exchange(std::uint32_t* address,
                                                        std::uint32_t expected,
                                                        std::uint32_t desired) {
#if SYMM_AMDGCN
  __hip_atomic_compare_exchange_strong(amd_global(address), &expected, desired, __ATOMIC_RELAXED,
                                       __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  return expected;
#elif SYMM_PTX
  return atomicCAS(address, expected, desired);
#else
  __atomic_compare_exchange_n(address, &expected, desired, false, __ATOMIC_RELAXED,
                              __ATOMIC_RELAXED);
  return expected;
#endif
}

#endif

// Fences of the host, for data that is no atomic and whose owner may change it while it is read:
// the owner says so first, a reader looks afterwards (NOTE [Memory of a rank that gives up] in
// symm_mem/group/local_group.hpp). ThreadSanitizer knows no fences.
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 11
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wtsan"
#endif
// Later loads follow all earlier reads.
inline void fence_after_reads() { __atomic_thread_fence(__ATOMIC_ACQUIRE); }
// Later writes, non-temporal ones too, follow all earlier accesses.
inline void fence_before_writes() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 11
#pragma GCC diagnostic pop
#endif

// Sequentially consistent read-modify-write on the host: also orders a later load after it, which
// the store-then-look-for-waiters pattern of wait.cpp relies on.
template <class T>
inline T fetch_add(T* address, T value) {
  return __atomic_fetch_add(address, value, __ATOMIC_SEQ_CST);
}

template <class T>
inline T load_seq_cst(const T* address) {
  return __atomic_load_n(address, __ATOMIC_SEQ_CST);
}

}  // namespace symm

#if SYMM_PTX
#undef SYMM_PTX_LOAD
#undef SYMM_PTX_STORE
#undef SYMM_PTX_COMPARE_EXCHANGE
#endif
