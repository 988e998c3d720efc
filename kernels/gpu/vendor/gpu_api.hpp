// One name for each type and call of the runtimes of CUDA and HIP, and for the device code that
// differs between the vendors. Below this header, device and host sources of the GPU are the same
// for both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/core/platform.hpp"

// SYMM_GPU_HIP: the calls are HIP's. SYMM_GPU_AMD: the device code is AMD's too. The first without
// the second: HIP's calls serve an NVIDIA GPU, which tests the host code.
#if defined(__HIP__) || defined(__HIP_PLATFORM_AMD__)
#include <hip/hip_runtime.h>
#define SYMM_GPU_HIP 1
#define SYMM_GPU_AMD 1
#define SYMM_GPU_KIND kHip
#define SYMM_GPU_NAME(name) hip##name
#elif defined(__HIP_PLATFORM_NVIDIA__)
#include <hip/hip_runtime.h>
#define SYMM_GPU_HIP 1
#define SYMM_GPU_AMD 0
#define SYMM_GPU_KIND kCuda
#define SYMM_GPU_NAME(name) hip##name
#else
#include <cuda_runtime.h>
#define SYMM_GPU_HIP 0
#define SYMM_GPU_AMD 0
#define SYMM_GPU_KIND kCuda
#define SYMM_GPU_NAME(name) cuda##name
#endif

namespace symm {

using gpuError_t = SYMM_GPU_NAME(Error_t);
using gpuStream_t = SYMM_GPU_NAME(Stream_t);
using gpuEvent_t = SYMM_GPU_NAME(Event_t);
using gpuMemcpyKind = SYMM_GPU_NAME(MemcpyKind);
using gpuStreamCaptureStatus = SYMM_GPU_NAME(StreamCaptureStatus);
using gpuStreamCaptureMode = SYMM_GPU_NAME(StreamCaptureMode);
using gpuFuncAttributes = SYMM_GPU_NAME(FuncAttributes);

inline constexpr gpuError_t gpuSuccess = SYMM_GPU_NAME(Success);

// gpuName(...) is the call of that name of the vendor's runtime.
#define SYMM_GPU_CALL(name)                         \
  template <class... Arguments>                     \
  inline auto gpu##name(Arguments&&... arguments) { \
    return SYMM_GPU_NAME(name)(arguments...);       \
  }
SYMM_GPU_CALL(GetErrorString)
SYMM_GPU_CALL(GetLastError)
SYMM_GPU_CALL(GetDevice)
SYMM_GPU_CALL(SetDevice)
SYMM_GPU_CALL(DeviceSynchronize)
SYMM_GPU_CALL(DeviceGetStreamPriorityRange)
SYMM_GPU_CALL(MemcpyAsync)
SYMM_GPU_CALL(StreamDestroy)
SYMM_GPU_CALL(StreamSynchronize)
SYMM_GPU_CALL(StreamQuery)
SYMM_GPU_CALL(StreamGetCaptureInfo)
SYMM_GPU_CALL(ThreadExchangeStreamCaptureMode)
SYMM_GPU_CALL(EventDestroy)
SYMM_GPU_CALL(EventRecord)
SYMM_GPU_CALL(HostUnregister)
SYMM_GPU_CALL(FuncGetAttributes)

// Puts a kernel on a stream. `params`: of the types that the kernel takes.
template <class... Params>
gpuError_t gpuLaunch(const void* kernel, dim3 blocks, dim3 threads, gpuStream_t stream,
                     const Params&... params) {
#if defined(SYMM_GPU_EMULATED)
  const auto typed = reinterpret_cast<void (*)(Params...)>(const_cast<void*>(kernel));
  return emulated_launch(typed, blocks, threads, stream, params...);
#else
  void* arguments[] = {const_cast<Params*>(&params)...};
  return SYMM_GPU_NAME(LaunchKernel)(kernel, blocks, threads, arguments, 0, stream);
#endif
}
// `priority`: between those of gpuDeviceGetStreamPriorityRange(), the greater one the smaller
// number.
inline gpuError_t gpuStreamCreateNonBlocking(gpuStream_t* stream, int priority = 0) {
  return SYMM_GPU_NAME(StreamCreateWithPriority)(stream, SYMM_GPU_NAME(StreamNonBlocking),
                                                 priority);
}
inline gpuError_t gpuStreamWaitEvent(gpuStream_t stream, gpuEvent_t event) {
  return SYMM_GPU_NAME(StreamWaitEvent)(stream, event, 0);
}
inline gpuError_t gpuEventCreateUntimed(gpuEvent_t* event) {
  return SYMM_GPU_NAME(EventCreateWithFlags)(event, SYMM_GPU_NAME(EventDisableTiming));
}
inline gpuError_t gpuHostRegisterMapped(void* memory, std::size_t bytes) {
  return SYMM_GPU_NAME(HostRegister)(
      memory, bytes, SYMM_GPU_NAME(HostRegisterMapped) | SYMM_GPU_NAME(HostRegisterPortable));
}
inline gpuError_t gpuHostGetDevicePointer(void** device, void* host) {
  return SYMM_GPU_NAME(HostGetDevicePointer)(device, host, 0);
}

inline constexpr auto gpuStreamCaptureStatusNone = SYMM_GPU_NAME(StreamCaptureStatusNone);
inline constexpr auto gpuStreamCaptureStatusActive = SYMM_GPU_NAME(StreamCaptureStatusActive);
inline constexpr auto gpuStreamCaptureModeRelaxed = SYMM_GPU_NAME(StreamCaptureModeRelaxed);
inline constexpr auto gpuErrorNotReady = SYMM_GPU_NAME(ErrorNotReady);
inline constexpr auto gpuErrorStreamCaptureImplicit = SYMM_GPU_NAME(ErrorStreamCaptureImplicit);

inline constexpr gpuMemcpyKind gpuMemcpyHostToDevice = SYMM_GPU_NAME(MemcpyHostToDevice);
inline constexpr gpuMemcpyKind gpuMemcpyDeviceToHost = SYMM_GPU_NAME(MemcpyDeviceToHost);
inline constexpr gpuMemcpyKind gpuMemcpyDeviceToDevice = SYMM_GPU_NAME(MemcpyDeviceToDevice);
inline constexpr gpuMemcpyKind gpuMemcpyAnyToAny = SYMM_GPU_NAME(MemcpyDefault);

// The calls by which the host code reaches a GPU; a device library holds them in its data as well.
#if SYMM_GPU_AMD
inline constexpr char kGpuHostCalls[] = "symm host calls: HIP on AMD";
#elif SYMM_GPU_HIP
inline constexpr char kGpuHostCalls[] = "symm host calls: HIP on NVIDIA";
#else
inline constexpr char kGpuHostCalls[] = "symm host calls: CUDA on NVIDIA";
#endif

// Some devices of this vendor have loads and stores on multicast addresses.
inline constexpr bool kGpuHasMultimem = SYMM_GPU_HIP == 0;

// Links between some devices keep lines of 128 bytes whole.
inline constexpr bool kGpuHasLines = SYMM_GPU_AMD == 0;

// Kernels are compiled for the host, where tests run them (test/gpu_emulated).
#if defined(SYMM_GPU_EMULATED)
inline constexpr bool kGpuIsEmulated = true;
#else
inline constexpr bool kGpuIsEmulated = false;
#endif

// Rules of reductions that are seldom used share kernels. On AMD a kernel has a copy of its
// reduction wherever it reduces, as calls are inlined there, and so each rule has its own kernels.
inline constexpr bool kGpuSharesReduceKernels = SYMM_GPU_AMD == 0;

}  // namespace symm

// The device being compiled for has loads and stores on multicast addresses.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define SYMM_MULTIMEM 1
#else
#define SYMM_MULTIMEM 0
#endif

// The device being compiled for has instructions for float16, for bfloat16, and for pairs of 8-bit
// floats (convert.cuh).
#if defined(__CUDA_ARCH__)
#define SYMM_CONVERTS_HALF 1
#define SYMM_CONVERTS_BFLOAT16 (__CUDA_ARCH__ >= 800)
#define SYMM_CONVERTS_FLOAT8 (__CUDA_ARCH__ >= 890)
#else
#define SYMM_CONVERTS_HALF 0
#define SYMM_CONVERTS_BFLOAT16 0
#define SYMM_CONVERTS_FLOAT8 0
#endif

// A warp has 32 threads, whose accesses to a line of 128 bytes by one instruction are one access.
#define SYMM_LINES (SYMM_GPU_AMD == 0)

#if SYMM_GPU_COMPILER

// SYMM_GRID_CONSTANT: a parameter that is read in the launch's parameter memory, without a copy in
// each thread. SYMM_LAUNCH_BOUNDS: threads of a block, and blocks that must fit on one
// multiprocessor together (HIP counts the waves of one of its four SIMDs, of 64 threads or fewer).
//
// SYMM_OUTLINED: a function that is called and not inlined, because its callers are many or seldom
// need it. SYMM_OUTLINED_METHOD: the same for a function that takes the address of what its caller
// keeps in registers; inlined on AMD, where a call would force that into memory. SYMM_COLD: the
// rare part of such a method, called on AMD, where the many copies of the method would contain it
// otherwise; ColdValue: its parameter, which has no address there.
#if SYMM_GPU_AMD
#define SYMM_GRID_CONSTANT
#define SYMM_LAUNCH_BOUNDS(threads, blocks) \
  __launch_bounds__(threads, ((blocks) * (threads) + 255) / 256)
#define SYMM_OUTLINED __attribute__((noinline))
#define SYMM_OUTLINED_METHOD __attribute__((always_inline))
#define SYMM_COLD __attribute__((noinline))
#elif defined(SYMM_GPU_EMULATED)
#define SYMM_GRID_CONSTANT
#define SYMM_LAUNCH_BOUNDS(threads, blocks)
#define SYMM_OUTLINED __attribute__((noinline))
#define SYMM_OUTLINED_METHOD __attribute__((noinline))
#define SYMM_COLD inline
#else
#define SYMM_GRID_CONSTANT __grid_constant__
#define SYMM_LAUNCH_BOUNDS(threads, blocks) __launch_bounds__(threads, blocks)
#define SYMM_OUTLINED __noinline__
#define SYMM_OUTLINED_METHOD __noinline__
#define SYMM_COLD __forceinline__
#endif

namespace symm {

#if SYMM_GPU_AMD
template <class T>
using ColdValue = T;
#else
template <class T>
using ColdValue = const T&;
#endif

#if SYMM_DEVICE_PASS && SYMM_GPU_AMD
__device__ __attribute__((const)) inline bool is_global(const void* pointer) {
  return !__builtin_amdgcn_is_shared(pointer) && !__builtin_amdgcn_is_private(pointer);
}
#endif

// The same pointer, known to the compiler to lead to memory of a GPU or of the host, not to memory
// of the block or the thread: the access needs no test of the address space.
template <class T>
__device__ inline T* global_pointer(T* pointer) {
#if SYMM_DEVICE_PASS && SYMM_GPU_AMD
  __builtin_assume(is_global(pointer));
#endif
  return pointer;
}

#if SYMM_GPU_AMD
namespace hip {

template <std::size_t bytes>
struct RawWord;
#define SYMM_RAW_WORD(type)               \
  template <>                             \
  struct RawWord<sizeof(type)> {          \
    using Type [[gnu::may_alias]] = type; \
  };
SYMM_RAW_WORD(std::uint8_t)
SYMM_RAW_WORD(std::uint16_t)
SYMM_RAW_WORD(std::uint32_t)
SYMM_RAW_WORD(std::uint64_t)
SYMM_RAW_WORD(std::uint32_t __attribute__((ext_vector_type(4))))
#undef SYMM_RAW_WORD
template <class T>
using Global = __attribute__((address_space(1))) T;

}  // namespace hip
#endif

// Payload in memory of a GPU, this one's or a peer's, naturally aligned: one access of the width of
// T, which has 1, 2, 4, 8 or 16 bytes. On AMD with the hint that it is not needed again soon.
template <class T>
__device__ inline T load_data(const T* address) {
#if SYMM_GPU_AMD
  using Raw = typename hip::RawWord<sizeof(T)>::Type;
  return __builtin_bit_cast(T, __builtin_nontemporal_load((const hip::Global<Raw>*)address));
#else
  return *address;
#endif
}
template <class T>
__device__ inline void store_data(T* address, const std::type_identity_t<T>& value) {
#if SYMM_GPU_AMD
  using Raw = typename hip::RawWord<sizeof(T)>::Type;
  __builtin_nontemporal_store(__builtin_bit_cast(Raw, value), (hip::Global<Raw>*)address);
#else
  *address = value;
#endif
}

// Element `index` of an array at any address.
template <class T>
__device__ inline T load_element(const void* array, std::size_t index) {
  const auto* address = static_cast<const std::byte*>(array) + index * sizeof(T);
#if SYMM_GPU_AMD
  using Raw = typename hip::RawWord<sizeof(T)>::Type __attribute__((aligned(1)));
  return __builtin_bit_cast(T, *(const hip::Global<Raw>*)address);
#else
  T value;
  __builtin_memcpy(&value, address, sizeof(T));
  return value;
#endif
}
template <class T>
__device__ inline void store_element(void* array, std::size_t index, T value) {
  auto* address = static_cast<std::byte*>(array) + index * sizeof(T);
#if SYMM_GPU_AMD
  using Raw = typename hip::RawWord<sizeof(T)>::Type __attribute__((aligned(1)));
  *(hip::Global<Raw>*)address = __builtin_bit_cast(Raw, value);
#else
  __builtin_memcpy(address, &value, sizeof(T));
#endif
}

// A value in the block's shared memory, by an address whose space the compiler does not know; of a
// class, in whole words.
template <class T>
__device__ inline T load_shared(const T* address) {
#if SYMM_GPU_AMD
  if constexpr (std::is_class_v<T>) {
    T value;
    const auto* from = (const __attribute__((address_space(3))) std::uint32_t*)address;
    auto* to = reinterpret_cast<std::uint32_t*>(&value);
#pragma unroll
    for (std::size_t i = 0; i < sizeof(T) / 4; ++i) to[i] = from[i];
    return value;
  } else {
    return *(const __attribute__((address_space(3))) T*)address;
  }
#else
  return *address;
#endif
}

template <class T>
__device__ inline void store_shared(T* address, const std::type_identity_t<T>& value) {
#if SYMM_GPU_AMD
  if constexpr (std::is_class_v<T>) {
    auto* to = (__attribute__((address_space(3))) std::uint32_t*)address;
    const auto* from = reinterpret_cast<const std::uint32_t*>(&value);
#pragma unroll
    for (std::size_t i = 0; i < sizeof(T) / 4; ++i) to[i] = from[i];
  } else {
    *(__attribute__((address_space(3))) T*)address = value;
  }
#else
  *address = value;
#endif
}

// So that the compiler does not compute a pointer, or load a word, again at each use: it is there
// from here on.
template <class T>
__device__ __forceinline__ void keep_in_register([[maybe_unused]] T& value) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) == 8) {
    asm volatile("" : "+l"(value));
  } else {
    asm volatile("" : "+r"(value));
  }
#endif
}

// A barrier of the block's threads: true in all of them where `condition` is true in all. Memory
// accesses are not moved across it.
__device__ inline bool block_all(bool condition) {
#if SYMM_DEVICE_PASS && SYMM_GPU_AMD
  // The vendor's barrier orders shared memory alone.
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  const int all = __syncthreads_and(condition);
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
  return all != 0;
#else
  return __syncthreads_and(condition) != 0;
#endif
}

// Threads that execute together: a warp, or a wave.
#if SYMM_DEVICE_PASS && SYMM_GPU_AMD
inline constexpr unsigned kWarpThreads = __AMDGCN_WAVEFRONT_SIZE;
#elif SYMM_GPU_AMD
inline constexpr unsigned kWarpThreads = 64;
#else
inline constexpr unsigned kWarpThreads = 32;
#endif

// A barrier of the warp's threads, all of which call it: what one did before it, all see after it.
__device__ inline void warp_barrier() {
#if SYMM_DEVICE_PASS && SYMM_GPU_AMD
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
  __builtin_amdgcn_wave_barrier();
#elif !SYMM_GPU_AMD
  __syncwarp();
#endif
}
// True in all threads of the warp where `condition` is true in all; a barrier as well.
__device__ inline bool warp_all(bool condition) {
#if SYMM_GPU_AMD
  const bool all = __all(condition) != 0;
  warp_barrier();
  return all;
#else
  const bool all = __all_sync(0xffff'ffffu, condition) != 0;
  __syncwarp();
  return all;
#endif
}

// `value` of the thread whose number differs in the bits of `mask`. By all threads of the warp.
template <class T>
__device__ inline T shuffle_xor(T value, unsigned mask) {
#if SYMM_GPU_AMD
  return __shfl_xor(value, static_cast<int>(mask));
#else
  return __shfl_xor_sync(0xffff'ffffu, value, static_cast<int>(mask));
#endif
}
// The largest `value` of the warp's threads. By all of them.
__device__ inline unsigned warp_max(unsigned value) {
#pragma unroll
  for (unsigned mask = kWarpThreads / 2; mask > 0; mask /= 2) {
    const unsigned other = shuffle_xor(value, mask);
    value = other > value ? other : value;
  }
  return value;
}

// Of memory with two addresses: orders accesses by one before those by the other.
__device__ inline void order_both_addresses() {
#if SYMM_DEVICE_PASS && !SYMM_GPU_AMD
  asm volatile("fence.proxy.alias;" ::: "memory");
#endif
}

// Between two polls of a thread whose warp waits.
__device__ inline void pause_poll() {
#if SYMM_DEVICE_PASS && SYMM_GPU_AMD
  __builtin_amdgcn_s_sleep(1);
#elif SYMM_DEVICE_PASS
  __nanosleep(20);
#endif
}

// Ends the kernel with an error, and with it all that this process has on the device.
__device__ inline void device_trap() {
#if SYMM_GPU_AMD
  __builtin_trap();
#else
  __trap();
#endif
}

// Nanoseconds of a clock that all blocks share.
__device__ inline std::uint64_t device_clock_ns() {
#if SYMM_DEVICE_PASS && SYMM_GPU_AMD
  return __builtin_readsteadycounter() * 10;  // counts at 100 MHz
#elif SYMM_DEVICE_PASS
  std::uint64_t value;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value));
  return value;
#elif defined(SYMM_GPU_EMULATED)
  return emulated_clock_ns();
#else
  return 0;
#endif
}

}  // namespace symm

#endif
