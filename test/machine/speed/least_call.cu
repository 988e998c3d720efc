// What a small all_reduce or broadcast of two ranks must take: a kernel that has its steps, some of
// them or all, and hardly anything else, many times in a graph. Free of the library. With one GPU
// both ranks are streams of it.
//
//   least_call [GPUs=1]
//
// Prints a line a kernel: microseconds a call, the median and the least of the replays, and where
// the kernel reads clocks the cycles of its first thread from step to step.
//
//   nvcc -std=c++20 -arch=sm_90 -O3 -o least_call test/machine/speed/least_call.cu
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

using Word = unsigned long long;

constexpr int kCalls = 200;  // of a graph
constexpr int kReplays = 20;
constexpr int kWarmUp = 3;
constexpr std::size_t kBoxBytes = 64 * 1024;
constexpr unsigned kMostPolls = 50'000'000;

// The steps of a kernel, bits.
constexpr int kEpoch = 1;      // counts calls in memory
constexpr int kMove = 2;       // sends a line that carries the epoch, polls for the peer's, adds
constexpr int kMeet = 4;       // the block meets before it sends and at its end
constexpr int kAgain = 8;      // loads once more what has come
constexpr int kCounters = 16;  // credit, whether the group is dead, the sequence of calls
constexpr int kPage = 32;      // tells a page of host memory of the call's begin and end
constexpr int kIdleCode = 64;  // has some 95 KB of code that never run
constexpr int kClocks = 128;
constexpr int kOneWay = 256;  // rank 0 sends, and rank 1 tells it which epochs it has ended
constexpr int kAll = kEpoch | kMove | kMeet | kAgain | kCounters | kPage;

struct State {
  alignas(128) Word epoch;
  alignas(128) Word sequence;
  unsigned dead;
  alignas(128) Word heard[8];
  Word done[8];
  Word clocks[6];  // calls, and cycles of each step
};

struct Rank {
  int gpu = 0;
  int number = 0;
  State* state = nullptr;
  std::byte* boxes = nullptr;  // two, by parity of the epoch
  uint4* input = nullptr;
  uint4* output = nullptr;
  Word* page = nullptr;
  cudaStream_t stream = nullptr;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  cudaGraphExec_t graph = nullptr;
};

struct Arguments {
  int rank;
  int never;  // 0, which the compiler does not know
  State* state;
  State* peer_state;
  std::byte* boxes;
  std::byte* peer_boxes;
  const uint4* input;
  uint4* output;
  Word* page;
  char rest[312];  // as much as the library's kernels are passed
};

void check(cudaError_t status) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "least_call: %s\n", cudaGetErrorString(status));
  std::exit(1);
}

__device__ void load_pair(const void* address, Word* low, Word* high) {
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(*low), "=l"(*high)
               : "l"(address)
               : "memory");
}
__device__ void store_pair(void* address, Word low, Word high) {
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(address), "l"(low), "l"(high)
               : "memory");
}
__device__ Word load_relaxed(const Word* address) {
  Word value = 0;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
  return value;
}
__device__ void store_relaxed(Word* address, Word value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

template <int kSteps, int kThreads>
__global__ void __launch_bounds__(kThreads) call(const __grid_constant__ Arguments arguments) {
  if constexpr ((kSteps & kEpoch) != 0) {
    constexpr bool kReads = (kSteps & kClocks) != 0;
    constexpr bool kCounts = (kSteps & kCounters) != 0;
    constexpr bool kBothWays = (kSteps & kOneWay) == 0;
    const bool sends = kBothWays || arguments.rank == 0;
    const bool receives = kBothWays || arguments.rank == 1;
    const auto thread = static_cast<int>(threadIdx.x);
    long long clocks[6]{};
    if (kReads) clocks[0] = clock64();
    State& state = *arguments.state;
    const Word epoch = *const_cast<volatile Word*>(&state.epoch) + 1;
    Word sequence = 0;
    bool ok = true;
    if (kCounts) {
      sequence = load_relaxed(&state.sequence);
      ok = *const_cast<volatile unsigned*>(&state.dead) == 0;
      if (thread < 2 && thread != arguments.rank) {
        const Word heard = *const_cast<volatile Word*>(&state.heard[thread]);
        const Word* const done = &state.done[thread];
        bool has_credit = !sends || heard + 2 >= epoch + 1 || load_relaxed(done) + 2 >= epoch;
        for (unsigned polls = 0; !kBothWays && !has_credit && polls < kMostPolls; ++polls) {
          has_credit = load_relaxed(done) + 2 >= epoch;
        }
        ok = ok && has_credit;
      }
    }
    uint4 mine{};
    if ((kSteps & kMove) != 0 && thread < 32 && sends) mine = arguments.input[thread];
    if (kReads) {
      if (epoch == 0) return;  // waits for the load
      clocks[1] = clock64();
    }
    if ((kSteps & kPage) != 0 && thread == 0) store_relaxed(&arguments.page[0], sequence + 1);
    if ((kSteps & kMeet) != 0) ok = __syncthreads_and(ok) != 0;
    if (!ok) return;
    if (kReads) clocks[2] = clock64();
    if constexpr ((kSteps & kIdleCode) != 0) {
      if (arguments.never != 0) {
        auto x = static_cast<float>(mine.x);
#pragma unroll
        for (int i = 0; i < 3000; ++i) {
          x = __fmaf_rn(x, x + static_cast<float>(i) * 1.37f, static_cast<float>(i * 3));
        }
        arguments.output[thread].x = __float_as_uint(x);
      }
    }
    if ((kSteps & kMove) != 0 && thread < 32) {
      const bool ends_line = thread % 8 == 7;
      const std::size_t place = (epoch & 1) * kBoxBytes + static_cast<unsigned>(thread) * 16;
      __syncwarp();
      if (sends) {
        store_pair(arguments.peer_boxes + place, mine.x | Word{mine.y} << 32,
                   ends_line ? epoch : mine.z | Word{mine.w} << 32);
      }
      if (kReads) clocks[3] = clock64();
      Word low = 0;
      Word high = 0;
      for (unsigned polls = 0; receives; ++polls) {
        __syncwarp();
        load_pair(arguments.boxes + place, &low, &high);
        if (__all_sync(~0u, !ends_line || high == epoch) != 0) break;
        if (polls == kMostPolls) return;
      }
      if ((kSteps & kAgain) != 0 && receives) load_pair(arguments.boxes + place, &low, &high);
      if (kReads) {
        if (low == 0x123456789) return;  // waits for the load
        clocks[4] = clock64();
      }
      const uint4 sum{
          mine.x + static_cast<unsigned>(low), mine.y + static_cast<unsigned>(low >> 32),
          mine.z + static_cast<unsigned>(high), mine.w + static_cast<unsigned>(high >> 32)};
      if (receives && ends_line) {
        *reinterpret_cast<uint2*>(&arguments.output[thread]) = {sum.x, sum.y};
      } else if (receives) {
        arguments.output[thread] = sum;
      }
    }
    if ((kSteps & kMeet) != 0) ok = __syncthreads_and(ok) != 0;
    if (kCounts && receives && thread < 2 && thread != arguments.rank) state.heard[thread] = epoch;
    if (kCounts && !sends && thread == 0) {
      store_relaxed(&arguments.peer_state->done[arguments.rank], epoch);
    }
    if (thread != 0) return;
    state.epoch = epoch;
    if (kCounts) state.sequence = sequence + 1;
    if ((kSteps & kPage) != 0) store_relaxed(&arguments.page[1], sequence + 1);
    if (!kReads) return;
    clocks[5] = clock64();
    state.clocks[0] += 1;
    for (int i = 1; i < 6; ++i) state.clocks[i] += static_cast<Word>(clocks[i] - clocks[i - 1]);
  }
}

template <int kSteps, int kThreads>
void capture(Rank& rank, const Rank& peer) {
  check(cudaSetDevice(rank.gpu));
  const Arguments arguments{rank.number, 0,          rank.state,  peer.state, rank.boxes,
                            peer.boxes,  rank.input, rank.output, rank.page,  {}};
  cudaGraph_t graph = nullptr;
  check(cudaStreamBeginCapture(rank.stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < kCalls; ++i)
    call<kSteps, kThreads><<<1, kThreads, 0, rank.stream>>>(arguments);
  check(cudaStreamEndCapture(rank.stream, &graph));
  check(cudaGraphInstantiate(&rank.graph, graph, 0));
  check(cudaGraphUpload(rank.graph, rank.stream));
  check(cudaStreamSynchronize(rank.stream));
  check(cudaGraphDestroy(graph));
}

// Microseconds a call, of the rank that began last.
double replay(std::vector<Rank>& ranks) {
  for (Rank& rank : ranks) {
    check(cudaSetDevice(rank.gpu));
    check(cudaEventRecord(rank.begin, rank.stream));
    check(cudaGraphLaunch(rank.graph, rank.stream));
    check(cudaEventRecord(rank.end, rank.stream));
  }
  float least = 1e9f;
  for (Rank& rank : ranks) {
    check(cudaSetDevice(rank.gpu));
    check(cudaEventSynchronize(rank.end));
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, rank.begin, rank.end));
    least = std::min(least, milliseconds);
  }
  return least * 1e3 / kCalls;
}

template <int kSteps, int kThreads>
void run(const char* name, std::vector<Rank>& ranks) {
  for (Rank& rank : ranks) {
    check(cudaSetDevice(rank.gpu));
    check(cudaMemset(rank.state, 0, sizeof(State)));
    check(cudaMemset(rank.boxes, 0, 2 * kBoxBytes));
    check(cudaDeviceSynchronize());
  }
  capture<kSteps, kThreads>(ranks[0], ranks[1]);
  capture<kSteps, kThreads>(ranks[1], ranks[0]);
  std::vector<double> times;
  for (int i = 0; i < kReplays + kWarmUp; ++i) {
    const double time = replay(ranks);
    if (i >= kWarmUp) times.push_back(time);
  }
  std::sort(times.begin(), times.end());
  std::printf("%-34s %3d threads  %.2f us (least %.2f)", name, kThreads, times[times.size() / 2],
              times[0]);
  if ((kSteps & kClocks) != 0) {
    State state{};
    check(cudaMemcpy(&state, ranks[0].state, sizeof(state), cudaMemcpyDefault));
    const char* const steps[] = {"load", "credit", "send", "receive", "end"};
    for (int i = 0; i < 5; ++i) {
      std::printf("  %s %.0f", steps[i],
                  static_cast<double>(state.clocks[i + 1]) / static_cast<double>(state.clocks[0]));
    }
  }
  std::printf("\n");
  for (Rank& rank : ranks) check(cudaGraphExecDestroy(rank.graph));
}

}  // namespace

int main(int count, char** words) {
  const int gpus = count > 1 ? std::atoi(words[1]) : 1;
  std::vector<Rank> ranks(2);
  for (int number = 0; number < 2; ++number) {
    Rank& rank = ranks[static_cast<std::size_t>(number)];
    rank.number = number;
    rank.gpu = gpus > 1 ? number : 0;
    check(cudaSetDevice(rank.gpu));
    if (gpus > 1) check(cudaDeviceEnablePeerAccess(1 - rank.gpu, 0));
    check(cudaMalloc(&rank.state, sizeof(State)));
    check(cudaMalloc(&rank.boxes, 2 * kBoxBytes));
    check(cudaMalloc(&rank.input, 32 * sizeof(uint4)));
    check(cudaMalloc(&rank.output, 32 * sizeof(uint4)));
    check(cudaMemset(rank.input, 1, 32 * sizeof(uint4)));
    check(cudaHostAlloc(&rank.page, 4096, cudaHostAllocPortable));
    check(cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking));
    check(cudaEventCreate(&rank.begin));
    check(cudaEventCreate(&rank.end));
  }
  run<0, 32>("empty", ranks);
  run<0, 320>("empty", ranks);
  run<kEpoch, 320>("epoch", ranks);
  run<kEpoch | kMove, 32>("epoch, move", ranks);
  run<kEpoch | kMove | kMeet, 320>("epoch, move, meet", ranks);
  run<kEpoch | kMove | kAgain, 32>("epoch, move, again", ranks);
  run<kEpoch | kMove | kAgain | kCounters, 32>("epoch, move, again, counters", ranks);
  run<kAll & ~kPage, 320>("all but the page", ranks);
  run<kAll, 320>("all", ranks);
  run<kAll | kIdleCode, 320>("all, and code that never runs", ranks);
  run<kAll | kClocks, 320>("all, and clocks", ranks);
  run<kOneWay | kEpoch | kMove | kAgain | kCounters, 32>("one way, all but the page", ranks);
  run<kOneWay | kAll, 32>("one way, all", ranks);
  run<kOneWay | kAll | kClocks, 32>("one way, all, and clocks", ranks);
  return 0;
}
