// Every collective by every algorithm of the GPU, against the host's reduction kernels and plain
// copies: all bytes must be equal.
#include "kernels/gpu/interface/group_kernels.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <tuple>

#include "kernels/core/reduce_op.hpp"
#include "kernels/cpu/reduce_kernels.hpp"
#include "kernels/plan/plan.hpp"
#include "test/gpu/device_rig.hpp"

namespace symm::test {
namespace {

using Bytes = std::vector<std::byte>;
constexpr std::byte kPoison{0xA5};
// Device buffers start this far from an aligned address in the misaligned cases.
constexpr std::size_t kOdd = 16;

struct CollectiveCall {
  CollectiveKind kind;
  Plan plan;
  Dtype dtype = Dtype::kInt32;
  ReduceOp op = ReduceOp::kSum;
  std::vector<std::size_t> counts;  // by rank: shares; for the others all are equal
  int root = 0;
  bool in_place = false;
  std::size_t offset = 0;  // of every buffer from an aligned address
};

std::string describe(const CollectiveCall& call, int world) {
  std::string text(collective_name(call.kind));
  text += " by " + std::string(algorithm_name(call.plan.algorithm)) + " of " +
          std::string(dtype_name(call.dtype)) + " " + std::string(reduce_op_name(call.op)) +
          ", world " + std::to_string(world) + ", root " + std::to_string(call.root) + ", counts";
  for (const std::size_t count : call.counts) text += " " + std::to_string(count);
  return text + (call.in_place ? ", in place" : "") + ", offset " + std::to_string(call.offset);
}

bool has_parts(CollectiveKind kind) {
  return kind == CollectiveKind::kAllGather || kind == CollectiveKind::kGather ||
         kind == CollectiveKind::kScatter || kind == CollectiveKind::kReduceScatter;
}
bool reads_parts(CollectiveKind kind) {
  return kind == CollectiveKind::kScatter || kind == CollectiveKind::kReduceScatter;
}
double factor_of(int rank) { return 0.25 * rank - 0.3; }

// Runs calls on a rig and compares.
class Checker {
 public:
  explicit Checker(DeviceRig& rig) : rig_(rig), world_(static_cast<std::size_t>(rig.world())) {}

  void run(const CollectiveCall& call) {
    SCOPED_TRACE(describe(call, rig_.world()));
    call_ = call;
    size_ = dtype_bytes(call.dtype);
    total_ = std::accumulate(call.counts.begin(), call.counts.end(), std::size_t{0});
    make_inputs();
    launch_all();
    rig_.finish();
    rig_.expect_healthy();
    for (std::size_t rank = 0; rank < world_; ++rank) compare(rank);
  }

 private:
  std::size_t input_count(std::size_t rank) const {
    return reads_parts(call_.kind) ? total_ : call_.counts[rank];
  }
  std::size_t output_count(std::size_t rank) const {
    return has_parts(call_.kind) && !reads_parts(call_.kind) ? total_ : call_.counts[rank];
  }
  std::size_t share_begin(std::size_t rank) const {
    return std::accumulate(call_.counts.begin(),
                           call_.counts.begin() + static_cast<std::ptrdiff_t>(rank),
                           std::size_t{0});
  }
  // In place means what c10d means by it: the share of an output list, or the same tensor.
  std::size_t input_offset(std::size_t rank) const {
    const bool in_list =
        call_.kind == CollectiveKind::kAllGather || call_.kind == CollectiveKind::kGather;
    return in_list ? share_begin(rank) * size_ : 0;
  }

  void make_inputs() {
    inputs_.clear();
    in_.clear();
    out_.clear();
    for (std::size_t rank = 0; rank < world_; ++rank) {
      Bytes input(input_count(rank) * size_);
      for (std::byte& b : input) b = static_cast<std::byte>(random_() & 0xff);
      if (call_.dtype == Dtype::kBool) {
        for (std::byte& b : input) b &= std::byte{1};
      }
      inputs_.push_back(input);
      in_.push_back(std::make_unique<DeviceBytes>(input.size()));
      out_.push_back(std::make_unique<DeviceBytes>(output_count(rank) * size_));
      check(gpuMemset(out_[rank]->at(0), static_cast<int>(kPoison), out_[rank]->bytes() + 64),
            "Memset");
      std::byte* to = call_.in_place ? out_[rank]->at(call_.offset) + input_offset(rank)
                                     : in_[rank]->at(call_.offset);
      check(gpuMemcpy(to, input.data(), input.size(), gpuMemcpyHostToDevice), "Memcpy");
    }
    check(gpuDeviceSynchronize(), "DeviceSynchronize");
  }

  void launch_all() {
    for (std::size_t rank = 0; rank < world_; ++rank) {
      const int r = static_cast<int>(rank);
      std::byte* output = out_[rank]->at(call_.offset);
      std::byte* input = call_.in_place ? output + input_offset(rank) : in_[rank]->at(call_.offset);
      std::vector<Part> parts;
      for (std::size_t p = 0; p < world_ && has_parts(call_.kind); ++p) {
        std::byte* base = reads_parts(call_.kind) ? input : output;
        parts.push_back({base + share_begin(p) * size_, call_.counts[p]});
      }
      CollectiveArgs args;
      args.kind = call_.kind;
      args.dtype = call_.dtype;
      args.op = call_.op;
      args.root = call_.root;
      args.factor = factor_of(r);
      args.count = call_.counts[rank];
      if (!reads_parts(call_.kind)) args.input = input;
      if (!has_parts(call_.kind) || reads_parts(call_.kind)) args.output = output;
      if (reads_parts(call_.kind)) {
        args.input_parts = parts;
      } else {
        args.output_parts = parts;
      }
      rig_.kernels(r).launch(args, call_.plan, 0, rig_.options(r));
    }
  }

  Bytes reduced(std::size_t begin, std::size_t count) const {
    Bytes result(count * size_);
    std::vector<const void*> sources;
    std::vector<double> factors;
    for (std::size_t rank = 0; rank < world_; ++rank) {
      sources.push_back(inputs_[rank].data() + begin * size_);
      factors.push_back(factor_of(static_cast<int>(rank)));
    }
    if (count > 0) {
      reduce_kernels(call_.dtype, call_.op, Isa::kBaseline)
          .reduce(result.data(), sources.data(), static_cast<int>(world_), factors.data(),
                  static_cast<int>(world_), count);
    }
    return result;
  }

  // What rank's output must hold; nothing where it must stay as it was.
  Bytes expected(std::size_t rank) const {
    const auto root = static_cast<std::size_t>(call_.root);
    switch (call_.kind) {
      case CollectiveKind::kAllReduce:
        return reduced(0, call_.counts[rank]);
      case CollectiveKind::kReduce:
        return rank == root ? reduced(0, call_.counts[rank]) : Bytes{};
      case CollectiveKind::kReduceScatter:
        return reduced(share_begin(rank), call_.counts[rank]);
      case CollectiveKind::kBroadcast:
        return inputs_[root];
      case CollectiveKind::kScatter: {
        const std::byte* share = inputs_[root].data() + share_begin(rank) * size_;
        return Bytes(share, share + call_.counts[rank] * size_);
      }
      case CollectiveKind::kGather:
        if (rank != root) return {};
        break;
      default:
        break;
    }
    Bytes all;
    for (const Bytes& input : inputs_) all.insert(all.end(), input.begin(), input.end());
    return all;
  }

  void compare(std::size_t rank) {
    const DeviceBytes& out = *out_[rank];
    Bytes all(out.bytes() + 64);
    check(gpuMemcpy(all.data(), out.at(0), all.size(), gpuMemcpyDeviceToHost), "Memcpy");
    const Bytes want = expected(rank);
    const bool untouched = want.empty() && out.bytes() > 0;
    if (untouched && call_.in_place) return;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const bool inside = i >= call_.offset && i < call_.offset + want.size();
      const std::byte wanted = inside ? want[i - call_.offset] : kPoison;
      ASSERT_EQ(static_cast<int>(all[i]), static_cast<int>(wanted))
          << "rank " << rank << ", byte " << i
          << (inside ? " of the output" : " outside the output");
    }
  }

  DeviceRig& rig_;
  std::size_t world_;
  std::mt19937 random_{12345};
  CollectiveCall call_;
  std::size_t size_ = 1;
  std::size_t total_ = 0;
  std::vector<Bytes> inputs_;
  std::vector<std::unique_ptr<DeviceBytes>> in_;
  std::vector<std::unique_ptr<DeviceBytes>> out_;
};

Plan plan(Algorithm algorithm, int channels) {
  Plan plan;
  plan.algorithm = algorithm;
  plan.channels = channels;
  return plan;
}

std::vector<Plan> every_plan(CollectiveKind kind) {
  using enum Algorithm;
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return {plan(kLL, 16),      plan(kLLTwoShot, 32), plan(kOneShot, 32),
              plan(kTwoShot, 48), plan(kRing, 32),      plan(kBulk, 8)};
    case CollectiveKind::kReduce:
      return {plan(kLL, 16), plan(kOneShot, 8), plan(kTwoShot, 48), plan(kBulk, 8)};
    default:
      return {plan(kLL, 16), plan(kPipelined, 48), plan(kBulk, 8)};
  }
}

// Of more than four ranks no pipelines, and so few blocks that all fit on one GPU.
std::vector<Plan> plans_of(CollectiveKind kind, int world) {
  std::vector<Plan> plans = every_plan(kind);
  if (world <= 4) return plans;
  std::erase_if(plans, [](const Plan& plan) {
    return plan.algorithm != Algorithm::kLL && plan.algorithm != Algorithm::kLLTwoShot &&
           plan.algorithm != Algorithm::kBulk;
  });
  for (Plan& plan : plans) plan.channels = std::min(plan.channels, 128 / world);
  return plans;
}

constexpr CollectiveKind kKinds[] = {CollectiveKind::kAllReduce,     CollectiveKind::kReduce,
                                     CollectiveKind::kReduceScatter, CollectiveKind::kBroadcast,
                                     CollectiveKind::kAllGather,     CollectiveKind::kGather,
                                     CollectiveKind::kScatter};

// By world size and wire.
class GroupKernelsTest : public testing::TestWithParam<std::tuple<int, WireKind>> {
 protected:
  void SetUp() override {
    if (!gpu_visible()) GTEST_SKIP() << "no GPU is visible";
  }
  int world() const { return std::get<0>(GetParam()); }
  WireKind wire() const { return std::get<1>(GetParam()); }
  std::vector<std::size_t> even(std::size_t count) const {
    return std::vector<std::size_t>(static_cast<std::size_t>(world()), count);
  }
};

TEST_P(GroupKernelsTest, EveryAlgorithmAtManySizes) {
  DeviceRig rig(world(), {.wire = wire()});
  Checker checker(rig);
  int turn = 0;
  for (const CollectiveKind kind : kKinds) {
    for (const Plan& plan : plans_of(kind, world())) {
      for (const std::size_t count : {0u, 1u, 3u, 1000u, 40'000u, 1'500'001u}) {
        checker.run({.kind = kind,
                     .plan = plan,
                     .dtype = Dtype::kInt32,
                     .counts = even(count),
                     .root = turn % world(),
                     .in_place = turn % 2 == 1 && !reads_parts(kind),
                     .offset = turn % 3 == 0 ? kOdd / 4 : 0});
        if (HasFatalFailure()) return;
        ++turn;
      }
    }
  }
}

TEST_P(GroupKernelsTest, UnevenShares) {
  DeviceRig rig(world(), {.wire = wire()});
  Checker checker(rig);
  for (const CollectiveKind kind : {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter}) {
    for (const Plan& plan : plans_of(kind, world())) {
      std::vector<std::size_t> counts = even(0);
      for (std::size_t r = 0; r < counts.size(); ++r) counts[r] = r == 1 ? 0 : 33'333 * r + 7;
      checker.run({.kind = kind, .plan = plan, .dtype = Dtype::kInt16, .counts = counts});
    }
  }
}

TEST_P(GroupKernelsTest, EveryReductionRule) {
  DeviceRig rig(world(), {.wire = wire()});
  Checker checker(rig);
  for (int d = 0; d < kDtypeCount; ++d) {
    for (int o = 0; o < kReduceOpCount; ++o) {
      const auto dtype = static_cast<Dtype>(d);
      const auto op = static_cast<ReduceOp>(o);
      if (!op_supports(op, dtype)) continue;
      for (const Plan& plan : plans_of(CollectiveKind::kAllReduce, world())) {
        checker.run({.kind = CollectiveKind::kAllReduce,
                     .plan = plan,
                     .dtype = dtype,
                     .op = op,
                     .counts = even(5003),
                     .offset = plan.algorithm == Algorithm::kRing ? dtype_bytes(dtype) : 0});
        if (HasFatalFailure()) return;
      }
      for (const CollectiveKind kind : {CollectiveKind::kReduce, CollectiveKind::kReduceScatter}) {
        for (const Plan& plan : plans_of(kind, world())) {
          checker.run({.kind = kind, .plan = plan, .dtype = dtype, .op = op, .counts = even(771)});
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(GroupKernelsTest, MessagesLargerThanABoxTakeSeveralLaunches) {
  DeviceRig rig(world(), {.workspace_bytes = kLeastDeviceWorkspace, .wire = wire()});
  Checker checker(rig);
  // What one launch of 16 blocks takes.
  const std::size_t buffer =
      std::size_t{16} * rig.layout().wire_box_tiles(wire()) * wire_tile(wire()).bytes;
  for (const CollectiveKind kind : kKinds) {
    for (const std::size_t bytes : {buffer - 4, buffer, buffer + 4, 3 * buffer + 20}) {
      checker.run({.kind = kind, .plan = plan(Algorithm::kLL, 16), .counts = even(bytes / 4)});
      if (HasFatalFailure()) return;
    }
  }
  for (const std::size_t bytes : {buffer * 2, 9 * buffer + 12}) {
    checker.run({.kind = CollectiveKind::kAllReduce,
                 .plan = plan(Algorithm::kLLTwoShot, 32),
                 .counts = even(bytes / 4)});
  }
}

// Each counter passes through 2^31 and 2^32 by itself (epochs of an LL wire with a refresh of all
// boxes) while calls go on.
TEST_P(GroupKernelsTest, CountersPassTheWidthsOfWords) {
  constexpr std::uint64_t kSigned = (std::uint64_t{1} << 31) - 6;
  constexpr std::uint64_t kUnsigned = (std::uint64_t{1} << 32) - 6;
  constexpr FirstCounts kStarts[] = {
      {.steps = kSigned},       {.steps = kSigned, .ready = kSigned},
      {.steps = kUnsigned},     {.steps = kUnsigned, .ready = kUnsigned},
      {.wire = kSigned},        {.wire = kUnsigned},
      {.bulk = (1u << 31) - 6}, {.bulk = 0u - 6}};
  for (const FirstCounts& first : kStarts) {
    DeviceRig rig(world(),
                  {.workspace_bytes = kLeastDeviceWorkspace, .first = first, .wire = wire()});
    Checker checker(rig);
    for (int round = 0; round < 4; ++round) {
      for (const CollectiveKind kind : kKinds) {
        for (const Plan& plan : plans_of(kind, world())) {
          checker.run({.kind = kind,
                       .plan = plan,
                       .counts = even(static_cast<std::size_t>(700 + round)),
                       .root = round % world()});
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// `ready` of a root that has not published for 2^31 steps of others does not read as reached.
TEST_P(GroupKernelsTest, ACounterThatStandsStillIsWaitedFor) {
  if (world() == 1) GTEST_SKIP() << "there is nobody to wait for";
  constexpr std::size_t kCount = 1000;
  for (const std::uint64_t steps : {(std::uint64_t{1} << 31) + 2, (std::uint64_t{1} << 32) - 2,
                                    (std::uint64_t{1} << 32) + 2, std::uint64_t{3} << 31}) {
    DeviceRig rig(
        world(), {.workspace_bytes = kLeastDeviceWorkspace, .first = {.steps = steps, .ready = 0}});
    std::vector<std::unique_ptr<DeviceBytes>> data;
    for (int rank = 0; rank < world(); ++rank) {
      data.push_back(std::make_unique<DeviceBytes>(kCount * 4));
      check(gpuMemset(data.back()->at(0), rank + 1, kCount * 4), "Memset");
    }
    check(gpuDeviceSynchronize(), "DeviceSynchronize");
    const int root = world() - 1;
    for (int rank = 0; rank < world(); ++rank) {
      CollectiveArgs args;
      args.kind = CollectiveKind::kBroadcast;
      args.dtype = Dtype::kInt32;
      args.root = root;
      args.count = kCount;
      args.input = args.output = data[static_cast<std::size_t>(rank)]->at(0);
      if (rank == root) {
        EXPECT_TRUE(rig.stays_busy(0)) << steps;
      }
      rig.kernels(rank).launch(args, plan(Algorithm::kPipelined, 4), 0, rig.options(rank));
    }
    rig.finish();
    rig.expect_healthy();
    for (const auto& each : data) {
      Bytes got(kCount * 4);
      check(gpuMemcpy(got.data(), each->at(0), got.size(), gpuMemcpyDeviceToHost), "Memcpy");
      EXPECT_EQ(got, Bytes(got.size(), static_cast<std::byte>(world()))) << steps;
    }
  }
}

// Ranks run ahead of each other: many calls are queued before anybody waits.
TEST_P(GroupKernelsTest, ManyCallsInFlight) {
  DeviceRig rig(world(), {.workspace_bytes = kLeastDeviceWorkspace, .wire = wire()});
  constexpr std::size_t kCount = 3001;
  constexpr int kCalls = 200;
  std::vector<std::unique_ptr<DeviceBytes>> data;
  for (int rank = 0; rank < world(); ++rank) {
    data.push_back(std::make_unique<DeviceBytes>(kCount * 4));
    const std::vector<std::int32_t> start(kCount, rank + 1);
    check(gpuMemcpy(data.back()->at(0), start.data(), kCount * 4, gpuMemcpyHostToDevice), "Memcpy");
  }
  for (int rank = 0; rank < world(); ++rank) {
    for (int i = 0; i < kCalls; ++i) {
      CollectiveArgs args;
      args.kind = i % 3 == 2 ? CollectiveKind::kBroadcast : CollectiveKind::kAllReduce;
      args.dtype = Dtype::kInt32;
      args.op = i % 3 == 0 ? ReduceOp::kSum : ReduceOp::kMax;
      args.root = i % world();
      args.count = kCount;
      args.input = args.output = data[static_cast<std::size_t>(rank)]->at(0);
      const Algorithm algorithm = args.kind == CollectiveKind::kBroadcast
                                      ? (i % 2 == 0 ? Algorithm::kLL : Algorithm::kPipelined)
                                      : (i % 2 == 0 ? Algorithm::kLL : Algorithm::kTwoShot);
      rig.kernels(rank).launch(args, plan(algorithm, 8), 0, rig.options(rank));
    }
  }
  rig.finish();
  rig.expect_healthy();
  std::uint32_t value = 0;
  for (int rank = 0; rank < world(); ++rank) value += static_cast<std::uint32_t>(rank + 1);
  for (int i = 1; i < kCalls; ++i) {
    if (i % 3 == 0) value *= static_cast<std::uint32_t>(world());
  }
  for (int rank = 0; rank < world(); ++rank) {
    std::vector<std::uint32_t> got(kCount);
    check(gpuMemcpy(got.data(), data[static_cast<std::size_t>(rank)]->at(0), kCount * 4,
                    gpuMemcpyDeviceToHost),
          "Memcpy");
    ASSERT_EQ(got, std::vector<std::uint32_t>(kCount, value)) << "rank " << rank;
    EXPECT_EQ(load_acquire(&rig.page(rank).completed), static_cast<std::uint64_t>(kCalls));
  }
}

// So many ranks that a warp of a lane serves several of them.
TEST(ManyRanks, WarpsOfALaneShareTheirPeers) {
  if (!gpu_visible()) GTEST_SKIP() << "no GPU is visible";
  constexpr int kWorld = 21;
  DeviceRig rig(kWorld, {.workspace_bytes = 8u << 20});
  Checker checker(rig);
  for (const CollectiveKind kind : kKinds) {
    for (const std::size_t count : {1u, 5003u, 200'001u}) {
      checker.run({.kind = kind,
                   .plan = plan(Algorithm::kBulk, 4),
                   .dtype = Dtype::kBFloat16,
                   .counts = std::vector<std::size_t>(kWorld, count),
                   .root = 17});
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, GroupKernelsTest,
                         testing::Combine(testing::Values(1, 2, 3, 4, 8),
                                          testing::Values(WireKind::kLL, WireKind::kLine)),
                         [](const auto& i) {
                           const bool is_line = std::get<1>(i.param) == WireKind::kLine;
                           return std::to_string(std::get<0>(i.param)) + (is_line ? "Line" : "LL");
                         });

}  // namespace
}  // namespace symm::test
