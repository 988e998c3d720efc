// What looking at the abort word and the clock costs: the same calls with the looks that a group
// makes and with none, two ranks on one GPU, from a graph.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "kernels/plan/plan.hpp"
#include "test/gpu/device_rig.hpp"

namespace symm::test {
namespace {

constexpr int kCalls = 100;         // in a graph
constexpr std::size_t kGraphs = 3;  // of the same calls
constexpr int kReplays = 41;        // of which the median counts

// The same calls on the same memory and streams, whatever the period: two groups' memories alone
// make a call of few bytes 400 ns faster or slower.
class GraphedCalls {
 public:
  GraphedCalls(DeviceRig& rig, std::span<const DeviceBytes> data, std::uint32_t poll_period,
               Algorithm algorithm, std::size_t count)
      : rig_(rig) {
    for (int rank = 0; rank < 2; ++rank) {
      pages_[rank] = make_page();
      kernels_[rank] = rig.make_kernels(rank, *pages_[rank], poll_period);
      capture(rank, data[static_cast<std::size_t>(rank)], algorithm, count);
    }
    check(gpuEventCreate(&begin_), "EventCreate");
    check(gpuEventCreate(&end_), "EventCreate");
    for (int i = 0; i < 5; ++i) replay();
  }
  ~GraphedCalls() {
    for (gpuGraphExec_t graph : graphs_) (void)gpuGraphExecDestroy(graph);
    (void)gpuEventDestroy(begin_);
    (void)gpuEventDestroy(end_);
  }

  // Nanoseconds of a call.
  double replay() {
    check(gpuEventRecord(begin_, rig_.stream(0)), "EventRecord");
    for (int rank = 0; rank < 2; ++rank) {
      check(gpuGraphLaunch(graphs_[rank], rig_.stream(rank)), "GraphLaunch");
    }
    check(gpuEventRecord(end_, rig_.stream(0)), "EventRecord");
    rig_.finish();
    for (const PagePointer& page : pages_) EXPECT_EQ(load_acquire(&page->report.fault), 0u);
    float milliseconds = 0.0f;
    check(gpuEventElapsedTime(&milliseconds, begin_, end_), "EventElapsedTime");
    return static_cast<double>(milliseconds) * 1e6 / kCalls;
  }

 private:
  void capture(int rank, const DeviceBytes& data, Algorithm algorithm, std::size_t count) {
    CollectiveArgs args;
    args.kind = CollectiveKind::kAllReduce;
    args.dtype = Dtype::kFloat32;
    args.count = count;
    args.input = args.output = data.at(0);
    Plan plan;
    plan.algorithm = algorithm;
    plan.channels = 16;
    check(gpuStreamBeginCapture(rig_.stream(rank), gpuStreamCaptureModeRelaxed), "capture");
    for (int i = 0; i < kCalls; ++i) kernels_[rank]->launch(args, plan, rig_.options(rank));
    gpuGraph_t graph = nullptr;
    check(gpuStreamEndCapture(rig_.stream(rank), &graph), "capture");
    check(gpuGraphInstantiate(&graphs_[rank], graph), "instantiate");
    check(gpuGraphDestroy(graph), "GraphDestroy");
  }

  DeviceRig& rig_;
  PagePointer pages_[2];
  std::unique_ptr<GroupKernels> kernels_[2];
  gpuGraphExec_t graphs_[2] = {};
  gpuEvent_t begin_ = nullptr;
  gpuEvent_t end_ = nullptr;
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + kReplays / 2, values.end());
  return values[kReplays / 2];
}

// The best median of graphs of one kind: where a graph's launches lie makes a call of few bytes
// 200 ns faster or slower too.
double best_median(const std::vector<std::vector<double>>& times) {
  double best = std::numeric_limits<double>::infinity();
  for (const std::vector<double>& of_graph : times) best = std::min(best, median(of_graph));
  return best;
}

// At most 1% or 50 ns, whichever is more. SYMM_POLLING_JSON names a file for the figures.
TEST(PollingCostAloneTest, IsLost) {
  if (!gpu_visible()) GTEST_SKIP() << "no GPU is visible";
  struct Case {
    const char* name;
    Algorithm algorithm;
    std::size_t count;
  };
  std::string json = "[";
  for (const Case& c : {Case{"ll", Algorithm::kLL, 64}, Case{"ll", Algorithm::kLL, 16384},
                        Case{"bulk", Algorithm::kBulk, 1u << 20}}) {
    DeviceRig rig(2, {});
    const std::array<DeviceBytes, 2> data{DeviceBytes(c.count * 4), DeviceBytes(c.count * 4)};
    for (const DeviceBytes& each : data) check(gpuMemset(each.at(0), 0, c.count * 4), "Memset");
    check(gpuDeviceSynchronize(), "DeviceSynchronize");
    struct Kind {
      std::uint32_t poll_period;
      std::vector<std::unique_ptr<GraphedCalls>> graphs{};
      std::vector<std::vector<double>> times = std::vector<std::vector<double>>(kGraphs);
    };
    Kind looking{GroupKernelsConfig{}.poll_period};
    Kind blind{1u << 31};
    for (std::size_t graph = 0; graph < kGraphs; ++graph) {
      for (Kind* kind : {&looking, &blind}) {
        kind->graphs.push_back(
            std::make_unique<GraphedCalls>(rig, data, kind->poll_period, c.algorithm, c.count));
      }
    }
    for (int i = 0; i < kReplays; ++i) {
      for (std::size_t graph = 0; graph < kGraphs; ++graph) {
        for (Kind* kind : {&looking, &blind}) {
          kind->times[graph].push_back(kind->graphs[graph]->replay());
        }
      }
    }
    const double with = best_median(looking.times);
    const double without = best_median(blind.times);
    EXPECT_LE(with - without, std::max(50.0, 0.01 * without)) << c.name << " of " << c.count * 4;
    char line[256];
    std::snprintf(line, sizeof(line),
                  "%s{\"algorithm\": \"%s\", \"bytes\": %zu, \"ns_with_polling\": %.0f, "
                  "\"ns_without\": %.0f}",
                  json.size() > 1 ? ",\n " : "", c.name, c.count * 4, with, without);
    json += line;
  }
  json += "]\n";
  std::printf("%s", json.c_str());
  if (const char* path = std::getenv("SYMM_POLLING_JSON")) {
    std::FILE* file = std::fopen(path, "w");
    ASSERT_NE(file, nullptr) << path;
    std::fputs(json.c_str(), file);
    std::fclose(file);
  }
}

}  // namespace
}  // namespace symm::test
