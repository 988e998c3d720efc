// What a launch that gives up leaves behind: outputs that nobody takes for results.
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/plan/plan.hpp"
#include "test/gpu/device_rig.hpp"

namespace symm::test {
namespace {

using Bytes = std::vector<std::byte>;
constexpr std::byte kBefore{0x11};

struct Case {
  CollectiveKind kind;
  Algorithm algorithm;
};

constexpr Case kCases[] = {
    {CollectiveKind::kAllReduce, Algorithm::kLL},
    {CollectiveKind::kAllReduce, Algorithm::kLLTwoShot},
    {CollectiveKind::kAllReduce, Algorithm::kBulk},
    {CollectiveKind::kReduce, Algorithm::kLL},
    {CollectiveKind::kReduce, Algorithm::kBulk},
    {CollectiveKind::kReduceScatter, Algorithm::kLL},
    {CollectiveKind::kReduceScatter, Algorithm::kBulk},
    {CollectiveKind::kBroadcast, Algorithm::kLL},
    {CollectiveKind::kBroadcast, Algorithm::kBulk},
    {CollectiveKind::kAllGather, Algorithm::kLL},
    {CollectiveKind::kAllGather, Algorithm::kBulk},
    {CollectiveKind::kGather, Algorithm::kLL},
    {CollectiveKind::kGather, Algorithm::kBulk},
    {CollectiveKind::kScatter, Algorithm::kLL},
    {CollectiveKind::kScatter, Algorithm::kBulk},
};

bool has_parts(CollectiveKind kind) {
  return kind != CollectiveKind::kAllReduce && kind != CollectiveKind::kReduce &&
         kind != CollectiveKind::kBroadcast;
}
bool reads_parts(CollectiveKind kind) {
  return kind == CollectiveKind::kScatter || kind == CollectiveKind::kReduceScatter;
}
bool is_rooted(CollectiveKind kind) {
  return kind == CollectiveKind::kReduce || kind == CollectiveKind::kBroadcast ||
         kind == CollectiveKind::kGather || kind == CollectiveKind::kScatter;
}

Plan plan_of(Algorithm algorithm) {
  Plan plan;
  plan.algorithm = algorithm;
  plan.channels = 4;
  return plan;
}

Bytes filled(std::size_t count, Dtype dtype) {
  const std::uint64_t pattern = poison_of(dtype);
  Bytes bytes(count * dtype_bytes(dtype));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(pattern >> (8 * (i % 8)) & 0xff);
  }
  return bytes;
}

Bytes read(const std::byte* data, std::size_t bytes) {
  Bytes got(bytes);
  check(gpuMemcpy(got.data(), data, bytes, gpuMemcpyDeviceToHost), "Memcpy");
  return got;
}

class GiveUpTest : public testing::Test {
 protected:
  static constexpr int kWorld = 3;

  void SetUp() override {
    if (!gpu_visible()) GTEST_SKIP() << "no GPU is visible";
  }

  static DeviceFault fault_of(const DeviceRig& rig, int rank) {
    return static_cast<DeviceFault>(load_acquire(&rig.page(rank).report.fault));
  }

  // One rank's part of a call, in memory of its own.
  struct Buffers {
    explicit Buffers(std::size_t bytes) : input(bytes), output(bytes) {
      check(gpuMemset(input.at(0), static_cast<int>(kBefore), bytes), "Memset");
      check(gpuMemset(output.at(0), static_cast<int>(kBefore), bytes), "Memset");
      check(gpuDeviceSynchronize(), "DeviceSynchronize");
    }
    DeviceBytes input;
    DeviceBytes output;
  };

  // Launches the part of `rank` in a call that no other rank makes; `offset`: of its buffers from
  // an aligned address; `meanwhile()` is called when it has been launched. Returns the bytes from
  // there to the end of the output, which has room for `count` elements a rank.
  template <class Meanwhile = decltype([] {})>
  static Bytes left_by(DeviceRig& rig, const Case& call, int rank, int root, Dtype dtype,
                       std::size_t count, std::size_t offset, const Meanwhile& meanwhile = {}) {
    const std::size_t share = count * dtype_bytes(dtype);
    Buffers memory(kWorld * share + 64);
    std::vector<Part> parts;
    std::byte* const base =
        reads_parts(call.kind) ? memory.input.at(offset) : memory.output.at(offset);
    for (std::size_t r = 0; r < kWorld && has_parts(call.kind); ++r) {
      parts.push_back({base + r * share, count});
    }
    CollectiveArgs args;
    args.kind = call.kind;
    args.dtype = dtype;
    args.op = dtype == Dtype::kBool ? ReduceOp::kMax : ReduceOp::kSum;
    args.root = root;
    args.count = count;
    args.input = memory.input.at(offset);
    args.output = memory.output.at(offset);
    (reads_parts(call.kind) ? args.input_parts : args.output_parts) = parts;
    LaunchOptions options = rig.options(rank);
    options.timeout = std::chrono::milliseconds(20);
    rig.kernels(rank).launch(args, plan_of(call.algorithm), options);
    meanwhile();
    check(gpuStreamSynchronize(rig.stream(rank)), "StreamSynchronize");
    return read(memory.output.at(offset), kWorld * share);
  }

  // The word that says that a rank's group is dead, as its kernels see it.
  static void set_dead(const DeviceRig& rig, int rank, std::uint32_t dead) {
    std::byte* const word = rig.segment(rank) + rig.layout().local + offsetof(LocalState, dead);
    check(gpuMemcpyAsync(word, &dead, sizeof(dead), gpuMemcpyHostToDevice, nullptr), "MemcpyAsync");
    finish_default_stream();
  }
};

TEST_F(GiveUpTest, WhatWasToBeWrittenIsPoisonAndTheRestIsAsItWas) {
  constexpr std::size_t kCount = 5003;
  for (const Case& call : kCases) {
    for (const Dtype dtype : {Dtype::kBFloat16, Dtype::kInt32}) {
      SCOPED_TRACE(std::string(collective_name(call.kind)) + " by " +
                   std::string(algorithm_name(call.algorithm)) + " of " +
                   std::string(dtype_name(dtype)));
      // A rank that waits for others: no root that sends, and the root that receives.
      const bool root_receives =
          call.kind == CollectiveKind::kReduce || call.kind == CollectiveKind::kGather;
      const int root = root_receives ? 0 : 2;
      DeviceRig rig(kWorld, {.workspace_bytes = kLeastDeviceWorkspace});
      const Bytes got = left_by(rig, call, 0, root, dtype, kCount, 4);
      ASSERT_EQ(fault_of(rig, 0), DeviceFault::kTimeout);
      const bool writes_all =
          call.kind == CollectiveKind::kAllGather || call.kind == CollectiveKind::kGather;
      Bytes expected = filled(writes_all ? kWorld * kCount : kCount, dtype);
      expected.resize(got.size(), kBefore);
      EXPECT_EQ(got, expected);
      // The group is dead: later launches, and replays, end at once and poison likewise.
      EXPECT_EQ(left_by(rig, call, 0, root, dtype, kCount, 8), expected);
      if (!is_rooted(call.kind)) continue;
      // A root that sends writes what is not its input; others of a reduce or gather write nothing.
      const int other_root = root_receives ? 1 : 0;
      Bytes untouched(got.size(), kBefore);
      EXPECT_EQ(left_by(rig, call, 0, other_root, dtype, kCount, 0),
                root_receives ? untouched : expected);
    }
  }
}

// At any time, also while the threads of a block look whether it has: they go the same way.
TEST_F(GiveUpTest, AGroupMayDieWhileABlockBegins) {
  constexpr std::size_t kCount = 5003;
  constexpr int kRounds = 20;
  const auto dies = [](const Case& call, WireKind wire) {
    SCOPED_TRACE(std::string(collective_name(call.kind)) + " by " +
                 std::string(algorithm_name(call.algorithm)) + ", wire " +
                 std::to_string(static_cast<int>(wire)));
    DeviceRig rig(kWorld, {.workspace_bytes = kLeastDeviceWorkspace, .wire = wire});
    const auto left_when = [&](const auto& meanwhile) {
      return left_by(rig, call, 0, 2, Dtype::kInt32, kCount, 0, meanwhile);
    };
    const Bytes expected = left_when([] {});
    for (int round = 0; round < kRounds; ++round) {
      set_dead(rig, 0, 0);
      const auto dies_later = [&] {
        const auto time = std::chrono::steady_clock::now() + std::chrono::microseconds(20 * round);
        while (std::chrono::steady_clock::now() < time) {
        }
        set_dead(rig, 0, 1);
      };
      EXPECT_EQ(left_when(dies_later), expected);
    }
  };
  for (const Case& call : kCases) {
    dies(call, WireKind::kLL);
    if (call.algorithm != Algorithm::kBulk) dies(call, WireKind::kLine);
  }
}

// In place, in several launches of several blocks.
TEST_F(GiveUpTest, LaunchesOverAWireFillWhatIsTheirs) {
  constexpr std::size_t kCount = 300'001;
  for (const WireKind wire : {WireKind::kLL, WireKind::kLine}) {
    for (const Algorithm algorithm : {Algorithm::kLL, Algorithm::kLLTwoShot}) {
      SCOPED_TRACE(std::string(algorithm_name(algorithm)) + ", wire " +
                   std::to_string(static_cast<int>(wire)));
      DeviceRig rig(kWorld, {.workspace_bytes = kLeastDeviceWorkspace, .wire = wire});
      DeviceBytes data(4 * kCount);
      CollectiveArgs args;
      args.kind = CollectiveKind::kAllReduce;
      args.dtype = Dtype::kInt32;
      args.count = kCount;
      args.input = args.output = data.at(0);
      LaunchOptions options = rig.options(0);
      options.timeout = std::chrono::milliseconds(20);
      const auto left = [&] {
        check(gpuMemset(data.at(0), static_cast<int>(kBefore), 4 * kCount), "Memset");
        check(gpuDeviceSynchronize(), "DeviceSynchronize");
        rig.kernels(0).launch(args, plan_of(algorithm), options);
        check(gpuStreamSynchronize(rig.stream(0)), "StreamSynchronize");
        return read(data.at(0), 4 * kCount);
      };
      EXPECT_EQ(left(), filled(kCount, Dtype::kInt32));
      EXPECT_EQ(fault_of(rig, 0), DeviceFault::kTimeout);
      args.kind = CollectiveKind::kBroadcast;
      args.root = 1;
      EXPECT_EQ(left(), filled(kCount, Dtype::kInt32));
      args.root = 0;
      EXPECT_EQ(left(), Bytes(4 * kCount, kBefore)) << "the input of the root";
    }
  }
}

// The third broadcast of a root needs a sign of the others; one that has died is looked for in
// calls that have been entered.
TEST_F(GiveUpTest, ARootThatWaitsForCreditHasEnteredItsCall) {
  DeviceRig rig(kWorld, {.workspace_bytes = kLeastDeviceWorkspace});
  const Case call{CollectiveKind::kBroadcast, Algorithm::kLL};
  for (int number = 1; number <= 3; ++number) {
    EXPECT_EQ(fault_of(rig, 0), DeviceFault::kNone);
    left_by(rig, call, 0, 0, Dtype::kInt32, 8, 0);
  }
  EXPECT_EQ(fault_of(rig, 0), DeviceFault::kTimeout);
  EXPECT_EQ(load_acquire(&rig.page(0).entered), 3u);
  EXPECT_EQ(load_acquire(&rig.page(0).completed), 2u);
}

TEST_F(GiveUpTest, EveryDtypeHasItsPoison) {
  for (int d = 0; d < kDtypeCount; ++d) {
    const auto dtype = static_cast<Dtype>(d);
    SCOPED_TRACE(std::string(dtype_name(dtype)));
    DeviceRig rig(kWorld, {.workspace_bytes = kLeastDeviceWorkspace});
    const Case call{CollectiveKind::kBroadcast, Algorithm::kLL};
    for (const std::size_t count : {1u, 7u, 1000u}) {
      // Elements are aligned to their size at least; a view may start at any of them.
      for (const std::size_t offset : {std::size_t{0}, dtype_bytes(dtype)}) {
        Bytes expected = filled(count, dtype);
        expected.resize(kWorld * count * dtype_bytes(dtype), kBefore);
        EXPECT_EQ(left_by(rig, call, 0, 1, dtype, count, offset), expected) << count;
      }
    }
  }
}

TEST_F(GiveUpTest, WithoutPoisonTheOutputStays) {
  DeviceRig rig(kWorld, {.workspace_bytes = kLeastDeviceWorkspace, .poisons = false});
  const Case call{CollectiveKind::kAllReduce, Algorithm::kBulk};
  const Bytes got = left_by(rig, call, 0, 0, Dtype::kFloat32, 1000, 0);
  EXPECT_EQ(fault_of(rig, 0), DeviceFault::kTimeout);
  EXPECT_EQ(got, Bytes(got.size(), kBefore));
}

TEST_F(GiveUpTest, AMessageThatDoesNotComeIsPoison) {
  DeviceRig rig(kWorld, {.workspace_bytes = kLeastDeviceWorkspace});
  DeviceBytes memory(4096);
  check(gpuMemset(memory.at(0), static_cast<int>(kBefore), 4096), "Memset");
  check(gpuDeviceSynchronize(), "DeviceSynchronize");
  LaunchOptions options = rig.options(0);
  options.timeout = std::chrono::milliseconds(20);
  const TransferOp ops[] = {
      {.data = memory.at(0), .bytes = 1000, .tag = 1, .peer = 1, .dtype = Dtype::kFloat16},
      {.data = memory.at(2048), .bytes = 1000, .tag = 2, .peer = 2, .is_send = true},
      {.data = memory.at(1024), .bytes = 64, .tag = 0, .peer = 0, .is_send = true},
      {.data = memory.at(3072), .bytes = 64, .tag = 0, .peer = 0, .dtype = Dtype::kInt8}};
  for (int round = 0; round < 2; ++round) {
    rig.kernels(0).transfer(ops, options);
    check(gpuStreamSynchronize(rig.stream(0)), "StreamSynchronize");
    EXPECT_EQ(fault_of(rig, 0), DeviceFault::kTimeout);
    EXPECT_EQ(read(memory.at(0), 1000), filled(500, Dtype::kFloat16));
    EXPECT_EQ(read(memory.at(1000), 3096), Bytes(3096, kBefore)) << "what is sent, and copied";
  }
}

TEST_F(GiveUpTest, CopiesThatPeersDoNotMakeArePoison) {
  DeviceRig rig(2, {.workspace_bytes = kLeastDeviceWorkspace});
  DeviceBytes memory(4096);
  DeviceBytes peer(4096);
  std::byte* bases[] = {memory.at(0), peer.at(0)};
  std::vector<Part> parts = {{memory.at(0), 512}, {memory.at(2048), 512}};
  std::vector<Part> inputs = {{peer.at(0), 512}, {peer.at(2048), 512}};
  CollectiveArgs args;
  args.kind = CollectiveKind::kAllToAll;
  args.dtype = Dtype::kFloat32;
  args.input_parts = inputs;
  args.output_parts = parts;
  LaunchOptions options = rig.options(0);
  options.timeout = std::chrono::milliseconds(20);
  rig.kernels(0).launch_copies(args, 1, bases, options);
  check(gpuStreamSynchronize(rig.stream(0)), "StreamSynchronize");
  EXPECT_EQ(fault_of(rig, 0), DeviceFault::kTimeout);
  EXPECT_EQ(read(memory.at(0), 4096), filled(1024, Dtype::kFloat32));
}

}  // namespace
}  // namespace symm::test
