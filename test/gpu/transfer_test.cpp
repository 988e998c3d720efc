// Messages through p2p channels, copy barriers and giving up.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "kernels/plan/plan.hpp"
#include "test/gpu/device_rig.hpp"

namespace symm::test {
namespace {

using Bytes = std::vector<std::uint8_t>;

// What message `number` from `from` to `to` holds.
Bytes message(int from, int to, int number, std::size_t bytes) {
  Bytes data(bytes);
  std::uint32_t state = static_cast<std::uint32_t>(from * 7919 + to * 104729 + number * 31 + 1);
  for (std::uint8_t& b : data) {
    state = state * 1664525u + 1013904223u;
    b = static_cast<std::uint8_t>(state >> 24);
  }
  return data;
}

class TransferTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!gpu_visible()) GTEST_SKIP() << "no GPU is visible";
  }
  int world() const { return GetParam(); }
};

// Whose boxes hold little, of four ranks as well.
constexpr std::uint64_t kSmallWorkspace = 2 * kLeastDeviceWorkspace;
constexpr WireKind kWires[] = {WireKind::kLL, WireKind::kLine};

struct Sent {
  int from;
  int to;
  std::int64_t tag;
  std::size_t bytes;
};

void launch_all_to_all(DeviceRig& rig, int rank, const std::vector<TransferOp>& ops) {
  std::vector<Part> in(static_cast<std::size_t>(rig.world()));
  std::vector<Part> out(in.size());
  for (const TransferOp& op : ops) {
    (op.is_send ? in : out)[static_cast<std::size_t>(op.peer)] = {op.data, op.bytes};
  }
  CollectiveArgs args;
  args.kind = CollectiveKind::kAllToAll;
  args.dtype = Dtype::kUInt8;
  args.input_parts = in;
  args.output_parts = out;
  rig.kernels(rank).launch(args, Plan{}, rig.options(rank));
}

// Everything that `sent` says, in one batch a rank; `collective`: it is an all_to_all.
void exchange(DeviceRig& rig, const std::vector<Sent>& sent, bool collective) {
  std::vector<std::vector<TransferOp>> ops(static_cast<std::size_t>(rig.world()));
  std::vector<std::unique_ptr<DeviceBytes>> keep;
  std::vector<std::byte*> received;
  for (std::size_t i = 0; i < sent.size(); ++i) {
    const Sent& m = sent[i];
    const Bytes data = message(m.from, m.to, static_cast<int>(i), m.bytes);
    keep.push_back(std::make_unique<DeviceBytes>(m.bytes));
    std::byte* source = keep.back()->at(i % 3);
    check(gpuMemcpy(source, data.data(), m.bytes, gpuMemcpyHostToDevice), "Memcpy");
    keep.push_back(std::make_unique<DeviceBytes>(m.bytes));
    std::byte* target = keep.back()->at(0);
    check(gpuMemset(target, 0xA5, m.bytes + 64), "Memset");
    received.push_back(target);
    ops[static_cast<std::size_t>(m.from)].push_back({source, m.bytes, m.tag, m.to, true});
    ops[static_cast<std::size_t>(m.to)].push_back({target, m.bytes, m.tag, m.from, false});
  }
  check(gpuDeviceSynchronize(), "DeviceSynchronize");
  for (int rank = 0; rank < rig.world(); ++rank) {
    const std::vector<TransferOp>& own = ops[static_cast<std::size_t>(rank)];
    if (collective) {
      launch_all_to_all(rig, rank, own);
    } else {
      rig.kernels(rank).transfer(own, rig.options(rank));
    }
  }
  rig.finish();
  rig.expect_healthy();
  for (std::size_t i = 0; i < sent.size(); ++i) {
    const Sent& m = sent[i];
    Bytes got(m.bytes + 16);
    check(gpuMemcpy(got.data(), received[i], got.size(), gpuMemcpyDeviceToHost), "Memcpy");
    Bytes want = message(m.from, m.to, static_cast<int>(i), m.bytes);
    want.resize(got.size(), 0xA5);
    ASSERT_EQ(got, want) << "message " << i << " of " << m.bytes << " bytes from " << m.from
                         << " to " << m.to;
  }
}

TEST_P(TransferTest, BothDirectionsAtOnceAtManySizes) {
  for (const WireKind wire : kWires) {
    DeviceRig rig(world(), {.wire = wire});
    // Around what a unit, a tile, a p2p channel alone and all boxes of a tag channel hold as well.
    for (const int tag : {0, 5}) {
      const std::uint64_t box = rig.layout().p2p_box_data(tag_channel_of(tag), wire);
      const std::uint64_t alone = std::min<std::uint64_t>(box, DeviceLayout::most_undivided(wire));
      const std::uint64_t few = 4 * kGoodMessagePart;
      const std::uint64_t boxes = rig.layout().p2p_channels * box;
      for (const std::uint64_t bytes :
           {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{16}, std::uint64_t{17},
            std::uint64_t{496}, std::uint64_t{497}, std::uint64_t{4096}, alone, alone + 1, few,
            few + 1, boxes - 1, boxes, boxes + 1, 3 * boxes + 1, std::uint64_t{100'003},
            std::uint64_t{9'000'001}}) {
        std::vector<Sent> sent;
        for (int from = 0; from < world(); ++from) {
          for (int to = 0; to < world(); ++to) {
            if (from != to) sent.push_back({from, to, tag, bytes});
          }
        }
        exchange(rig, sent, false);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// The largest that goes through boxes, and the smallest that goes as chunks, where boxes are small.
TEST_P(TransferTest, MessagesThatJustFitInBoxes) {
  constexpr int kTag = 5;
  for (const WireKind wire : kWires) {
    DeviceRig rig(world(), {.workspace_bytes = kSmallWorkspace, .wire = wire});
    const std::uint64_t most = rig.layout().most_in_boxes(tag_channel_of(kTag), wire);
    ASSERT_GT(most, 0u);
    ASSERT_LT(most, 64u << 20);
    for (const std::uint64_t bytes : {most - 1, most, most + 1}) {
      exchange(rig, {{0, 1, kTag, bytes}, {1, 0, kTag, bytes}}, false);
      if (HasFatalFailure()) return;
    }
  }
}

// A launch carries one message to oneself: more of them than launches for the others, and fewer.
TEST_P(TransferTest, MessagesToOneselfBesideOthers) {
  DeviceRig rig(world(), {.workspace_bytes = kLeastDeviceWorkspace});
  for (const int others : {0, 1, 120}) {
    std::vector<Sent> sent;
    for (const std::size_t bytes : {3u << 20, 0u, 1u, 100'003u}) {
      for (int rank = 0; rank < world(); ++rank) sent.push_back({rank, rank, 5, bytes});
    }
    for (int i = 0; i < others; ++i) {
      for (int from = 0; from < world(); ++from) {
        sent.push_back({from, (from + 1) % world(), 5, 20'000 + static_cast<std::size_t>(i)});
      }
    }
    exchange(rig, sent, false);
    if (HasFatalFailure()) return;
  }
}

// Empty ones, short ones, such as take all blocks, and such as go by lanes, in every pairing.
TEST_P(TransferTest, AllToAllOfUnevenShares) {
  constexpr std::size_t kSizes[] = {0, 1, 40'007, 777'777, 1'555'554, 7'777'777, 480, 12};
  for (const WireKind wire : kWires) {
    DeviceRig rig(world(), {.wire = wire});
    for (std::size_t round = 0; round < std::size(kSizes); ++round) {
      std::vector<Sent> sent;
      for (int from = 0; from < world(); ++from) {
        for (int to = 0; to < world(); ++to) {
          const std::size_t size = static_cast<std::size_t>(from * 3 + to) + round;
          sent.push_back({from, to, 0, kSizes[size % std::size(kSizes)]});
        }
      }
      exchange(rig, sent, true);
      if (HasFatalFailure()) return;
    }
    for (int rank = 0; rank < rig.world(); ++rank) {
      EXPECT_EQ(load_acquire(&rig.page(rank).completed), std::size(kSizes));
    }
  }
}

// At once, but where the share is one for lanes at one of its ends alone.
TEST_P(TransferTest, SharesOfAnotherSizeAreReported) {
  constexpr std::uint64_t kLanes = (16u << 20) + 40;
  const std::pair<std::uint64_t, std::uint64_t> sizes[] = {
      {20, 12},           {12, 20},       {0, 12},        {12, 0},
      {40, kLanes},       {kLanes, 40},   {0, kLanes},    {kLanes, 0},
      {300'000, 300'001}, {480, 400'000}, {400'000, 480}, {kLanes, kLanes + (8u << 20)}};
  DeviceBytes memory(32u << 20);
  for (const WireKind wire : kWires) {
    for (const auto& [sent, wanted] : sizes) {
      SCOPED_TRACE(std::to_string(sent) + " for " + std::to_string(wanted));
      DeviceRig rig(world(), {.wire = wire});
      // Behind two calls, in which boxes are refreshed.
      for (const bool is_last : {false, false, true}) {
        for (int rank = 0; rank < world(); ++rank) {
          std::vector<Part> in(static_cast<std::size_t>(world()));
          std::vector<Part> out(in.size());
          if (is_last && rank == 0) in[1] = {memory.at(0), sent};
          if (is_last && rank == 1) out[0] = {memory.at(0), wanted};
          CollectiveArgs args;
          args.kind = CollectiveKind::kAllToAll;
          args.dtype = Dtype::kUInt8;
          args.input_parts = in;
          args.output_parts = out;
          LaunchOptions options = rig.options(rank);
          options.timeout = std::chrono::milliseconds(300);
          rig.kernels(rank).launch(args, Plan{}, options);
        }
      }
      rig.finish();
      const DevicePage::Report& report = rig.page(1).report;
      const bool is_found = (sent < kLanes) == (wanted < kLanes);
      const DeviceFault fault = is_found ? DeviceFault::kCountMismatch : DeviceFault::kTimeout;
      ASSERT_EQ(load_acquire(&report.fault), static_cast<std::uint32_t>(fault));
      EXPECT_EQ(report.peer, 0);
      EXPECT_EQ(report.sequence, 3u);
      if (!is_found) continue;
      EXPECT_EQ(report.theirs, sent);
      EXPECT_EQ(report.mine, wanted);
    }
  }
}

// More messages than a launch holds, with tags of every tag channel, large enough that no channel
// could hold them all.
TEST_P(TransferTest, MoreMessagesThanALaunchHolds) {
  for (const WireKind wire : kWires) {
    DeviceRig rig(world(), {.workspace_bytes = kLeastDeviceWorkspace, .wire = wire});
    std::vector<Sent> sent;
    for (int i = 0; i < 150; ++i) {
      for (int from = 0; from < world(); ++from) {
        sent.push_back({from, (from + 1) % world(), i % 6, 30'000 + static_cast<std::size_t>(i)});
      }
    }
    exchange(rig, sent, false);
  }
}

TEST_P(TransferTest, CountersWrapAround) {
  for (const WireKind wire : kWires) {
    DeviceRig rig(
        world(),
        {.workspace_bytes = kLeastDeviceWorkspace, .first = {.p2p = 0xfffffffd}, .wire = wire});
    for (int round = 0; round < 4; ++round) {
      exchange(rig, {{0, 1, 3, 50'000}, {1, 0, 3, 70'000}, {1, 0, 3, 100}}, false);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(TransferTest, AnotherSizeIsReportedByTheReceiver) {
  for (const WireKind wire : kWires) {
    DeviceRig rig(world(), {.wire = wire});
    DeviceBytes memory(4096);
    const TransferOp send{memory.at(0), 64, 7, 1, true};
    const TransferOp recv{memory.at(1024), 65, 7, 0, false};
    rig.kernels(0).transfer({&send, 1}, rig.options(0));
    rig.kernels(1).transfer({&recv, 1}, rig.options(1));
    rig.finish();
    const DevicePage::Report& report = rig.page(1).report;
    ASSERT_EQ(load_acquire(&report.fault), static_cast<std::uint32_t>(DeviceFault::kCountMismatch));
    EXPECT_EQ(report.peer, 0);
    EXPECT_EQ(report.theirs, 64u);
    EXPECT_EQ(report.mine, 65u);
    EXPECT_EQ(report.sequence, 1u);
    EXPECT_EQ(report.transfer, 1u);
  }
}

// One end has a message in boxes, the other one that goes through slots.
TEST_P(TransferTest, AnotherSizeIsReportedAlsoWhereTheEndsChooseDifferentForms) {
  for (const WireKind wire : kWires) {
    const DeviceLayout layout = DeviceRig(world(), {.workspace_bytes = kSmallWorkspace}).layout();
    const std::uint64_t boxes = layout.most_in_boxes(tag_channel_of(7), wire);
    const std::uint64_t large = boxes + 1;
    const std::pair<std::uint64_t, std::uint64_t> sizes[] = {
        {40, large}, {large, 40}, {boxes, large}, {large, boxes}, {40, boxes}, {boxes, 40}};
    for (const auto& [sent, wanted] : sizes) {
      SCOPED_TRACE(std::to_string(sent) + " for " + std::to_string(wanted));
      DeviceRig rig(world(), {.workspace_bytes = kSmallWorkspace, .wire = wire});
      DeviceBytes memory(4 * large);
      // Behind a message that both agree on.
      for (const std::uint64_t bytes : {std::uint64_t{64}, std::uint64_t{0}}) {
        const TransferOp send{memory.at(0), bytes != 0 ? bytes : sent, 7, 1, true};
        const TransferOp recv{memory.at(2 * large), bytes != 0 ? bytes : wanted, 7, 0, false};
        // Where the sender waits for credit, its time-out ends it.
        LaunchOptions options = rig.options(0);
        options.timeout = std::chrono::milliseconds(300);
        rig.kernels(0).transfer({&send, 1}, options);
        rig.kernels(1).transfer({&recv, 1}, rig.options(1));
      }
      rig.finish();
      const DevicePage::Report& report = rig.page(1).report;
      ASSERT_EQ(load_acquire(&report.fault),
                static_cast<std::uint32_t>(DeviceFault::kCountMismatch));
      EXPECT_EQ(report.theirs, sent);
      EXPECT_EQ(report.mine, wanted);
      EXPECT_EQ(report.sequence, 2u);
    }
  }
}

TEST_P(TransferTest, ManyMessagesInBoxesInARow) {
  for (const WireKind wire : kWires) {
    DeviceRig rig(world(), {.workspace_bytes = kLeastDeviceWorkspace, .wire = wire});
    std::vector<Sent> sent;
    for (std::size_t i = 0; i < 90; ++i) {
      for (int from = 0; from < world(); ++from) {
        const std::size_t bytes = i % 5 == 4 ? 70'000 : (i * 977) % 12'000;
        sent.push_back({from, (from + 1) % world(), 5, bytes});
      }
    }
    for (int round = 0; round < 3; ++round) {
      exchange(rig, sent, false);
      if (HasFatalFailure()) return;
    }
  }
}

// Blocks send at their own pace: in a launch a message of the one form often comes before an
// earlier one of the other, and is none that was not expected.
TEST_P(TransferTest, LaterMessagesOfTheOtherFormComeFirst) {
  for (const WireKind wire : kWires) {
    DeviceRig rig(world(), {.wire = wire});
    std::vector<Sent> sent;
    for (int i = 0; i < 8; ++i) {
      for (const std::size_t bytes : {5'000'001u, 1u, 300'001u, 20'000u, 0u, 900'001u}) {
        for (int from = 0; from < world(); ++from) {
          sent.push_back({from, (from + 1) % world(), 5, bytes});
        }
      }
    }
    for (int round = 0; round < 10; ++round) {
      exchange(rig, sent, false);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(TransferTest, AnotherTagIsReportedByTheReceiver) {
  for (const WireKind wire : kWires) {
    DeviceRig rig(world(), {.wire = wire});
    DeviceBytes memory(4096);
    const TransferOp send{memory.at(0), 64, 1, 1, true};
    const TransferOp recv{memory.at(1024), 64, 1 + kTagChannels, 0, false};
    rig.kernels(0).transfer({&send, 1}, rig.options(0));
    rig.kernels(1).transfer({&recv, 1}, rig.options(1));
    rig.finish();
    EXPECT_EQ(load_acquire(&rig.page(1).report.fault),
              static_cast<std::uint32_t>(DeviceFault::kTagMismatch));
  }
}

CollectiveArgs all_reduce(std::byte* data, std::size_t count) {
  CollectiveArgs args;
  args.kind = CollectiveKind::kAllReduce;
  args.dtype = Dtype::kFloat32;
  args.count = count;
  args.input = args.output = data;
  return args;
}

Plan plan_of(Algorithm algorithm) {
  Plan plan;
  plan.algorithm = algorithm;
  plan.channels = 8;
  return plan;
}

constexpr Algorithm kAllReduces[] = {Algorithm::kLL, Algorithm::kLLTwoShot, Algorithm::kBulk};

TEST_P(TransferTest, TheAbortWordEndsEveryKernel) {
  for (const Algorithm algorithm : kAllReduces) {
    DeviceRig rig(world(), {});
    DeviceBytes memory(1 << 20);
    for (int i = 0; i < 3; ++i) {
      rig.kernels(0).launch(all_reduce(memory.at(0), 200'000), plan_of(algorithm), rig.options(0));
    }
    while (load_acquire(&rig.page(0).entered) == 0) std::this_thread::yield();
    const auto begin = std::chrono::steady_clock::now();
    store_release(&rig.page(0).abort, std::uint32_t{1});
    check(gpuStreamSynchronize(rig.stream(0)), "StreamSynchronize");
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(500));
    EXPECT_EQ(load_acquire(&rig.page(0).completed), 0u);
    // The context is usable.
    check(gpuMemset(memory.at(0), 0, 1024), "Memset");
  }
}

TEST_P(TransferTest, TheTimeOutNamesThePeer) {
  for (const Algorithm algorithm : kAllReduces) {
    DeviceRig rig(2, {});
    DeviceBytes memory(1 << 20);
    LaunchOptions options = rig.options(0);
    options.timeout = std::chrono::milliseconds(200);
    const auto begin = std::chrono::steady_clock::now();
    rig.kernels(0).launch(all_reduce(memory.at(0), 100), plan_of(algorithm), options);
    check(gpuStreamSynchronize(rig.stream(0)), "StreamSynchronize");
    const auto elapsed = std::chrono::steady_clock::now() - begin;
    EXPECT_GE(elapsed, std::chrono::milliseconds(190));
    EXPECT_LT(elapsed, std::chrono::milliseconds(900));
    const DevicePage::Report& report = rig.page(0).report;
    ASSERT_EQ(load_acquire(&report.fault), static_cast<std::uint32_t>(DeviceFault::kTimeout));
    EXPECT_EQ(report.peer, 1);
    EXPECT_EQ(report.sequence, 1u);
    EXPECT_EQ(report.transfer, 0u);
  }
}

TEST_P(TransferTest, CopyEnginesFillSymmetricOutputs) {
  DeviceRig rig(world(), {});
  const auto n = static_cast<std::size_t>(world());
  constexpr std::size_t kShare = 300'000;
  std::vector<std::unique_ptr<DeviceBytes>> outputs;
  std::vector<std::unique_ptr<DeviceBytes>> inputs;
  std::vector<std::byte*> bases;
  for (std::size_t r = 0; r < n; ++r) {
    outputs.push_back(std::make_unique<DeviceBytes>(n * kShare));
    inputs.push_back(std::make_unique<DeviceBytes>(kShare));
    bases.push_back(outputs.back()->at(0));
    check(gpuMemset(bases.back(), 0xA5, n * kShare), "Memset");
    check(gpuMemset(inputs.back()->at(0), static_cast<int>(r + 1), kShare), "Memset");
  }
  check(gpuDeviceSynchronize(), "DeviceSynchronize");
  for (int rank = 0; rank < world(); ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    std::vector<Part> parts;
    for (std::size_t p = 0; p < n; ++p) parts.push_back({bases[r] + p * kShare, kShare});
    CollectiveArgs args;
    args.kind = CollectiveKind::kAllGather;
    args.count = kShare;
    args.input = inputs[r]->at(0);
    args.output_parts = parts;
    rig.kernels(rank).launch_copies(args, 1, bases, rig.options(rank));
  }
  rig.finish();
  rig.expect_healthy();
  for (std::size_t r = 0; r < n; ++r) {
    Bytes got(n * kShare);
    check(gpuMemcpy(got.data(), bases[r], got.size(), gpuMemcpyDeviceToHost), "Memcpy");
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i], i / kShare + 1) << "rank " << r << ", byte " << i;
    }
    EXPECT_EQ(load_acquire(&rig.page(static_cast<int>(r)).completed), 1u);
  }
}

TEST_P(TransferTest, AsymmetricUseIsReported) {
  DeviceRig rig(2, {});
  DeviceBytes memory(4096);
  std::byte* bases[] = {memory.at(0), memory.at(1024)};
  for (int rank = 0; rank < 2; ++rank) {
    CollectiveArgs args;
    args.kind = CollectiveKind::kBroadcast;
    args.count = 64;
    args.input = args.output = bases[rank];
    rig.kernels(rank).launch_copies(args, static_cast<BufferLocation>(rank + 1), bases,
                                    rig.options(rank));
  }
  rig.finish();
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(load_acquire(&rig.page(rank).report.fault),
              static_cast<std::uint32_t>(DeviceFault::kAsymmetricUse));
    EXPECT_EQ(rig.page(rank).report.peer, 1 - rank);
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, TransferTest, testing::Values(2, 4));

}  // namespace
}  // namespace symm::test
