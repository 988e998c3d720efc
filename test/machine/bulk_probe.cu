// An experiment, free of the library: lanes that are warps. How fast do large messages go through
// slots where each warp waits for its credit, copies its chunk, fences and posts alone, so that the
// other warps of the multiprocessor cover its fence and its wait? Ranks are kernels on streams of
// one GPU. Prints a table and writes JSON, a record a line; every result is compared with what it
// must be.
//
//   bulk_probe <file.json> [worlds=2,4] [MiB=16,64]
//
// A lane has, for each peer, a warp that sends and a warp that places, and one that combines in
// rank order (or copies the rank's own part). All blocks of all ranks must be on the GPU at once.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

namespace {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
  std::exit(2);
}

constexpr int kWarp = 32;
constexpr int kWarpsPerBlock = 32;
constexpr int kMostRanks = 4;
constexpr int kMostLanes = 2048;
constexpr int kLineWords = 32;  // a counter has a cache line of its own
constexpr int kHops = 2;
constexpr int kBatch = 4;  // vectors that a thread has under way
constexpr int kResidentBlocks = 132;

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

__device__ std::uint32_t load_acquire(const std::uint32_t* from) {
  std::uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
__device__ void store_release(std::uint32_t* to, std::uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

__device__ std::uint32_t* counter(std::uint32_t* counters, int hop, int peer, int lane) {
  return counters + ((hop * kMostRanks + peer) * kMostLanes + lane) * kLineWords;
}
__device__ uint4* slot_of(const Arguments& a, int owner, int hop, int sender, int lane,
                          std::uint32_t step) {
  const std::size_t index =
      (static_cast<std::size_t>(hop * kMostRanks + sender) * a.lanes + lane) * a.slots +
      step % a.slots;
  return a.inboxes[owner].slots + index * a.chunk;
}

// Of a warp: one thread waits or posts for all.
__device__ void wait_until(const std::uint32_t* line, std::uint32_t least, int thread) {
  if (thread == 0) {
    while (static_cast<std::int32_t>(load_acquire(line) - least) < 0) __nanosleep(20);
  }
  __syncwarp();
}
__device__ void post(std::uint32_t* line, std::uint32_t value, int thread) {
  __syncwarp();
  if (thread == 0) store_release(line, value);
}
__device__ void wait_for_credit(const Arguments& a, int hop, int to, int lane, std::uint32_t step,
                                int thread) {
  wait_until(counter(a.inboxes[a.rank].freed, hop, to, lane), step + 1 - a.slots, thread);
}

__device__ void copy(uint4* to, const uint4* from, std::size_t count, int thread) {
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

__device__ void add(float2 (&sums)[4], uint4 value) {
  const auto* pairs = reinterpret_cast<const __nv_bfloat162*>(&value);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 wide = __bfloat1622float2(pairs[i]);
    sums[i].x += wide.x;
    sums[i].y += wide.y;
  }
}
__device__ uint4 rounded(const float2 (&sums)[4]) {
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

int movers_of(std::size_t chunk_bytes) {
  return static_cast<int>(kSharedBytes / kStages / chunk_bytes);
}

__device__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}
__device__ void start_load(uint4* stage, std::uint64_t* loaded, const uint4* from,
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
__device__ void wait_for_load(std::uint64_t* loaded, std::uint32_t parity) {
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
__device__ void start_store(uint4* to, const uint4* stage, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(shared_address(stage)), "r"(bytes)
               : "memory");
}
__device__ void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
__device__ void proxy_fence() { asm volatile("fence.proxy.async;" ::: "memory"); }

template <std::uint32_t kMost>
__device__ void wait_for_reads() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kMost) : "memory");
}
template <std::uint32_t kMost>
__device__ void wait_for_stores() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kMost) : "memory");
}
__device__ void poll_until(const std::uint32_t* line, std::uint32_t least) {
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

using Kernel = void (*)(Arguments);
template <int kRanks>
Kernel kernel_of(Operation operation) {
  switch (operation) {
    case Operation::kAllReduce:
      return exchange<kRanks, Operation::kAllReduce>;
    case Operation::kReduceScatter:
      return exchange<kRanks, Operation::kReduceScatter>;
    default:
      return exchange<kRanks, Operation::kAllGather>;
  }
}

const char* name_of(Operation operation) {
  if (operation == Operation::kAllReduce) return "all_reduce";
  return operation == Operation::kReduceScatter ? "reduce_scatter" : "all_gather";
}
int roles_of(Operation operation, int world) {
  return operation == Operation::kReduceScatter ? world : 2 * world - 1;
}

// Small whole numbers: every sum of four is exact.
float input_value(int rank, std::size_t index) {
  return static_cast<float>(static_cast<int>(index % 13) + 3 * rank);
}

struct Rank {
  Inbox inbox{};
  uint4* input = nullptr;
  uint4* output = nullptr;
  cudaStream_t stream = nullptr;
  cudaEvent_t end = nullptr;
};

struct Shape {
  Operation operation;
  std::size_t bytes;  // of the larger of input and output
  int blocks;
  std::size_t chunk;  // bytes
  std::uint32_t slots;
  bool by_bulk_copies = false;

  int warps() const { return by_bulk_copies ? movers_of(chunk) : kWarpsPerBlock; }
};

class Rig {
 public:
  Rig(int world, std::size_t most_bytes) : ranks_(world), most_(most_bytes) {
    std::vector<__nv_bfloat16> values(most_ / 2);
    for (int r = 0; r < world; ++r) {
      check(cudaMalloc(&at(r).inbox.slots, kSlotBytes), "Malloc");
      check(cudaMalloc(&at(r).inbox.filled, kCounterBytes), "Malloc");
      check(cudaMalloc(&at(r).inbox.freed, kCounterBytes), "Malloc");
      check(cudaMalloc(&at(r).input, most_), "Malloc");
      check(cudaMalloc(&at(r).output, most_), "Malloc");
      check(cudaStreamCreateWithFlags(&at(r).stream, cudaStreamNonBlocking), "StreamCreate");
      check(cudaEventCreate(&at(r).end), "EventCreate");
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = __float2bfloat16(input_value(r, i));
      }
      check(cudaMemcpy(at(r).input, values.data(), most_, cudaMemcpyHostToDevice), "Memcpy");
    }
    check(cudaEventCreate(&begin_), "EventCreate");
  }
  ~Rig() {
    for (Rank& r : ranks_) {
      for (void* memory : {static_cast<void*>(r.inbox.slots), static_cast<void*>(r.inbox.filled),
                           static_cast<void*>(r.inbox.freed), static_cast<void*>(r.input),
                           static_cast<void*>(r.output)}) {
        (void)cudaFree(memory);
      }
      (void)cudaStreamDestroy(r.stream);
      (void)cudaEventDestroy(r.end);
    }
    (void)cudaEventDestroy(begin_);
  }
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  bool fits(const Shape& shape) const {
    const std::size_t lanes = lanes_of(shape);
    return lanes > 0 && lanes <= kMostLanes &&
           lanes * shape.slots * shape.chunk * kMostRanks * kHops <= kSlotBytes;
  }
  int lanes_of(const Shape& shape) const {
    return shape.blocks * shape.warps() / roles_of(shape.operation, world());
  }

  // Median microseconds of a call.
  double measure(const Shape& shape, int calls, int repeats) {
    for (Rank& r : ranks_) {
      check(cudaMemset(r.inbox.filled, 0, kCounterBytes), "Memset");
      check(cudaMemset(r.inbox.freed, 0, kCounterBytes), "Memset");
      check(cudaMemset(r.output, 0xff, most_), "Memset");
    }
    check(cudaDeviceSynchronize(), "DeviceSynchronize");
    std::uint32_t first = 0;
    std::vector<double> times;
    for (int i = 0; i < repeats + 2; ++i) {
      const double time = run(shape, calls, &first);
      if (i >= 2) times.push_back(time);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

  std::string compare(const Shape& shape) {
    std::vector<__nv_bfloat16> got(most_ / 2);
    const std::size_t part = shape.bytes / 2 / ranks_.size();
    const bool gathers = shape.operation == Operation::kAllGather;
    for (int rank = 0; rank < world(); ++rank) {
      check(cudaMemcpy(got.data(), at(rank).output, most_, cudaMemcpyDeviceToHost), "Memcpy");
      const bool scatters = shape.operation == Operation::kReduceScatter;
      for (std::size_t i = 0; i < (scatters ? part : part * ranks_.size()); ++i) {
        float want = gathers ? input_value(static_cast<int>(i / part), i % part) : 0;
        for (int r = 0; r < world() && !gathers; ++r) {
          want += input_value(r, scatters ? part * rank + i : i);
        }
        if (__bfloat162float(got[i]) == want) continue;
        return "rank " + std::to_string(rank) + " has wrong element " + std::to_string(i);
      }
    }
    return "";
  }

  // Bytes read and written in a microsecond by a copy from device to device.
  double copy_bandwidth() {
    std::vector<double> times;
    for (int i = 0; i < 12; ++i) {
      check(cudaEventRecord(begin_, at(0).stream), "EventRecord");
      check(
          cudaMemcpyAsync(at(0).output, at(0).input, most_, cudaMemcpyDeviceToDevice, at(0).stream),
          "Memcpy");
      check(cudaEventRecord(at(0).end, at(0).stream), "EventRecord");
      check(cudaStreamSynchronize(at(0).stream), "StreamSynchronize");
      float milliseconds = 0;
      check(cudaEventElapsedTime(&milliseconds, begin_, at(0).end), "EventElapsedTime");
      times.push_back(milliseconds * 1e3);
    }
    std::sort(times.begin(), times.end());
    return 2.0 * static_cast<double>(most_) / times[times.size() / 2];
  }

 private:
  static constexpr std::size_t kSlotBytes = std::size_t{256} << 20;
  static constexpr std::size_t kCounterBytes =
      std::size_t{kHops} * kMostRanks * kMostLanes * kLineWords * sizeof(std::uint32_t);

  Rank& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  int world() const { return static_cast<int>(ranks_.size()); }

  double run(const Shape& shape, int calls, std::uint32_t* first) {
    Arguments a{};
    for (int r = 0; r < world(); ++r) a.inboxes[r] = at(r).inbox;
    a.part = shape.bytes / sizeof(uint4) / ranks_.size();
    a.chunk = shape.chunk / sizeof(uint4);
    a.lanes = lanes_of(shape);
    a.slots = shape.slots;
    const std::size_t chunks = (a.part + a.chunk - 1) / a.chunk;
    a.steps = static_cast<std::uint32_t>((chunks + a.lanes - 1) / a.lanes);
    Kernel kernel = world() == 2 ? kernel_of<2>(shape.operation) : kernel_of<4>(shape.operation);
    std::size_t shared = 0;
    if (shape.by_bulk_copies) {
      kernel = world() == 2 ? gather_by_bulk_copies<2> : gather_by_bulk_copies<4>;
      shared = shape.warps() * kStages * shape.chunk;
      check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                 cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(shared)),
            "FuncSetAttribute");
    }
    check(cudaEventRecord(begin_, at(0).stream), "EventRecord");
    for (Rank& r : ranks_) check(cudaStreamWaitEvent(r.stream, begin_), "StreamWaitEvent");
    for (int call = 0; call < calls; ++call) {
      for (int r = 0; r < world(); ++r) {
        a.rank = r;
        a.first = *first;
        a.input = at(r).input;
        a.output = at(r).output;
        kernel<<<shape.blocks, kWarp * shape.warps(), shared, at(r).stream>>>(a);
        check(cudaGetLastError(), "launch");
      }
      *first += a.steps;
    }
    float slowest = 0;
    for (Rank& r : ranks_) check(cudaEventRecord(r.end, r.stream), "EventRecord");
    for (Rank& r : ranks_) {
      check(cudaStreamSynchronize(r.stream), "StreamSynchronize");
      float milliseconds = 0;
      check(cudaEventElapsedTime(&milliseconds, begin_, r.end), "EventElapsedTime");
      slowest = std::max(slowest, milliseconds);
    }
    return slowest * 1e3 / calls;
  }

  std::vector<Rank> ranks_;
  std::size_t most_;
  cudaEvent_t begin_ = nullptr;
};

// All that the ranks must read and write: inputs and outputs, and what goes through a slot.
double traffic(const Shape& shape, int world) {
  const double n = world;
  const double part = static_cast<double>(shape.bytes) / n;
  const double hop = (n - 1) * part * 2;  // written to slots and read there
  switch (shape.operation) {
    case Operation::kAllReduce:
      return n * (2 * n * part + 2 * hop);
    case Operation::kReduceScatter:
    default:
      return n * ((n + 1) * part + hop);
  }
}

bool measure_one(Rig& rig, const Shape& shape, int world, double bandwidth, std::FILE* json,
                 bool* is_first) {
  const double time = rig.measure(shape, 5, 9);
  const std::string error = rig.compare(shape);
  const double floor = traffic(shape, world) / bandwidth;
  const char* mover = shape.by_bulk_copies ? "bulk copies" : "warps";
  std::printf("%-14s %3zu MiB %3d blocks %5zu x %u %-11s %8.1f us, floor %7.1f, %5.2f %s\n",
              name_of(shape.operation), shape.bytes >> 20, shape.blocks, shape.chunk, shape.slots,
              mover, time, floor, time / floor, error.c_str());
  std::fflush(stdout);
  std::fprintf(json,
               "%s{\"operation\": \"%s\", \"ranks\": %d, \"bytes\": %zu, \"blocks\": %d, "
               "\"warps\": %d, \"mover\": \"%s\", \"chunk_bytes\": %zu, \"slots\": %u, "
               "\"us\": %.1f, \"floor_us\": %.1f, \"error\": \"%s\"}",
               *is_first ? "[" : ",\n ", name_of(shape.operation), world, shape.bytes, shape.blocks,
               shape.warps(), mover, shape.chunk, shape.slots, time, floor, error.c_str());
  *is_first = false;
  return error.empty();
}

std::vector<int> numbers(const std::string& text) {
  std::vector<int> values;
  std::stringstream stream(text);
  for (std::string one; std::getline(stream, one, ',');) values.push_back(std::atoi(one.c_str()));
  return values;
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 2) {
    std::fprintf(stderr, "usage: bulk_probe <file.json> [worlds=2,4] [MiB=16,64]\n");
    return 2;
  }
  const std::vector<int> worlds = numbers(count > 2 ? arguments[2] : "2,4");
  const std::vector<int> sizes = numbers(count > 3 ? arguments[3] : "16,64");
  std::FILE* json = std::fopen(arguments[1], "w");
  if (json == nullptr) {
    std::fprintf(stderr, "bulk_probe: cannot write %s\n", arguments[1]);
    return 2;
  }
  int failures = 0;
  bool is_first = true;
  for (const int world : worlds) {
    if (world != 2 && world != 4) continue;
    const std::size_t most = static_cast<std::size_t>(*std::max_element(sizes.begin(), sizes.end()))
                             << 20;
    Rig rig(world, most);
    const double bandwidth = rig.copy_bandwidth();
    std::printf("%d ranks, copies %.0f GB/s read and written\n", world, bandwidth / 1e3);
    for (const Operation operation :
         {Operation::kAllReduce, Operation::kReduceScatter, Operation::kAllGather}) {
      for (const int size : sizes) {
        for (const int blocks : {8, 16, 32, 64}) {
          if (blocks * world > kResidentBlocks) continue;
          for (const std::size_t chunk : {4096u, 8192u, 16384u, 32768u}) {
            for (const std::uint32_t slots : {2u, 4u, 8u}) {
              for (const bool by_bulk_copies : {false, true}) {
                const Shape shape{operation, static_cast<std::size_t>(size) << 20,
                                  blocks,    chunk,
                                  slots,     by_bulk_copies};
                if (by_bulk_copies && (operation != Operation::kAllGather || slots < kLeastSlots)) {
                  continue;
                }
                if (!by_bulk_copies && slots > 4) continue;
                if (!rig.fits(shape)) continue;
                failures += measure_one(rig, shape, world, bandwidth, json, &is_first) ? 0 : 1;
              }
            }
          }
        }
      }
    }
  }
  std::fprintf(json, "]\n");
  std::fclose(json);
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
