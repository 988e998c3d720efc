// An experiment, free of the library: lanes that are warps. How fast do large messages go through
// slots where each warp waits for its credit, copies its chunk, fences and posts alone, so that the
// other warps of the multiprocessor cover its fence and its wait? Ranks are kernels on streams of
// one GPU. Prints a table and writes JSON, a record a line; every result is compared with what it
// must be.
//
//   bulk_probe <file.json> [worlds=2,4] [MiB=16,64]
//
// A lane has, for each peer, a warp that sends and a warp that places, and one that combines in
// rank order (or copies the rank's own part). all_gather is also made by bulk copies through shared
// memory, one thread a mover. All blocks of all ranks must be on the GPU at once.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "bulk_probe.cuh"

namespace {

using namespace symm::probe;

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
  std::exit(2);
}

constexpr int kResidentBlocks = 132;  // of an H200, one of these a multiprocessor

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
