// The kernels of bulk_probe.cu: three collectives over slots by lanes of warps, and all_gather by
// bulk copies. Each rank launches the same grid on a stream of its own.
#pragma once

#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>

namespace symm::probe {

constexpr int kWarp = 32;
constexpr int kWarpsPerBlock = 32;
constexpr int kMostRanks = 4;
constexpr int kMostLanes = 2048;
constexpr int kLineWords = 32;  // a counter has a cache line of its own
constexpr int kHops = 2;
constexpr int kBatch = 4;  // vectors that a thread has under way

enum class Operation { kAllReduce, kReduceScatter, kAllGather };

// Of one rank: what its peers write.
struct Inbox {
  uint4* slots;           // [hop][sender][lane][slot] chunks
  std::uint32_t* filled;  // [hop][sender][lane]
  std::uint32_t* freed;   // [hop][receiver][lane], of what this rank sends
};

struct Arguments {
  Inbox inboxes[kMostRanks];
  const uint4* input;
  uint4* output;
  std::size_t part;   // vectors of 16 bytes
  std::size_t chunk;  // likewise
  int rank;
  int lanes;
  std::uint32_t slots;
  std::uint32_t steps;  // chunks of each lane
  std::uint32_t first;  // steps of the calls before
};

__device__ inline std::uint32_t load_acquire(const std::uint32_t* from) {
  std::uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
__device__ inline void store_release(std::uint32_t* to, std::uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

__device__ inline std::uint32_t* counter(std::uint32_t* counters, int hop, int peer, int lane) {
  return counters + ((hop * kMostRanks + peer) * kMostLanes + lane) * kLineWords;
}
__device__ inline uint4* slot_of(const Arguments& a, int owner, int hop, int sender, int lane,
                                 std::uint32_t step) {
  const std::size_t index =
      (static_cast<std::size_t>(hop * kMostRanks + sender) * a.lanes + lane) * a.slots +
      step % a.slots;
  return a.inboxes[owner].slots + index * a.chunk;
}

// Of a warp: one thread waits or posts for all.
__device__ inline void wait_until(const std::uint32_t* line, std::uint32_t least, int thread) {
  if (thread == 0) {
    while (static_cast<std::int32_t>(load_acquire(line) - least) < 0) __nanosleep(20);
  }
  __syncwarp();
}
__device__ inline void post(std::uint32_t* line, std::uint32_t value, int thread) {
  __syncwarp();
  if (thread == 0) store_release(line, value);
}
__device__ inline void wait_for_credit(const Arguments& a, int hop, int to, int lane,
                                       std::uint32_t step, int thread) {
  wait_until(counter(a.inboxes[a.rank].freed, hop, to, lane), step + 1 - a.slots, thread);
}

__device__ inline void copy(uint4* to, const uint4* from, std::size_t count, int thread) {
  for (std::size_t at = thread; at < count; at += kBatch * kWarp) {
    uint4 values[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (at + i * kWarp < count) values[i] = __ldcg(from + at + i * kWarp);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (at + i * kWarp < count) to[at + i * kWarp] = values[i];
    }
  }
}

__device__ inline void add(float2 (&sums)[4], uint4 value) {
  const auto* pairs = reinterpret_cast<const __nv_bfloat162*>(&value);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 wide = __bfloat1622float2(pairs[i]);
    sums[i].x += wide.x;
    sums[i].y += wide.y;
  }
}
__device__ inline uint4 rounded(const float2 (&sums)[4]) {
  uint4 value;
  auto* pairs = reinterpret_cast<__nv_bfloat162*>(&value);
#pragma unroll
  for (int i = 0; i < 4; ++i) pairs[i] = __float22bfloat162_rn(sums[i]);
  return value;
}

// Its share of one chunk: adds the ranks' in their order, and writes where it is told to.
template <int kRanks>
__device__ void combine(const uint4* const (&from)[kRanks], uint4* const (&to)[kRanks],
                        std::size_t count, int thread) {
  constexpr int kAtOnce = kBatch / kRanks;
  for (std::size_t at = thread; at < count; at += kAtOnce * kWarp) {
    uint4 values[kAtOnce][kRanks];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int r = 0; r < kRanks; ++r) {
        if (at + i * kWarp < count) values[i][r] = __ldcg(from[r] + at + i * kWarp);
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (at + i * kWarp >= count) break;
      float2 sums[4] = {};
#pragma unroll
      for (int r = 0; r < kRanks; ++r) add(sums, values[i][r]);
      const uint4 sum = rounded(sums);
#pragma unroll
      for (int r = 0; r < kRanks; ++r) {
        if (to[r] != nullptr) to[r][at + i * kWarp] = sum;
      }
    }
  }
}

template <int kRanks, Operation kOperation>
__global__ void __launch_bounds__(kWarp* kWarpsPerBlock)
    exchange(const __grid_constant__ Arguments a) {
  constexpr int kPeers = kRanks - 1;
  constexpr bool kCombines = kOperation != Operation::kAllGather;
  constexpr bool kPlaces = kOperation != Operation::kReduceScatter;
  constexpr int kRoles = kPeers + 1 + (kPlaces ? kPeers : 0);
  constexpr int kPlacedHop = kCombines ? 1 : 0;
  const int warp = static_cast<int>(blockIdx.x * kWarpsPerBlock + threadIdx.x / kWarp);
  const int thread = static_cast<int>(threadIdx.x % kWarp);
  const int role = warp % kRoles;
  const int lane = warp / kRoles;
  if (lane >= a.lanes) return;
  const int peer = (a.rank + 1 + role % kPeers) % kRanks;
  for (std::uint32_t i = 0; i < a.steps; ++i) {
    const std::uint32_t step = a.first + i;
    const std::size_t begin =
        (static_cast<std::size_t>(i) * a.lanes + static_cast<std::size_t>(lane)) * a.chunk;
    const std::size_t count = begin < a.part ? min(a.chunk, a.part - begin) : 0;
    if (role < kPeers) {
      const uint4* from = a.input + (kCombines ? peer * a.part : 0) + begin;
      wait_for_credit(a, 0, peer, lane, step, thread);
      copy(slot_of(a, peer, 0, a.rank, lane, step), from, count, thread);
      post(counter(a.inboxes[peer].filled, 0, a.rank, lane), step + 1, thread);
    } else if (role == kPeers && !kCombines) {
      copy(a.output + a.rank * a.part + begin, a.input + begin, count, thread);
    } else if (role == kPeers) {
      const uint4* from[kRanks];
      uint4* to[kRanks];
#pragma unroll
      for (int r = 0; r < kRanks; ++r) {
        from[r] = slot_of(a, a.rank, 0, r, lane, step);
        to[r] = kPlaces ? slot_of(a, r, 1, a.rank, lane, step) : nullptr;
        if (r == a.rank) {
          from[r] = a.input + a.rank * a.part + begin;
          to[r] = a.output + (kPlaces ? a.rank * a.part : 0) + begin;
          continue;
        }
        wait_until(counter(a.inboxes[a.rank].filled, 0, r, lane), step + 1, thread);
        if (kPlaces) wait_for_credit(a, 1, r, lane, step, thread);
      }
      combine<kRanks>(from, to, count, thread);
      __syncwarp();
      if (thread < kRanks && thread != a.rank) {
        if (kPlaces) {
          store_release(counter(a.inboxes[thread].filled, 1, a.rank, lane), step + 1);
        }
        store_release(counter(a.inboxes[thread].freed, 0, a.rank, lane), step + 1);
      }
    } else {
      wait_until(counter(a.inboxes[a.rank].filled, kPlacedHop, peer, lane), step + 1, thread);
      copy(a.output + peer * a.part + begin, slot_of(a, a.rank, kPlacedHop, peer, lane, step),
           count, thread);
      post(counter(a.inboxes[peer].freed, kPlacedHop, a.rank, lane), step + 1, thread);
    }
  }
}

// Bulk copies: one thread of a warp moves whole chunks through shared memory.
constexpr std::size_t kSharedBytes = 192 << 10;
constexpr int kMostMovers = 8;  // of a block
constexpr std::uint32_t kStages = 6;
constexpr std::uint32_t kAhead = 3;                       // loads started before their stores
constexpr std::uint32_t kPending = kStages - kAhead - 1;  // stores under way
// A chunk is posted when kPending later ones are under way, and a placer looks kAhead chunks ahead
// before it frees one: with fewer slots both would wait for each other.
constexpr std::uint32_t kLeastSlots = kAhead + kPending;

inline int movers_of(std::size_t chunk_bytes) {
  return static_cast<int>(kSharedBytes / kStages / chunk_bytes);
}

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}
__device__ inline void start_load(uint4* stage, std::uint64_t* loaded, const uint4* from,
                                  std::uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(loaded)),
      "r"(bytes)
      : "memory");
  if (bytes == 0) return;
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(stage)),
      "l"(from), "r"(bytes), "r"(shared_address(loaded))
      : "memory");
}
__device__ inline void wait_for_load(std::uint64_t* loaded, std::uint32_t parity) {
  std::uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, "
        "p; }"
        : "=r"(done)
        : "r"(shared_address(loaded)), "r"(parity)
        : "memory");
  }
}
__device__ inline void start_store(uint4* to, const uint4* stage, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(shared_address(stage)), "r"(bytes)
               : "memory");
}
__device__ inline void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
__device__ inline void proxy_fence() { asm volatile("fence.proxy.async;" ::: "memory"); }

template <std::uint32_t kMost>
__device__ void wait_for_reads() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kMost) : "memory");
}
template <std::uint32_t kMost>
__device__ void wait_for_stores() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kMost) : "memory");
}
__device__ inline void poll_until(const std::uint32_t* line, std::uint32_t least) {
  while (static_cast<std::int32_t>(load_acquire(line) - least) < 0) __nanosleep(20);
  proxy_fence();
}

// all_gather: loads and stores of several chunks are under way at once, and the fence of a chunk is
// beside them.
template <int kRanks>
__global__ void __launch_bounds__(kWarp* kMostMovers)
    gather_by_bulk_copies(const __grid_constant__ Arguments a) {
  constexpr int kPeers = kRanks - 1;
  constexpr int kRoles = 2 * kPeers + 1;
  extern __shared__ uint4 shared[];
  __shared__ std::uint64_t barriers[kMostMovers][kStages];
  const int own = static_cast<int>(threadIdx.x / kWarp);
  const int warp = static_cast<int>(blockIdx.x * (blockDim.x / kWarp)) + own;
  const int role = warp % kRoles;
  const int lane = warp / kRoles;
  if (lane >= a.lanes || threadIdx.x % kWarp != 0) return;
  uint4* const memory = shared + own * kStages * a.chunk;
  std::uint64_t* const loaded = barriers[own];
  for (std::uint32_t i = 0; i < kStages; ++i) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(loaded + i)));
  }
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  proxy_fence();
  const int peer = (a.rank + 1 + role % kPeers) % kRanks;
  const bool sends = role < kPeers;
  const bool places = role > kPeers;
  const auto begin_of = [&](std::uint32_t i) {
    return (static_cast<std::size_t>(i) * a.lanes + static_cast<std::size_t>(lane)) * a.chunk;
  };
  const auto bytes_of = [&](std::uint32_t i) {
    const std::size_t begin = begin_of(i);
    return static_cast<std::uint32_t>(begin < a.part ? min(a.chunk, a.part - begin) * sizeof(uint4)
                                                     : 0);
  };
  const auto load = [&](std::uint32_t i) {
    const std::uint32_t step = a.first + i;
    if (places) poll_until(counter(a.inboxes[a.rank].filled, 0, peer, lane), step + 1);
    const uint4* from = places ? slot_of(a, a.rank, 0, peer, lane, step) : a.input + begin_of(i);
    start_load(memory + i % kStages * a.chunk, loaded + i % kStages, from, bytes_of(i));
  };
  const auto post_chunk = [&](std::uint32_t i) {
    proxy_fence();
    store_release(counter(a.inboxes[peer].filled, 0, a.rank, lane), a.first + i + 1);
  };
  for (std::uint32_t i = 0; i < min(kAhead, a.steps); ++i) load(i);
  for (std::uint32_t i = 0; i < a.steps; ++i) {
    const std::uint32_t step = a.first + i;
    wait_for_load(loaded + i % kStages, i / kStages & 1);
    uint4* to = a.output + (places ? peer : a.rank) * a.part + begin_of(i);
    if (places) store_release(counter(a.inboxes[peer].freed, 0, a.rank, lane), step + 1);
    if (sends) {
      poll_until(counter(a.inboxes[a.rank].freed, 0, peer, lane), step + 1 - a.slots);
      to = slot_of(a, peer, 0, a.rank, lane, step);
    }
    if (bytes_of(i) > 0) start_store(to, memory + i % kStages * a.chunk, bytes_of(i));
    commit_stores();
    if (i + kAhead < a.steps) {
      wait_for_reads<kPending>();
      load(i + kAhead);
    }
    if (sends && i >= kPending) {
      wait_for_stores<kPending>();
      post_chunk(i - kPending);
    }
  }
  wait_for_stores<0>();
  if (!sends) return;
  for (std::uint32_t i = a.steps - min(kPending, a.steps); i < a.steps; ++i) post_chunk(i);
}

}  // namespace symm::probe
