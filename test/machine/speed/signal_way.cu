// How long a signal takes from one GPU to another, by the order that its store and its wait have:
// half a round of ping-pong between two GPUs of this process. What a signal publishes is written
// before it, so the times contain what a fence waits for.
//
//   nvcc -arch=sm_90 -O3 -o signal_way test/machine/speed/signal_way.cu && ./signal_way
//
// Prints a JSON object for each case; `way_us` is the best of five.

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace {

enum class Send { kRelaxed, kRelease, kExchange, kAdd, kSystemFence, kGpuFence };
enum class Wait { kAcquire, kRelaxedThenFence, kRelaxed };

constexpr int kRounds = 2000;
constexpr int kRepeats = 5;
constexpr int kMostBytes = 64 * 1024;

struct Side {
  uint32_t* mine;    // the word that the other side writes
  uint32_t* theirs;  // the word of the other side
  uint4* data;       // of the other side
};

__device__ void send(Send how, uint32_t* word, uint32_t value) {
  switch (how) {
    case Send::kRelaxed:
      asm volatile("st.relaxed.sys.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
      break;
    case Send::kRelease:
      asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
      break;
    case Send::kExchange:
      asm volatile("atom.release.sys.exch.b32 _, [%0], %1;" ::"l"(word), "r"(value) : "memory");
      break;
    case Send::kAdd:
      asm volatile("red.release.sys.add.u32 [%0], 1;" ::"l"(word) : "memory");
      break;
    case Send::kSystemFence:
      asm volatile("fence.acq_rel.sys; st.relaxed.sys.u32 [%0], %1;" ::"l"(word), "r"(value)
                   : "memory");
      break;
    case Send::kGpuFence:  // orders nothing for another GPU: what the scope costs
      asm volatile("fence.acq_rel.gpu; st.relaxed.sys.u32 [%0], %1;" ::"l"(word), "r"(value)
                   : "memory");
      break;
  }
}

__device__ void wait(Wait how, const uint32_t* word, uint32_t value) {
  uint32_t seen;
  do {
    if (how == Wait::kAcquire) {
      asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(seen) : "l"(word) : "memory");
    } else {
      asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(seen) : "l"(word) : "memory");
    }
  } while (int32_t(seen - value) < 0);
  if (how == Wait::kRelaxedThenFence) asm volatile("fence.acq_rel.sys;" ::: "memory");
}

__global__ void ping_pong(Side side, bool first, Send how, Wait until, int units, uint32_t before) {
  for (int turn = 0; turn < 2 * kRounds; ++turn) {
    const uint32_t value = before + turn / 2 + 1;
    if ((turn % 2 == 0) == first) {
      for (int i = int(threadIdx.x); i < units; i += int(blockDim.x))
        side.data[i] = make_uint4(value, value, value, value);
      __syncthreads();
      if (threadIdx.x == 0) send(how, side.theirs, value);
    } else {
      if (threadIdx.x == 0) wait(until, side.mine, value);
      __syncthreads();
    }
  }
}

void check(cudaError_t status) {
  if (status == cudaSuccess) return;
  fprintf(stderr, "%s\n", cudaGetErrorString(status));
  exit(1);
}

float time_once(const Side (&sides)[2], Send how, Wait until, int bytes, uint32_t before) {
  cudaEvent_t ends[2];
  for (int gpu = 0; gpu < 2; ++gpu) {
    check(cudaSetDevice(gpu));
    check(cudaEventCreate(&ends[gpu]));
    if (gpu == 0) check(cudaEventRecord(ends[gpu]));
    ping_pong<<<1, 128>>>(sides[gpu], gpu == 0, how, until, bytes / 16, before);
    if (gpu == 1) check(cudaEventRecord(ends[gpu]));
  }
  check(cudaSetDevice(0));
  cudaEvent_t end;
  check(cudaEventCreate(&end));
  check(cudaEventRecord(end));
  check(cudaEventSynchronize(end));
  float ms = 0;
  check(cudaEventElapsedTime(&ms, ends[0], end));
  check(cudaSetDevice(1));
  check(cudaDeviceSynchronize());
  return ms * 1000 / (2 * kRounds);
}

}  // namespace

int main() {
  uint32_t* words[2];
  uint4* data[2];
  for (int gpu = 0; gpu < 2; ++gpu) {
    check(cudaSetDevice(gpu));
    check(cudaDeviceEnablePeerAccess(1 - gpu, 0));
    check(cudaMalloc(&words[gpu], 128));
    check(cudaMemset(words[gpu], 0, 128));
    check(cudaMalloc(&data[gpu], kMostBytes));
    check(cudaDeviceSynchronize());
  }
  const Side sides[2] = {{words[0], words[1], data[1]}, {words[1], words[0], data[0]}};
  const char* sends[] = {"st.relaxed.sys",
                         "st.release.sys",
                         "atom.release.sys.exch",
                         "red.release.sys.add",
                         "fence.acq_rel.sys, st.relaxed.sys",
                         "fence.acq_rel.gpu, st.relaxed.sys"};
  const char* waits[] = {"ld.acquire.sys", "ld.relaxed.sys, fence.acq_rel.sys", "ld.relaxed.sys"};
  uint32_t before = 0;
  for (int bytes : {0, 2048, kMostBytes}) {
    for (int how = 0; how < 6; ++how) {
      for (int until = 0; until < 3; ++until) {
        float best = 1e9f;
        for (int repeat = 0; repeat < kRepeats; ++repeat, before += kRounds)
          best = std::min(best, time_once(sides, Send(how), Wait(until), bytes, before));
        printf("{\"send\": \"%s\", \"wait\": \"%s\", \"bytes\": %d, \"way_us\": %.3f}\n",
               sends[how], waits[until], bytes, best);
      }
    }
  }
}
