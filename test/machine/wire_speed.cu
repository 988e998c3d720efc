// What a collective over a wire or by lanes costs, free of torch: ranks are threads' work on one
// GPU, or on several in turns, each with a segment, a stream and a graph of many calls. Prints a
// table and writes JSON, a record a line; every result is compared with what it must be.
//
//   wire_speed <file.json> [worlds=2,4,8] [calls=200] [replays=21] [workspace MiB=64] [most MiB=4]
//              [gpus=1] [least MiB=1] [direct=0] [norm=0]
//
// direct=1: outputs lie in symmetric memory, so that large pieces need no slots. With more than 16
// MiB it measures large messages: lanes with 8 to 64 blocks, and messages. All blocks of all ranks
// must be on the GPU at once, so ranks have fewer blocks the more they are. norm=1: all_reduce with
// a residual and the norm of its rows, beside all_reduce of the same bytes, and nothing else.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "kernels/core/atomics.hpp"
#include "kernels/gpu/launch/gpu_kernels.hpp"
#include "kernels/plan/plan.hpp"
#include "test/machine/wire_speed_cells.hpp"
#include "test/support/gpu_calls.hpp"

using namespace symm;
using namespace symm::test;

namespace {

void check(gpuError_t status, const char* what) {
  if (status == gpuSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, gpuGetErrorString(status));
  std::exit(2);
}

__global__ void empty_kernel() {}

constexpr Dtype kDtype = Dtype::kBFloat16;

struct FreePage {
  void operator()(DevicePage* page) const { std::free(page); }
};

struct Rank {
  int gpu = 0;
  void* segment = nullptr;
  std::unique_ptr<DevicePage, FreePage> page;
  std::unique_ptr<GroupKernels> kernels;
  gpuStream_t stream = nullptr;
  gpuEvent_t begin = nullptr;
  gpuEvent_t end = nullptr;
  std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::byte* residual = nullptr;
  std::byte* weight = nullptr;
  std::byte* normed = nullptr;
  gpuGraphExec_t graph = nullptr;
};

class Rig {
 public:
  Rig(int world, std::uint64_t workspace, std::size_t most, WireKind wire, bool counts, int gpus,
      bool direct)
      : world_(world),
        ranks_of_gpu_((world + gpus - 1) / gpus),
        most_(most),
        direct_(direct),
        layout_(DeviceLayout::of(world, workspace)) {
    ranks_.reserve(static_cast<std::size_t>(world));
    for (int rank = 0; rank < world; ++rank) {
      Rank& r = ranks_.emplace_back();
      r.gpu = rank % gpus;
      check(cudaSetDevice(r.gpu), "SetDevice");
      reach_others(r.gpu, gpus);
      check(gpuMalloc(&r.segment, layout_.total_bytes), "Malloc");
      check(gpuMemset(r.segment, 0, layout_.total_bytes), "Memset");
      void* page = std::aligned_alloc(4096, sizeof(DevicePage));
      std::memset(page, 0, sizeof(DevicePage));
      r.page.reset(static_cast<DevicePage*>(page));
      check(gpuStreamCreateNonBlocking(&r.stream), "StreamCreate");
      check(gpuEventCreate(&r.begin), "EventCreate");
      check(gpuEventCreate(&r.end), "EventCreate");
      std::byte* const data = allocate(5 * most_);
      r.input = data;
      r.output = data + most_;
      r.residual = data + 2 * most_;
      r.weight = data + 3 * most_;
      r.normed = data + 4 * most_;
      fill(r.input, [rank](std::size_t i) { return input_value(rank, i); });
      fill(r.residual, residual_value);
      fill(r.weight, weight_value);
    }
    check(cudaSetDevice(0), "SetDevice");
    check(gpuStreamCreateNonBlocking(&gate_stream_), "StreamCreate");
    check(gpuEventCreateUntimed(&gate_), "EventCreate");
    finish();
    std::vector<std::byte*> outputs;
    for (const Rank& r : ranks_) outputs.push_back(r.output);
    for (int rank = 0; rank < world; ++rank) {
      GroupKernelsConfig config;
      config.rank = rank;
      config.world_size = world;
      config.layout = layout_;
      config.page = at(rank).page.get();
      config.counts_wire_calls = counts;
      at(rank).kernels = make_gpu_group_kernels(config, at(rank).gpu);
      at(rank).kernels->set_wire(wire);
      for (int peer = 0; peer < world; ++peer) {
        at(rank).kernels->set_peer(peer, static_cast<std::byte*>(at(peer).segment), wire);
      }
      if (direct) at(rank).kernels->set_segment(0, outputs);
      at(rank).kernels->set_ranks_of_gpu(ranks_of_gpu_);
    }
  }
  ~Rig() {
    for (Rank& r : ranks_) store_release(&r.page->abort, std::uint32_t{1});
    finish();
    for (Rank& r : ranks_) {
      check(cudaSetDevice(r.gpu), "SetDevice");
      r.kernels.reset();
      (void)gpuFree(r.segment);
      (void)gpuFree(r.input);
      (void)gpuStreamDestroy(r.stream);
      (void)gpuEventDestroy(r.begin);
      (void)gpuEventDestroy(r.end);
    }
    (void)gpuStreamDestroy(gate_stream_);
    (void)gpuEventDestroy(gate_);
  }
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  // Median and least microseconds of a call; `error` says what went wrong.
  std::pair<double, double> measure(const Cell& cell, int calls, int replays, std::string* error) {
    for (int rank = 0; rank < world_; ++rank) {
      check(cudaSetDevice(at(rank).gpu), "SetDevice");
      check(gpuMemset(at(rank).output, 0xff, most_), "Memset");
      capture(rank, cell, calls);
    }
    finish();
    std::vector<double> times;
    for (int i = 0; i < replays + 3 && error->empty(); ++i) {
      const double time = replay() * 1e3 / calls;
      if (i >= 3) times.push_back(time);
      for (int rank = 0; rank < world_; ++rank) {
        const DevicePage::Report& report = at(rank).page->report;
        if (load_acquire(&report.fault) == 0) continue;
        *error = "rank " + std::to_string(rank) + " gave up, fault " +
                 std::to_string(report.fault) + ", waiting for rank " +
                 std::to_string(report.peer) + " in call " + std::to_string(report.sequence);
      }
    }
    for (Rank& r : ranks_) check(gpuGraphExecDestroy(r.graph), "GraphExecDestroy");
    if (error->empty()) *error = compare(cell);
    if (times.empty()) return {0, 0};
    std::sort(times.begin(), times.end());
    return {times[times.size() / 2], times[0]};
  }

  // Bytes read and written in a microsecond by a copy on the device.
  double copy_bandwidth() {
    std::vector<double> times;
    Rank& r = at(0);
    check(cudaSetDevice(r.gpu), "SetDevice");
    for (int i = 0; i < 12; ++i) {
      check(gpuEventRecord(r.begin, r.stream), "EventRecord");
      check(cudaMemcpyAsync(r.output, r.input, most_, cudaMemcpyDeviceToDevice, r.stream), "copy");
      check(gpuEventRecord(r.end, r.stream), "EventRecord");
      check(gpuStreamSynchronize(r.stream), "StreamSynchronize");
      float milliseconds = 0;
      check(gpuEventElapsedTime(&milliseconds, r.begin, r.end), "EventElapsedTime");
      times.push_back(milliseconds * 1e3);
    }
    std::sort(times.begin(), times.end());
    return 2.0 * static_cast<double>(most_) / times[times.size() / 2];
  }

  // A graph of empty kernels on one stream.
  double empty_node(int calls) {
    Rank& r = at(0);
    check(cudaSetDevice(r.gpu), "SetDevice");
    check(gpuStreamBeginCapture(r.stream, gpuStreamCaptureModeRelaxed), "capture");
    for (int i = 0; i < calls; ++i) empty_kernel<<<1, 32, 0, r.stream>>>();
    finish_capture(r);
    std::vector<double> times;
    for (int i = 0; i < 20; ++i) {
      check(gpuEventRecord(r.begin, r.stream), "EventRecord");
      check(gpuGraphLaunch(r.graph, r.stream), "GraphLaunch");
      check(gpuEventRecord(r.end, r.stream), "EventRecord");
      check(gpuStreamSynchronize(r.stream), "StreamSynchronize");
      float milliseconds = 0;
      check(gpuEventElapsedTime(&milliseconds, r.begin, r.end), "EventElapsedTime");
      times.push_back(milliseconds * 1e3 / calls);
    }
    check(gpuGraphExecDestroy(r.graph), "GraphExecDestroy");
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

 private:
  static void reach_others(int gpu, int gpus) {
    for (int other = 0; other < gpus; ++other) {
      if (other == gpu) continue;
      const gpuError_t status = cudaDeviceEnablePeerAccess(other, 0);
      if (status != cudaErrorPeerAccessAlreadyEnabled) check(status, "EnablePeerAccess");
      (void)cudaGetLastError();
    }
  }
  static std::byte* allocate(std::size_t bytes) {
    void* data = nullptr;
    check(gpuMalloc(&data, bytes), "Malloc");
    return static_cast<std::byte*>(data);
  }
  template <class Value>
  void fill(std::byte* to, const Value& value) const {
    std::vector<std::uint16_t> values(most_ / kElement);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = bfloat16_of(value(i));
    check(gpuMemcpy(to, values.data(), most_, gpuMemcpyHostToDevice), "Memcpy");
  }
  // Of all ranks' GPUs.
  void finish() {
    for (const Rank& r : ranks_) {
      check(cudaSetDevice(r.gpu), "SetDevice");
      check(gpuDeviceSynchronize(), "DeviceSynchronize");
    }
  }
  Rank& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  std::size_t share(const Cell& cell) const { return share_of(cell, world_); }

  void capture(int rank, const Cell& cell, int calls) {
    Rank& r = at(rank);
    const auto world = static_cast<std::size_t>(world_);
    CollectiveArgs args;
    args.kind = cell.kind;
    args.dtype = kDtype;
    args.count = cell.bytes / kElement;
    args.input = r.input;
    args.output = r.output;
    if (cell.columns != 0) {
      args.norm = {.columns = cell.columns,
                   .eps = kNormEps,
                   .weight = r.weight,
                   .residual = r.residual,
                   .result = r.normed};
    }
    std::vector<Part> in;
    std::vector<Part> out;
    for (std::size_t p = 0; p < world; ++p) {
      in.push_back({r.input + p * share(cell) * kElement, share(cell)});
      out.push_back({r.output + p * share(cell) * kElement, share(cell)});
    }
    switch (cell.kind) {
      case CollectiveKind::kReduceScatter:
        args.count = share(cell);
        args.input = nullptr;
        args.input_parts = in;
        break;
      case CollectiveKind::kAllGather:
        args.count = share(cell);
        args.output = nullptr;
        args.output_parts = out;
        break;
      case CollectiveKind::kGather:
        args.count = share(cell);
        args.output = nullptr;
        if (rank == 0) args.output_parts = out;
        break;
      case CollectiveKind::kScatter:
        args.count = share(cell);
        args.input = nullptr;
        if (rank == 0) args.input_parts = in;
        break;
      case CollectiveKind::kAllToAll:
        args.count = 0;
        args.input = args.output = nullptr;
        args.input_parts = in;
        args.output_parts = out;
        break;
      default:
        break;
    }
    Plan plan;
    plan.algorithm = cell.algorithm;
    plan.channels = cell.blocks != 0 ? cell.blocks : std::min(64, kResidentBlocks / ranks_of_gpu_);
    plan.chunk_bytes = 64 * 1024;
    LaunchOptions options{.stream = r.stream, .timeout = std::chrono::seconds(5)};
    if (direct_) options.output = {r.output, most_, BufferLocation{1} << kLocationShift};
    std::vector<TransferOp> ops;
    if (cell.transfers && rank < 2) {
      const bool sends = !cell.one_way || rank == 0;
      const bool receives = !cell.one_way || rank == 1;
      if (sends) ops.push_back({r.input, cell.bytes, 0, 1 - rank, true});
      if (receives) ops.push_back({r.output, cell.bytes, 0, 1 - rank, false});
    }
    check(gpuStreamBeginCapture(r.stream, gpuStreamCaptureModeRelaxed), "capture");
    for (int i = 0; i < calls; ++i) {
      if (!cell.transfers) {
        r.kernels->launch(args, plan, options);
      } else if (!ops.empty()) {
        r.kernels->transfer(ops, options);
      } else {
        empty_kernel<<<1, 32, 0, r.stream>>>();
      }
    }
    finish_capture(r);
  }
  static void finish_capture(Rank& r) {
    gpuGraph_t graph = nullptr;
    check(gpuStreamEndCapture(r.stream, &graph), "capture");
    check(gpuGraphInstantiate(&r.graph, graph), "instantiate");
    check(gpuGraphDestroy(graph), "GraphDestroy");
  }

  static void wait_for_gate(void* open) {
    while (!static_cast<std::atomic<bool>*>(open)->load()) std::this_thread::yield();
  }

  // Milliseconds of the slowest rank. The ranks begin together: behind a gate that opens when all
  // of their graphs are on their streams.
  double replay() {
    std::atomic<bool> open{false};
    check(cudaSetDevice(0), "SetDevice");
    check(cudaLaunchHostFunc(gate_stream_, &wait_for_gate, &open), "LaunchHostFunc");
    check(gpuEventRecord(gate_, gate_stream_), "EventRecord");
    for (Rank& r : ranks_) {
      check(cudaSetDevice(r.gpu), "SetDevice");
      check(gpuStreamWaitEvent(r.stream, gate_), "StreamWaitEvent");
      check(gpuEventRecord(r.begin, r.stream), "EventRecord");
      check(gpuGraphLaunch(r.graph, r.stream), "GraphLaunch");
      check(gpuEventRecord(r.end, r.stream), "EventRecord");
    }
    open = true;
    float slowest = 0;
    for (Rank& r : ranks_) {
      check(cudaSetDevice(r.gpu), "SetDevice");
      check(gpuStreamSynchronize(r.stream), "StreamSynchronize");
      float milliseconds = 0;
      check(gpuEventElapsedTime(&milliseconds, r.begin, r.end), "EventElapsedTime");
      slowest = std::max(slowest, milliseconds);
    }
    return slowest;
  }

  std::string compare(const Cell& cell) {
    for (int rank = 0; rank < world_; ++rank) {
      std::vector<std::uint16_t> got(cell.bytes / kElement);
      check(gpuMemcpy(got.data(), at(rank).output, cell.bytes, gpuMemcpyDeviceToHost), "Memcpy");
      for (std::size_t i = 0; i < got.size(); ++i) {
        const int want = expected(cell, world_, rank, i);
        if (want < 0 || got[i] == bfloat16_of(want)) continue;
        return "rank " + std::to_string(rank) + " has wrong element " + std::to_string(i);
      }
      if (cell.columns == 0) continue;
      const std::vector<std::uint16_t> totals = std::move(got);
      got.resize(totals.size());
      check(gpuMemcpy(got.data(), at(rank).normed, cell.bytes, gpuMemcpyDeviceToHost), "Memcpy");
      if (!is_norm(totals, got, cell.columns)) {
        return "rank " + std::to_string(rank) + " has a wrong norm";
      }
    }
    return "";
  }

  int world_;
  int ranks_of_gpu_;
  std::size_t most_;
  bool direct_;
  DeviceLayout layout_;
  std::vector<Rank> ranks_;
  gpuStream_t gate_stream_ = nullptr;
  gpuEvent_t gate_ = nullptr;
};

}  // namespace

int main(int count, char** arguments) {
  const auto argument = [&](int i, const char* otherwise) {
    return std::string(count > i ? arguments[i] : otherwise);
  };
  if (count < 2) {
    std::fprintf(stderr,
                 "usage: wire_speed <file.json> [worlds] [calls] [replays] [workspace] [most] "
                 "[gpus] [least] [direct] [norm]\n");
    return 2;
  }
  const int calls = std::atoi(argument(3, "200").c_str());
  const int replays = std::atoi(argument(4, "21").c_str());
  const std::uint64_t workspace = static_cast<std::uint64_t>(std::atoi(argument(5, "64").c_str()))
                                  << 20;
  const std::size_t most = static_cast<std::size_t>(std::atoi(argument(6, "4").c_str())) << 20;
  const int gpus = std::atoi(argument(7, "1").c_str());
  const std::size_t smallest = static_cast<std::size_t>(std::atoi(argument(8, "1").c_str())) << 20;
  const bool direct = argument(9, "0") == "1";
  const bool norm = argument(10, "0") == "1";
  const bool large = most > kSmallBytes;
  std::FILE* json = std::fopen(arguments[1], "w");
  if (json == nullptr) {
    std::fprintf(stderr, "wire_speed: cannot write %s\n", arguments[1]);
    return 2;
  }
  int failures = 0;
  bool is_first = true;
  const auto write = [&](const std::string& record) {
    std::fprintf(json, "%s%s", is_first ? "[" : ",\n ", record.c_str());
    std::fflush(json);
    is_first = false;
  };
  std::stringstream worlds(argument(2, "2,4,8"));
  for (std::string text; std::getline(worlds, text, ',');) {
    const int world = std::atoi(text.c_str());
    for (const WireKind wire : {WireKind::kLine, WireKind::kLL}) {
      for (const bool counts : {true, false}) {
        if ((large || norm) && (wire == WireKind::kLL || !counts)) continue;
        auto rig = std::make_unique<Rig>(world, workspace, most, wire, counts, gpus, direct);
        const double bandwidth = rig->copy_bandwidth();
        if (is_first) {
          const double us = rig->empty_node(calls);
          write("{\"empty_kernel_us\": " + std::to_string(us) + "}");
          std::printf("empty kernel %.2f us\n", us);
        }
        for (const Cell& cell : norm ? norm_cells(most)
                                : large
                                    ? large_cells(smallest, most, world, (world + gpus - 1) / gpus)
                                    : cells_of(wire, counts, most)) {
          std::string error;
          const auto [median, least] = rig->measure(cell, calls, replays, &error);
          const double floor = traffic(cell, world) / bandwidth;
          char record[512];
          std::snprintf(
              record, sizeof(record),
              "{\"world\": %d, \"gpus\": %d, \"direct\": %s, \"wire\": \"%s\", "
              "\"page_stores\": %s, "
              "\"collective\": "
              "\"%s\", \"algorithm\": \"%s\", \"blocks\": %d, \"bytes\": %zu, \"columns\": %zu, "
              "\"us\": %.3f, \"least_us\": %.3f, \"floor_us\": %.3f, \"error\": "
              "\"%s\"}",
              world, gpus, direct ? "true" : "false", wire == WireKind::kLine ? "line" : "ll",
              counts ? "true" : "false", cell.name, algorithm_name(cell.algorithm).data(),
              cell.blocks, cell.bytes, cell.columns, median, least, floor, error.c_str());
          write(record);
          const std::string shape =
              norm ? std::to_string(cell.rows()) + " x " + std::to_string(cell.width) : "";
          std::printf(
              "%d ranks %-4s %-9s %-24s %-11s %2d %9zu B %-11s %9.2f us (least %.2f; %.2f) %s\n",
              world, wire == WireKind::kLine ? "line" : "ll", counts ? "counts" : "no counts",
              cell.name, algorithm_name(cell.algorithm).data(), cell.blocks, cell.bytes,
              shape.c_str(), median, least, median / floor, error.c_str());
          std::fflush(stdout);
          if (error.empty()) continue;
          ++failures;
          rig = nullptr;  // a group that has failed is not used again
          rig = std::make_unique<Rig>(world, workspace, most, wire, counts, gpus, direct);
        }
      }
    }
  }
  std::fprintf(json, "]\n");
  std::fclose(json);
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
