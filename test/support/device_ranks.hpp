// Groups whose ranks are threads, each with a fake GPU of its own.
#pragma once

#include <gtest/gtest.h>

#include <barrier>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "backend/engine/communicator.hpp"
#include "symm_mem/process/deadline.hpp"
#include "test/support/collective_cases.hpp"
#include "test/support/fake_gpu.hpp"
#include "test/support/joined_segment.hpp"
#include "test/support/memory_store.hpp"
#include "test/support/rank_threads.hpp"

namespace symm::test {

// How long a test waits for what a watchdog is to find out.
inline constexpr std::chrono::milliseconds kPatience{10'000};

// One rank of a group whose device is the fake GPU of its own number.
class DeviceRank {
 public:
  DeviceRank(Communicator& communicator, FakeGpu& gpu, std::barrier<>& meeting)
      : communicator(communicator), gpu(gpu), meeting_(meeting) {}

  int number() const { return communicator.rank(); }
  DeviceGroup& engine() {
    return communicator.device_group({DeviceKind::kCuda, communicator.rank()});
  }
  FakeKernels& kernels() { return gpu.kernels(); }
  void launch(const CollectiveArgs& args, std::chrono::milliseconds timeout = {}) {
    engine().launch(args, {FakeGpu::plain_stream(), timeout});
  }
  // All ranks are here.
  void meet() { meeting_.arrive_and_wait(); }

  // What the watchdog makes of what has happened.
  std::optional<Error> failure() {
    const Deadline deadline(kPatience);
    while (!communicator.failure() && !deadline.passed()) std::this_thread::yield();
    return communicator.failure();
  }

  Communicator& communicator;
  FakeGpu& gpu;

 private:
  std::barrier<>& meeting_;
};

inline CommunicatorConfig device_config(int rank, int world, Algorithm algorithm) {
  CommunicatorConfig config;
  config.group_name = "test";
  config.rank = rank;
  config.world_size = world;
  config.timeout = std::chrono::milliseconds(20'000);
  config.algorithm = algorithm;
  config.device_workspace_bytes = 4u << 20;
  config.max_device_blocks = 48;
  return config;
}

// A segment of `bytes` on the rank's GPU, made known to the group.
inline std::shared_ptr<Segment> register_segment(DeviceRank& rank, std::size_t bytes,
                                                 bool symmetric) {
  return join_segment(rank.communicator, LocalSegment::allocate(rank.gpu, bytes), symmetric);
}

// all_gather of `count` bytes a rank into `output`.
inline void gather_into(DeviceRank& rank, std::byte* output, std::size_t count) {
  const auto world = static_cast<std::size_t>(rank.communicator.world_size());
  std::vector<std::byte> input(count);
  std::vector<Part> parts;
  for (std::size_t r = 0; r < world; ++r) parts.push_back({output + r * count, count});
  CollectiveArgs args;
  args.kind = CollectiveKind::kAllGather;
  args.dtype = Dtype::kUInt8;
  args.count = count;
  args.input = input.data();
  args.output_parts = parts;
  rank.launch(args);
}

class DeviceRanksTest : public ::testing::Test {
 protected:
  // What a test changes of every rank's settings.
  std::function<void(CommunicatorConfig&)> adjust_ = [](CommunicatorConfig&) {};

  std::vector<std::optional<Error>> errors_in_group(int world,
                                                    const std::function<void(DeviceRank&)>& body,
                                                    Algorithm algorithm = Algorithm::kAuto) {
    MemoryStore store;
    std::barrier<> meeting(world);
    return errors_of_ranks(world, [&](int rank) {
      CommunicatorConfig config = device_config(rank, world, algorithm);
      adjust_(config);
      const auto communicator = std::make_unique<Communicator>(store, config);
      DeviceRank one(*communicator, gpus_[rank], meeting);
      try {
        body(one);
      } catch (const Error&) {
        meeting.arrive_and_drop();
        throw;
      }
      meeting.arrive_and_drop();
    });
  }
  void run_group(int world, const std::function<void(DeviceRank&)>& body,
                 Algorithm algorithm = Algorithm::kAuto) {
    for (const auto& error : errors_in_group(world, body, algorithm)) {
      if (error) FAIL() << error->what();
    }
  }

  FakeGpus gpus_;
};

}  // namespace symm::test
