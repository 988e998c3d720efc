// Which kernels the calls of a group launch, with how many blocks and threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/gpu/launch/gpu_kernels.hpp"
#include "kernels/plan/plan.hpp"
#include "test/gpu_launch/launched.hpp"

namespace symm::test {
namespace {

// The kernels of the last rank of a group. Addresses stand for memory of a device: nothing is read
// or written there.
class Group {
 public:
  Group(int world, WireKind wire, int ranks_of_gpu = 1) : world_(world) {
    GroupKernelsConfig config;
    config.rank = world - 1;
    config.world_size = world;
    config.layout = DeviceLayout::of(world, std::uint64_t{64} << 20);
    config.page = page_.get();
    kernels_ = make_gpu_group_kernels(config, 0);
    kernels_->set_wire(wire);
    for (int rank = 0; rank < world; ++rank) {
      kernels_->set_peer(rank, address(std::uintptr_t(rank + 1) << 40), wire);
    }
    kernels_->set_ranks_of_gpu(ranks_of_gpu);
    take_launched();
  }
  static std::byte* address(std::uintptr_t value) { return reinterpret_cast<std::byte*>(value); }

  // `bytes` of each share, or of the message, from an address that is `shift` beyond an aligned
  // one.
  std::vector<Launched> launch(CollectiveKind kind, std::size_t bytes, std::uintptr_t shift = 0,
                               Algorithm algorithm = Algorithm::kLL, ReduceOp op = ReduceOp::kSum) {
    const bool is_root = world_ == 1;
    std::byte* const input = address(kInput + shift);
    std::byte* const output = address(kOutput + shift);
    std::vector<Part> in;
    std::vector<Part> out;
    for (std::size_t rank = 0; rank < static_cast<std::size_t>(world_); ++rank) {
      in.push_back({input + rank * bytes, bytes / sizeof(float)});
      out.push_back({output + rank * bytes, bytes / sizeof(float)});
    }
    CollectiveArgs args;
    args.kind = kind;
    args.dtype = Dtype::kFloat32;
    args.op = op;
    args.count = bytes / sizeof(float);
    args.input = input;
    args.output = output;
    if (kind == CollectiveKind::kReduceScatter || kind == CollectiveKind::kAllToAll ||
        (kind == CollectiveKind::kScatter && is_root)) {
      args.input_parts = in;
    }
    if (kind == CollectiveKind::kAllGather || kind == CollectiveKind::kAllToAll ||
        (kind == CollectiveKind::kGather && is_root)) {
      args.output_parts = out;
    }
    if (!args.input_parts.empty() || kind == CollectiveKind::kScatter) args.input = nullptr;
    if (!args.output_parts.empty() || kind == CollectiveKind::kGather) args.output = nullptr;
    Plan plan;
    plan.algorithm = algorithm;
    plan.channels = kMaxChannels;
    kernels_->launch(args, plan, {});
    return take_launched();
  }
  std::vector<Launched> transfer(const std::vector<TransferOp>& ops) {
    kernels_->transfer(ops, {});
    return take_launched();
  }
  static TransferOp op(std::size_t bytes, int peer, bool is_send) {
    return {address(is_send ? kInput : kOutput), bytes, 0, peer, is_send};
  }

 private:
  static constexpr std::uintptr_t kInput = 7ull << 36;
  static constexpr std::uintptr_t kOutput = 7ull << 37;

  const int world_;
  const std::unique_ptr<DevicePage> page_ = std::make_unique<DevicePage>();
  std::unique_ptr<GroupKernels> kernels_;
};

constexpr WireKind kWires[] = {WireKind::kLL, WireKind::kLine};

void expect_kernels(const std::vector<Launched>& launched, const std::string& what) {
  EXPECT_FALSE(launched.empty()) << what;
  for (const Launched& each : launched) {
    EXPECT_NE(each.kernel, "") << what;
    EXPECT_TRUE(each.threads >= 32 && each.threads <= 1024 && each.threads % 32 == 0) << what;
    EXPECT_TRUE(each.blocks >= 1 && each.blocks <= 196) << what;
  }
}

TEST(GpuLaunch, EveryCallLaunchesKernelsThatThereAre) {
  for (const int world : {1, 2, 3, 4, 5, 8}) {
    for (const WireKind wire : kWires) {
      Group group(world, wire);
      for (int kind = 0; kind < kCollectiveKindCount; ++kind) {
        for (const std::size_t bytes : {std::size_t{0}, std::size_t{4}, std::size_t{4096},
                                        std::size_t{1} << 19, std::size_t{1} << 26}) {
          for (const auto algorithm : {Algorithm::kLL, Algorithm::kLLTwoShot, Algorithm::kBulk}) {
            if (world == 1 && algorithm == Algorithm::kBulk) continue;  // never planned
            const auto each = static_cast<CollectiveKind>(kind);
            for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kPreMulSum}) {
              expect_kernels(group.launch(each, bytes, bytes == 4096 ? 4 : 0, algorithm, op),
                             std::string(collective_name(each)) + " of " + std::to_string(bytes) +
                                 " bytes, world " + std::to_string(world));
            }
          }
        }
      }
    }
  }
}

TEST(GpuLaunch, SmallCallsGoStraightOn) {
  const auto kernel = [](Group& group, CollectiveKind kind, std::size_t bytes,
                         std::uintptr_t shift = 0, ReduceOp op = ReduceOp::kSum) {
    const std::vector<Launched> launched = group.launch(kind, bytes, shift, Algorithm::kLL, op);
    return launched.size() == 1 ? launched[0].kernel : std::to_string(launched.size());
  };
  const auto all_reduce = CollectiveKind::kAllReduce;
  Group two(2, WireKind::kLine);
  EXPECT_EQ(kernel(two, all_reduce, 256), "sum straight 2 whole");
  EXPECT_EQ(kernel(two, all_reduce, 256, 4), "sum straight 2 any");
  EXPECT_EQ(kernel(two, all_reduce, 260), "sum straight 2 any");
  EXPECT_EQ(kernel(two, all_reduce, 256, 0, ReduceOp::kAvg), "sum straight 2 whole");
  EXPECT_EQ(kernel(two, all_reduce, 256, 0, ReduceOp::kPreMulSum), "sum wire 2");
  EXPECT_EQ(kernel(two, all_reduce, 64 * 32 * 480), "sum straight 2 whole");
  EXPECT_EQ(kernel(two, all_reduce, 64 * 32 * 480 + 16), "sum straight 2 rounds");
  EXPECT_EQ(kernel(two, all_reduce, 64 * 32 * 480 + 16, 4), "sum wire 2");
  EXPECT_EQ(kernel(two, all_reduce, 7 << 20), "sum straight 2 rounds");
  const auto launches = two.launch(all_reduce, 8 << 20, 0, Algorithm::kLL, ReduceOp::kSum);
  ASSERT_EQ(launches.size(), 2u);
  EXPECT_EQ(launches[0].kernel, "sum straight 2 rounds");
  EXPECT_EQ(launches[1].kernel, "sum straight 2 whole") << "which has 0.1 MiB left";
  EXPECT_EQ(kernel(two, CollectiveKind::kAllToAll, 256), "share straight 2 whole");
  EXPECT_EQ(kernel(two, CollectiveKind::kAllToAll, 2 << 20), "share straight 2 rounds");
  EXPECT_EQ(kernel(two, CollectiveKind::kBarrier, 0), "barrier straight 2 whole");
  Group three(3, WireKind::kLine);
  EXPECT_EQ(kernel(three, all_reduce, 256), "sum wire 0");
  EXPECT_EQ(kernel(three, CollectiveKind::kBarrier, 0), "barrier wire 0");
  Group four(4, WireKind::kLine);
  EXPECT_EQ(kernel(four, CollectiveKind::kBroadcast, 256 << 10), "move straight 4 whole");
  EXPECT_EQ(kernel(four, CollectiveKind::kAllGather, 1 << 20), "move straight 4 rounds");
  Group eight(8, WireKind::kLine);
  EXPECT_EQ(kernel(eight, all_reduce, 256), "sum straight 8 whole");
  EXPECT_EQ(kernel(eight, all_reduce, 256, 4), "sum wire 8");
  Group by_ll(2, WireKind::kLL);
  EXPECT_EQ(kernel(by_ll, all_reduce, 256), "sum wire 2");
  EXPECT_EQ(kernel(by_ll, CollectiveKind::kBarrier, 0), "barrier wire 2");
}

// NOTE [Blocks of a multiprocessor] in wire_params.hpp, of which a GPU has 128 at least.
TEST(GpuLaunch, BlocksOfRanksThatShareAGpuFitOnIt) {
  for (const int world : {2, 4, 8, 16, 64}) {
    Group group(world, WireKind::kLine, world);
    for (int kind = 0; kind < kCollectiveKindCount; ++kind) {
      for (const std::size_t bytes : {std::size_t{64} << 10, std::size_t{5'242'876}}) {
        for (const auto algorithm : {Algorithm::kLL, Algorithm::kLLTwoShot, Algorithm::kBulk}) {
          const auto each = static_cast<CollectiveKind>(kind);
          for (const auto& launch : group.launch(each, bytes, 4, algorithm, ReduceOp::kSum)) {
            const int of_multiprocessor = launch.threads <= kWireTiles * kTileThreads ? 2 : 1;
            // The last block of shares copies the own one, and waits for nobody.
            const int idle = each == CollectiveKind::kAllToAll && world > 2 ? 1 : 0;
            const int waiting = static_cast<int>(launch.blocks) - idle;
            EXPECT_LE(waiting * world, 128 * of_multiprocessor)
                << launch.kernel << ", " << launch.threads << " threads, " << bytes << " bytes of "
                << collective_name(each) << " among " << world;
          }
        }
      }
    }
  }
}

// NOTE [Sets of tiles] in tile_sets.cuh: the warps of its blocks are counted on.
TEST(GpuLaunch, SetsHaveAllThreads) {
  Group group(2, WireKind::kLine);
  const auto launched =
      group.launch(CollectiveKind::kAllReduce, 64, 0, Algorithm::kLL, ReduceOp::kPreMulSum);
  ASSERT_EQ(launched.size(), 1u);
  EXPECT_EQ(launched[0].threads, static_cast<unsigned>(kMostWireThreads));
}

TEST(GpuLaunch, LoneMessagesGoStraightOn) {
  Group group(4, WireKind::kLine);
  const auto one = group.transfer({Group::op(4096, 0, true), Group::op(64, 2, false)});
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].kernel, "box whole");
  EXPECT_EQ(group.transfer({Group::op(4100, 0, true)})[0].kernel, "box any");
  EXPECT_EQ(group.transfer({Group::op(4096, 0, true), Group::op(8, 0, true)})[0].kernel,
            "transfer");
  const auto many = group.transfer({Group::op(std::size_t{8} << 20, 0, true)});
  EXPECT_EQ(many[0].kernel, "boxes whole");
  EXPECT_EQ(many[0].threads, 16u * 32u) << "a box of four ranks has 48 tiles";
  EXPECT_EQ(group.transfer({Group::op((std::size_t{8} << 20) + 4, 0, true)})[0].kernel,
            "boxes any");
  for (const std::size_t mib : {16, 1024}) {
    EXPECT_EQ(group.transfer({Group::op(mib << 20, 0, true)})[0].kernel, "transfer")
        << "many boxes, and chunks";
  }
  Group by_ll(4, WireKind::kLL);
  EXPECT_EQ(by_ll.transfer({Group::op(4096, 0, true)})[0].kernel, "transfer");
}

}  // namespace
}  // namespace symm::test
