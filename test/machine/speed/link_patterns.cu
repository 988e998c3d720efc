// What the links between GPUs carry, by who stores what where: the ceiling of a collective that
// stores to its peers, without any of its waits. Every GPU runs the same kernel at once; free of
// the library.
//
//   link_patterns <file.json> [MiB a peer=64]
//
// A record is a pattern, in GB/s that leave each GPU. All GPUs of the process take part (2, 4 or
// 8), and then the first two.
//
//   nvcc -std=c++20 -arch=sm_90 -O3 -o link_patterns test/machine/speed/link_patterns.cu
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr int kMostPeers = 7;
constexpr unsigned kWarp = 32;
constexpr unsigned kAtOnce = 4;  // units that a thread has under way
constexpr int kMostBlocks = 132;
constexpr int kMostWarps = 24;  // of a block
constexpr int kSlots = 2;

enum class Way {
  kOnePeer,  // a warp stores to one peer alone
  kInTurn,   // a chunk to each peer, one after the other, all warps beginning with the next rank
  kRotated,  // the same, each warp beginning with another peer
  kFanOut,   // each unit is loaded once and stored to all peers
  kCombine,  // the sum of a unit of each rank is stored to all peers and to the own output
  kNext,     // all to the next rank
};

struct Pattern {
  const char* name;
  Way way;                 // of senders
  bool combines = false;   // as many warps combine and store their sums to all peers
  bool places = false;     // as many warps copy from local memory to local memory what comes
  bool to_slots = false;   // to two slots a warp and peer in place of all of the memory
  bool posts = false;      // a fence, and a number to each peer behind each chunk
  bool by_number = false;  // peers in the order of their numbers in place of the next rank first
};

struct Arguments {
  uint4* peers[kMostPeers];  // beginning with the next rank's
  std::uint32_t* numbers[kMostPeers];
  const uint4* source;
  uint4* output;
  std::size_t bytes;  // to each peer
  std::size_t chunk;
  int count;  // of peers
  Way way;
  bool combines, places, to_slots, posts;
};

__device__ unsigned lane() { return threadIdx.x % kWarp; }

template <class Store>
__device__ void move(const uint4* from, std::size_t units, const Store& store) {
  for (std::size_t at = lane(); at < units; at += kAtOnce * kWarp) {
    uint4 loaded[kAtOnce];
#pragma unroll
    for (unsigned i = 0; i < kAtOnce; ++i) {
      if (at + i * kWarp < units) loaded[i] = from[at + i * kWarp];
    }
#pragma unroll
    for (unsigned i = 0; i < kAtOnce; ++i) {
      if (at + i * kWarp < units) store(at + i * kWarp, loaded[i]);
    }
  }
}

__device__ uint4 sum(uint4 a, const uint4& b) {
  auto* const x = reinterpret_cast<__nv_bfloat162*>(&a);
  const auto* const y = reinterpret_cast<const __nv_bfloat162*>(&b);
  for (int i = 0; i < 4; ++i) x[i] = __hadd2(x[i], y[i]);
  return a;
}

// Of the warps of one role.
struct Place {
  std::size_t warp, warps;
};

__device__ uint4* target(const Arguments& a, int peer, const Place& place, std::size_t chunk,
                         int role) {
  const std::size_t units = a.chunk / sizeof(uint4);
  if (!a.to_slots) return a.peers[peer] + chunk * units;
  const std::size_t step = chunk / place.warps;
  // Where memory is too small for all of them some share theirs.
  const std::size_t pair = (role * place.warps + place.warp) % (a.bytes / (kSlots * a.chunk));
  return a.peers[peer] + (pair * kSlots + step % kSlots) * units;
}

__device__ void post(const Arguments& a, const Place& place, std::uint32_t number) {
  if (!a.posts) return;
  __syncwarp();
  if (lane() < a.count) {
    __threadfence_system();
    *reinterpret_cast<volatile std::uint32_t*>(a.numbers[lane()] + place.warp * kWarp) = number;
  }
}

template <int kPeers>
__device__ void send(const Arguments& a, Way way, const Place& place, int role) {
  const std::size_t units = a.chunk / sizeof(uint4);
  const std::size_t chunks = a.bytes / a.chunk;
  if (way == Way::kOnePeer || way == Way::kNext) {
    const int peer = way == Way::kNext ? 0 : static_cast<int>(place.warp % kPeers);
    const Place of_peer =
        way == Way::kNext ? place : Place{place.warp / kPeers, (place.warps + kPeers - 1) / kPeers};
    for (std::size_t c = of_peer.warp; c < chunks; c += of_peer.warps) {
      uint4* const to = target(a, peer, of_peer, c, role);
      move(a.source + (peer * chunks + c) * units, units,
           [&](std::size_t at, const uint4& unit) { to[at] = unit; });
      post(a, place, static_cast<std::uint32_t>(c));
    }
    return;
  }
  for (std::size_t c = place.warp; c < chunks; c += place.warps) {
    const uint4* const from = a.source + c * units;
    if (way == Way::kInTurn || way == Way::kRotated) {
      const int first = way == Way::kRotated ? static_cast<int>(place.warp % kPeers) : 0;
      for (int i = 0; i < kPeers; ++i) {
        const int p = (first + i) % kPeers;
        uint4* const peer = target(a, p, place, c, role);
        move(from + p * chunks * units, units,
             [&](std::size_t at, const uint4& unit) { peer[at] = unit; });
      }
      post(a, place, static_cast<std::uint32_t>(c));
      continue;
    }
    uint4* to[kPeers];
    for (int p = 0; p < kPeers; ++p) to[p] = target(a, p, place, c, role);
    if (way == Way::kFanOut) {
      move(from, units, [&](std::size_t at, const uint4& unit) {
#pragma unroll
        for (int p = 0; p < kPeers; ++p) to[p][at] = unit;
      });
    } else {
      for (std::size_t at = lane(); at < units; at += 2 * kWarp) {
        uint4 loaded[2][kPeers + 1];
#pragma unroll
        for (int p = 0; p <= kPeers; ++p) {
          for (unsigned i = 0; i < 2; ++i) {
            if (at + i * kWarp < units) {
              loaded[i][p] = from[p * chunks * units + at + i * kWarp];
            }
          }
        }
        for (unsigned i = 0; i < 2; ++i) {
          if (at + i * kWarp >= units) continue;
          uint4 total = loaded[i][0];
#pragma unroll
          for (int p = 1; p <= kPeers; ++p) total = sum(total, loaded[i][p]);
#pragma unroll
          for (int p = 0; p < kPeers; ++p) to[p][at + i * kWarp] = total;
          a.output[c * units + at + i * kWarp] = total;
        }
      }
    }
    post(a, place, static_cast<std::uint32_t>(c));
  }
}

template <int kPeers>
__global__ void __launch_bounds__(kMostWarps* kWarp) pattern(const Arguments a) {
  const unsigned roles = 1 + (a.combines ? 1 : 0) + (a.places ? 1 : 0);
  const unsigned warp = threadIdx.x / kWarp;
  const unsigned of_role = blockDim.x / kWarp / roles;
  const unsigned role = warp % roles;
  if (warp / roles >= of_role) return;
  const Place place{blockIdx.x * of_role + warp / roles,
                    static_cast<std::size_t>(gridDim.x) * of_role};
  if (role == 0) {
    send<kPeers>(a, a.way, place, 0);
  } else if (role == 1 && a.combines) {
    send<kPeers>(a, Way::kCombine, place, 1);
  } else {
    const std::size_t units = a.chunk / sizeof(uint4);
    const std::size_t chunks = a.bytes / a.chunk * kPeers;
    for (std::size_t c = place.warp; c < chunks; c += place.warps) {
      uint4* const to = a.output + c * units;
      move(a.source + c * units, units, [&](std::size_t at, const uint4& unit) { to[at] = unit; });
    }
  }
}

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
  std::exit(2);
}
#define CHECK(call) check((call), #call)

struct Gpu {
  uint4* source = nullptr;
  uint4* output = nullptr;
  uint4* inbox = nullptr;  // of all peers, one behind the other
  std::uint32_t* numbers = nullptr;
  cudaStream_t stream = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
};

using Kernel = void (*)(Arguments);
Kernel kernel_for(int peers) {
  switch (peers) {
    case 1:
      return pattern<1>;
    case 3:
      return pattern<3>;
    case 7:
      return pattern<7>;
    default:
      return nullptr;
  }
}

// The longest of all GPUs, milliseconds; the median of five.
double milliseconds(std::vector<Gpu>& gpus, int world, const Pattern& p, int blocks, int warps,
                    std::size_t chunk, std::size_t bytes) {
  const Kernel kernel = kernel_for(world - 1);
  if (kernel == nullptr) return 0;
  std::vector<double> turns;
  for (int turn = 0; turn < 6; ++turn) {
    for (int g = 0; g < world; ++g) {
      CHECK(cudaSetDevice(g));
      Arguments a{};
      a.count = world - 1;
      for (int i = 0; i < a.count; ++i) {
        const int number = p.by_number ? (i < g ? i : i + 1) : (g + 1 + i) % world;
        const int place = (number - g + world) % world - 1;  // among those of the peer
        Gpu& peer = gpus[number];
        a.peers[i] = peer.inbox + place * bytes / sizeof(uint4);
        a.numbers[i] = peer.numbers + place * (kMostBlocks * kMostWarps * kWarp);
      }
      a.source = gpus[g].source;
      a.output = gpus[g].output;
      a.bytes = p.way == Way::kNext ? bytes * a.count : bytes;
      a.chunk = chunk;
      a.way = p.way;
      a.combines = p.combines;
      a.places = p.places;
      a.to_slots = p.to_slots;
      a.posts = p.posts;
      CHECK(cudaEventRecord(gpus[g].begin, gpus[g].stream));
      kernel<<<blocks, warps * kWarp, 0, gpus[g].stream>>>(a);
      CHECK(cudaEventRecord(gpus[g].end, gpus[g].stream));
    }
    double longest = 0;
    for (int g = 0; g < world; ++g) {
      CHECK(cudaSetDevice(g));
      CHECK(cudaStreamSynchronize(gpus[g].stream));
      float ms = 0;
      CHECK(cudaEventElapsedTime(&ms, gpus[g].begin, gpus[g].end));
      longest = std::max<double>(longest, ms);
    }
    if (turn > 0) turns.push_back(longest);
  }
  std::sort(turns.begin(), turns.end());
  return turns[turns.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "link_patterns <file.json> [MiB a peer]\n");
    return 2;
  }
  const std::size_t bytes = static_cast<std::size_t>(argc > 2 ? std::atoi(argv[2]) : 64) << 20;
  int count = 0;
  CHECK(cudaGetDeviceCount(&count));
  std::vector<Gpu> gpus(static_cast<std::size_t>(count));
  for (int g = 0; g < count; ++g) {
    CHECK(cudaSetDevice(g));
    for (int peer = 0; peer < count; ++peer) {
      if (peer != g) CHECK(cudaDeviceEnablePeerAccess(peer, 0));
    }
    Gpu& gpu = gpus[static_cast<std::size_t>(g)];
    const std::size_t all = bytes * static_cast<std::size_t>(count);
    CHECK(cudaMalloc(&gpu.source, all));
    CHECK(cudaMemset(gpu.source, 0, all));
    CHECK(cudaMalloc(&gpu.output, all));
    CHECK(cudaMalloc(&gpu.inbox, all));
    CHECK(cudaMalloc(&gpu.numbers,
                     sizeof(std::uint32_t) * kMostPeers * kMostBlocks * kMostWarps * kWarp));
    CHECK(cudaStreamCreate(&gpu.stream));
    CHECK(cudaEventCreate(&gpu.begin));
    CHECK(cudaEventCreate(&gpu.end));
    CHECK(cudaDeviceSynchronize());
  }
  const std::vector<Pattern> patterns = {
      {.name = "one peer a warp", .way = Way::kOnePeer},
      {.name = "in turn", .way = Way::kInTurn},
      {.name = "fan out", .way = Way::kFanOut},
      {.name = "fan out, by number", .way = Way::kFanOut, .by_number = true},
      {.name = "in turn, by number", .way = Way::kInTurn, .by_number = true},
      {.name = "all to the next", .way = Way::kNext},
      {.name = "sums fanned out", .way = Way::kCombine},
      {.name = "one peer a warp, to slots", .way = Way::kOnePeer, .to_slots = true},
      {.name = "in turn, rotated", .way = Way::kRotated},
      {.name = "in turn, rotated, to slots", .way = Way::kRotated, .to_slots = true},
      {.name = "in turn, rotated, to slots, posted",
       .way = Way::kRotated,
       .to_slots = true,
       .posts = true},
      {.name = "in turn, rotated, sums, placing, posted",
       .way = Way::kRotated,
       .combines = true,
       .places = true,
       .to_slots = true,
       .posts = true},
      {.name = "in turn, to slots", .way = Way::kInTurn, .to_slots = true},
      {.name = "fan out, to slots", .way = Way::kFanOut, .to_slots = true},
      {.name = "all to the next, to slots", .way = Way::kNext, .to_slots = true},
      {.name = "one peer a warp, to slots, posted",
       .way = Way::kOnePeer,
       .to_slots = true,
       .posts = true},
      {.name = "in turn, to slots, posted", .way = Way::kInTurn, .to_slots = true, .posts = true},
      {.name = "all to the next, to slots, posted",
       .way = Way::kNext,
       .to_slots = true,
       .posts = true},
      {.name = "one peer a warp, placing", .way = Way::kOnePeer, .places = true, .to_slots = true},
      {.name = "one peer a warp, placing, posted",
       .way = Way::kOnePeer,
       .places = true,
       .to_slots = true,
       .posts = true},
      {.name = "in turn, sums", .way = Way::kInTurn, .combines = true, .to_slots = true},
      {.name = "in turn, sums, placing",
       .way = Way::kInTurn,
       .combines = true,
       .places = true,
       .to_slots = true},
      {.name = "in turn, sums, placing, posted",
       .way = Way::kInTurn,
       .combines = true,
       .places = true,
       .to_slots = true,
       .posts = true},
  };
  std::FILE* const file = std::fopen(argv[1], "w");
  if (file == nullptr) return 2;
  const char* separator = "[\n";
  std::vector<int> worlds;
  if (kernel_for(count - 1) != nullptr) worlds.push_back(count);
  if (count > 2) worlds.push_back(2);
  for (const int world : worlds) {
    for (const Pattern& p : patterns) {
      std::printf("%d ranks, %-40s", world, p.name);
      for (const std::size_t chunk :
           {std::size_t{2} << 10, std::size_t{8} << 10, std::size_t{32} << 10}) {
        for (const int warps : {16, 24}) {
          for (const int blocks : {16, 32, 64, 108}) {
            const double ms = milliseconds(gpus, world, p, blocks, warps, chunk, bytes);
            const int shares = (world - 1) * (p.combines ? 2 : 1);
            const double rate = static_cast<double>(bytes) * shares / ms / 1e6;
            std::printf(" %4.0f", rate);
            std::fprintf(file,
                         "%s{\"ranks\": %d, \"pattern\": \"%s\", \"chunk\": %zu, \"warps\": %d, "
                         "\"blocks\": %d, \"ms\": %.4f, \"gb_s\": %.1f}",
                         separator, world, p.name, chunk, warps, blocks, ms, rate);
            separator = ",\n";
          }
          std::printf(" |");
        }
      }
      std::printf("\n");
    }
  }
  std::fprintf(file, "\n]\n");
  return std::fclose(file) == 0 ? 0 : 2;
}
