// When the engine of a device carries out a call by multimem, with which addresses, and how it
// refuses. The GPUs are fake: multimem itself was never run on hardware.
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "test/support/device_ranks.hpp"
#include "test/support/environment.hpp"
#include "test/support/expect_error.hpp"
#include "test/support/temporary_directory.hpp"

namespace symm {
namespace {

using test::DeviceRank;
using test::error_of;
using test::expect_error;
using test::FakeLaunch;
using test::FakeMulticastMemory;
using test::register_segment;
using test::ScopedVariable;
using Words = std::vector<std::string>;

constexpr CollectiveKind kFour[] = {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter,
                                    CollectiveKind::kAllGather, CollectiveKind::kBroadcast};
constexpr std::size_t kSegmentBytes = 1 << 20;
constexpr std::size_t kInputOffset = 64;
constexpr std::size_t kOutputOffset = 512 << 10;

// One call: the message or each share has `count` elements, all arrays follow each other.
struct Call {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  Dtype dtype = Dtype::kBFloat16;
  ReduceOp op = ReduceOp::kSum;
  std::size_t count = 1024;
  std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::size_t second_count = count;  // of the share of rank 1
};

void launch(DeviceRank& rank, const Call& call) {
  const auto world = static_cast<std::size_t>(rank.communicator.world_size());
  const auto own = static_cast<std::size_t>(rank.number());
  const std::size_t size = dtype_bytes(call.dtype);
  std::vector<Part> parts;
  std::byte* next = reduces(call.kind) ? call.input : call.output;
  for (std::size_t r = 0; r < world; ++r) {
    parts.push_back({next, r == 1 ? call.second_count : call.count});
    next += parts.back().count * size;
  }
  CollectiveArgs args;
  args.kind = call.kind;
  args.dtype = call.dtype;
  args.op = call.op;
  args.root = 1;
  args.count = parts[own].count;
  args.input = call.input;
  args.output = call.output;
  if (call.kind == CollectiveKind::kReduceScatter) args.input_parts = parts;
  if (call.kind == CollectiveKind::kAllGather) args.output_parts = parts;
  rank.launch(args);
}

class DeviceMultimemTest : public test::DeviceRanksTest {
 protected:
  // The switches are on where multicast must not be used; they are turned off for fake GPUs alone.
  void SetUp() override {
    for (const char* name :
         {"SYMM_DISABLE_MULTICAST", "TORCH_SYMM_MEM_DISABLE_MULTICAST", "NVSHMEM_DISABLE_NVLS"}) {
      off_.emplace_back(std::make_unique<ScopedVariable>(name, std::nullopt));
    }
    for (const char* name : {"SYMM_ALGO", "SYMM_DETERMINISTIC", "SYMM_TUNING_FILE"}) {
      off_.emplace_back(std::make_unique<ScopedVariable>(name, std::nullopt));
    }
    for (int gpu = 0; gpu < 4; ++gpu) gpus_[gpu].fake_multicast().present = true;
    adjust_ = [](CommunicatorConfig& config) { config.deterministic = false; };
  }

  // Every rank is refused with `words`, launches nothing, and can go on.
  void expect_refusal(const Call& call, const Words& words,
                      const std::function<std::shared_ptr<Segment>(DeviceRank&)>& segment_of) {
    run_group(
        3,
        [&](DeviceRank& rank) {
          const std::shared_ptr<Segment> segment = segment_of(rank);
          std::vector<std::byte> plain(kSegmentBytes);
          std::byte* const base = segment ? segment->base(rank.number()) : plain.data();
          Call own = call;
          own.input = base + kInputOffset + reinterpret_cast<std::uintptr_t>(call.input);
          own.output = base + kOutputOffset + reinterpret_cast<std::uintptr_t>(call.output);
          Words all = words;
          all.push_back(std::string(collective_name(call.kind)) + " on rank " +
                        std::to_string(rank.number()) + ": ");
          expect_error(error_of([&] { launch(rank, own); }), ErrorCode::kUnsupported, all);
          EXPECT_TRUE(rank.kernels().launches().empty());
          rank.launch(CollectiveArgs{});
          EXPECT_EQ(rank.kernels().launches().size(), 1u);
          EXPECT_FALSE(rank.communicator.failure().has_value());
          rank.meet();
        },
        Algorithm::kMultimem);
  }
  void expect_refusal(const Call& call, const Words& words) {
    expect_refusal(call, words,
                   [](DeviceRank& rank) { return register_segment(rank, kSegmentBytes, true); });
  }
  int multicast_objects() const {
    int objects = 0;
    for (int gpu = 0; gpu < 4; ++gpu) objects += gpus_[gpu].fake_multicast().objects;
    return objects;
  }

  std::vector<std::unique_ptr<ScopedVariable>> off_;
};

// The memory at `offset` of the group's segment `number`, as a launch should get it.
FakeMulticastMemory at(const Segment& segment, int number, std::size_t offset) {
  FakeMulticastMemory memory;
  memory.multicast = segment.multicast().base() + offset;
  for (int r = 0; r < segment.world_size(); ++r) memory.ranks.push_back(segment.base(r) + offset);
  memory.location = (static_cast<BufferLocation>(number + 1) << kLocationShift) | offset;
  return memory;
}

TEST_F(DeviceMultimemTest, LaunchesWithTheAddressesOfAllRanks) {
  run_group(
      3,
      [](DeviceRank& rank) {
        const auto other = register_segment(rank, 100, false);
        const auto first = register_segment(rank, kSegmentBytes, true);
        const auto second = register_segment(rank, kSegmentBytes, true);
        ASSERT_TRUE(first->multicast().available()) << first->multicast().why_not();
        ASSERT_NE(first->multicast().base(), second->multicast().base());
        std::vector<std::byte> plain(kSegmentBytes);
        for (const CollectiveKind kind : kFour) {
          Call call{.kind = kind};
          // What all ranks share is symmetric, the rest is this rank's own, at an odd address.
          const bool writes = kind != CollectiveKind::kReduceScatter;
          call.input = reduces(kind) ? first->base(rank.number()) + kInputOffset : plain.data() + 1;
          call.output = writes ? second->base(rank.number()) + kOutputOffset : plain.data() + 3;
          launch(rank, call);
          const FakeLaunch& made = rank.kernels().launches().back();
          EXPECT_TRUE(made.multimem) << collective_name(kind);
          EXPECT_FALSE(made.copies);
          EXPECT_EQ(made.kind, kind);
          EXPECT_EQ(made.plan, (Plan{Algorithm::kMultimem, 0, 16}));
          EXPECT_EQ(made.input,
                    reduces(kind) ? at(*first, 1, kInputOffset) : FakeMulticastMemory{});
          EXPECT_EQ(made.output, writes ? at(*second, 2, kOutputOffset) : FakeMulticastMemory{});
        }
        Call in_place{.count = 3};  // a message may end inside a unit
        in_place.input = in_place.output = first->base(rank.number()) + 4096;
        launch(rank, in_place);
        EXPECT_EQ(rank.kernels().launches().back().input, at(*first, 1, 4096));
        EXPECT_EQ(rank.kernels().launches().back().output, at(*first, 1, 4096));
        EXPECT_EQ(rank.kernels().launches().size(), 5u);
        rank.engine().check();
        rank.meet();
      },
      Algorithm::kMultimem);
  EXPECT_EQ(multicast_objects(), 3 * 3);
}

TEST_F(DeviceMultimemTest, NothingElseChoosesIt) {
  run_group(3, [](DeviceRank& rank) {
    const auto segment = register_segment(rank, std::size_t{8} << 20, true);
    ASSERT_TRUE(segment->multicast().available());
    for (const CollectiveKind kind : kFour) {
      for (const std::size_t count : {std::size_t{8}, std::size_t{1} << 14, std::size_t{1} << 20}) {
        Call call{.kind = kind, .count = count};
        call.input = call.output = segment->base(rank.number());
        std::vector<std::byte> plain(2 * count);
        if (kind == CollectiveKind::kReduceScatter) call.output = plain.data();
        if (kind == CollectiveKind::kAllGather) call.input = plain.data();
        launch(rank, call);
        EXPECT_FALSE(rank.kernels().launches().back().multimem) << collective_name(kind);
      }
    }
    rank.meet();
  });
}

// What has no multimem goes on as without, and so does what has nothing to send.
TEST_F(DeviceMultimemTest, OtherCallsTakeTheTable) {
  run_group(
      2,
      [](DeviceRank& rank) {
        rank.launch(CollectiveArgs{});
        for (const CollectiveKind kind : kFour) {
          std::byte nothing{};
          launch(rank, {.kind = kind, .count = 0, .input = &nothing, .output = &nothing});
        }
        for (const FakeLaunch& made : rank.kernels().launches()) {
          EXPECT_EQ(made.plan.algorithm, Algorithm::kLL);
        }
        EXPECT_EQ(rank.kernels().launches().size(), 5u);
      },
      Algorithm::kMultimem);
  run_group(
      1,
      [](DeviceRank& rank) {
        std::vector<float> data(4, 1.0f);
        rank.launch(test::sum_args(data));
        EXPECT_EQ(rank.kernels().launches().at(0).plan.algorithm, Algorithm::kLL);
      },
      Algorithm::kMultimem);
}

TEST_F(DeviceMultimemTest, NeedsSymmetricRegistration) {
  for (const CollectiveKind kind : kFour) {
    const Words words = {"the algorithm multimem needs an ", reduces(kind) ? "input" : "output",
                         "one array with equal shares", "symmetric=True", "another algorithm"};
    expect_refusal({.kind = kind}, words, [](DeviceRank&) { return nullptr; });
    expect_refusal({.kind = kind}, words,
                   [](DeviceRank& rank) { return register_segment(rank, kSegmentBytes, false); });
  }
}

TEST_F(DeviceMultimemTest, NeedsMulticastOnEveryRankAndSaysWhoHasNone) {
  gpus_[1].fake_multicast().present = false;
  for (const CollectiveKind kind : kFour) {
    expect_refusal({.kind = kind}, {"needs a segment with a multicast address",
                                    reduces(kind) ? "that of the input" : "that of the output",
                                    "has none: rank 1: fake GPU 1 has no multicast"});
  }
  EXPECT_EQ(multicast_objects(), 0);
}

TEST_F(DeviceMultimemTest, ASwitchKeepsItOffEverywhere) {
  for (const char* name :
       {"SYMM_DISABLE_MULTICAST", "TORCH_SYMM_MEM_DISABLE_MULTICAST", "NVSHMEM_DISABLE_NVLS"}) {
    const ScopedVariable on(name, "1");
    expect_refusal({}, {"multicast address", "rank 0: " + std::string(name) + "=1",
                        "rank 2: " + std::string(name) + "=1"});
  }
  EXPECT_EQ(multicast_objects(), 0);
}

TEST_F(DeviceMultimemTest, ReductionsNeedTheSameBitsWaived) {
  adjust_ = [](CommunicatorConfig&) {};
  for (const CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter}) {
    expect_refusal({.kind = kind}, {"multimem cannot carry out this", "same bits",
                                    "deterministic=False", "SYMM_DETERMINISTIC=0"});
  }
  const auto gather = [](DeviceRank& rank) {
    const auto segment = register_segment(rank, kSegmentBytes, true);
    std::byte* const base = segment->base(rank.number());
    launch(rank, {.kind = CollectiveKind::kAllGather, .input = base, .output = base + 4096});
    launch(rank, {.kind = CollectiveKind::kBroadcast, .input = base, .output = base});
    for (const FakeLaunch& made : rank.kernels().launches()) EXPECT_TRUE(made.multimem);
    EXPECT_EQ(rank.kernels().launches().size(), 2u);
    rank.meet();
  };
  run_group(2, gather, Algorithm::kMultimem);
  const ScopedVariable waived("SYMM_DETERMINISTIC", "0");
  run_group(
      2,
      [](DeviceRank& rank) {
        const auto segment = register_segment(rank, kSegmentBytes, true);
        launch(rank,
               {.input = segment->base(rank.number()), .output = segment->base(rank.number())});
        EXPECT_TRUE(rank.kernels().launches().at(0).multimem);
        rank.meet();
      },
      Algorithm::kMultimem);
}

TEST_F(DeviceMultimemTest, NeedsWhatTheSwitchCanAddAndPiecesOfSixteenBytes) {
  const auto shifted = [](Call call, std::uintptr_t input, std::uintptr_t output) {
    call.input = reinterpret_cast<std::byte*>(input);
    call.output = reinterpret_cast<std::byte*>(output);
    return call;
  };
  expect_refusal({.dtype = Dtype::kFloat64}, {"SUM of float64"});
  expect_refusal({.dtype = Dtype::kFloat32, .op = ReduceOp::kMax}, {"MAX of float32"});
  expect_refusal({.op = ReduceOp::kAvg}, {"AVG of bfloat16"});
  expect_refusal(shifted({}, 8, 0), {"input's offset", "multiple of 16", "got 72"});
  expect_refusal(shifted({}, 0, 2), {"output's offset", "got 524290"});
  expect_refusal(shifted({.kind = CollectiveKind::kBroadcast}, 0, 4), {"output's offset"});
  expect_refusal({.kind = CollectiveKind::kAllGather, .count = 9}, {"size of a share", "got 18"});
  expect_refusal({.kind = CollectiveKind::kReduceScatter, .count = 9}, {"size of a share"});
  for (const CollectiveKind kind : {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter}) {
    expect_refusal({.kind = kind, .count = 64, .second_count = 128}, {"equal shares"});
  }
}

TEST_F(DeviceMultimemTest, ATuningFileNamesItForSizes) {
  const test::TemporaryDirectory folder;
  const std::string path = folder.path() + "/table.json";
  const auto row = [](const std::string& rest) {
    return R"({"collective": "all_gather", "min_world": 2, "max_world": 128, )" + rest + "}";
  };
  std::ofstream(path) << R"({"copy_engine_bytes": 65536, "gpu_rows": [)"
                      << row(R"("max_bytes": 4096, "algorithm": "ll", "channels": 3)") << ", "
                      << row(R"("max_bytes": null, "algorithm": "multimem", "channels": 7)")
                      << "]}";
  const ScopedVariable file("SYMM_TUNING_FILE", path);
  adjust_ = [](CommunicatorConfig&) {};
  run_group(2, [](DeviceRank& rank) {
    const auto segment = register_segment(rank, kSegmentBytes, true);
    std::vector<std::byte> plain(kSegmentBytes);
    const auto gather = [&](std::size_t bytes, std::byte* output) {
      launch(rank, {.kind = CollectiveKind::kAllGather,
                    .dtype = Dtype::kUInt8,
                    .count = bytes,
                    .input = plain.data(),
                    .output = output});
    };
    gather(4096, segment->base(rank.number()));
    gather(4112, segment->base(rank.number()));
    gather(65536, segment->base(rank.number()));
    const auto& launches = rank.kernels().launches();
    ASSERT_EQ(launches.size(), 3u);
    EXPECT_EQ(launches[0].plan.algorithm, Algorithm::kLL);
    EXPECT_TRUE(launches[1].multimem);
    EXPECT_EQ(launches[1].plan.channels, 7);
    EXPECT_TRUE(launches[2].copies) << "copy_engine_bytes comes before rows";
    expect_error(error_of([&] { gather(4112, plain.data() + 65536); }), ErrorCode::kUnsupported,
                 {"all_gather", "multimem", "symmetric=True"});
    EXPECT_EQ(launches.size(), 3u);
    rank.meet();
  });
}

TEST_F(DeviceMultimemTest, CopyEnginesDoNotTakeItsPlace) {
  const test::TemporaryDirectory folder;
  const std::string path = folder.path() + "/table.json";
  std::ofstream(path) << R"({"copy_engine_bytes": 16})";
  const ScopedVariable file("SYMM_TUNING_FILE", path);
  run_group(
      2,
      [](DeviceRank& rank) {
        const auto segment = register_segment(rank, kSegmentBytes, true);
        std::byte* const base = segment->base(rank.number());
        launch(rank, {.kind = CollectiveKind::kBroadcast, .input = base, .output = base});
        EXPECT_TRUE(rank.kernels().launches().at(0).multimem);
        rank.meet();
      },
      Algorithm::kMultimem);
}

// Ranks that pass tensors at different locations are told apart by their kernels, which compare
// them: the locations of both arrays reach the kernels.
TEST_F(DeviceMultimemTest, DifferentPlacesReachTheKernels) {
  run_group(
      2,
      [](DeviceRank& rank) {
        const auto segment = register_segment(rank, kSegmentBytes, true);
        std::byte* const base = segment->base(rank.number());
        const std::size_t shift = rank.number() == 0 ? 0 : 4096;
        launch(rank, {.input = base + shift, .output = base + kOutputOffset});
        const FakeLaunch& made = rank.kernels().launches().at(0);
        EXPECT_EQ(made.input.location, (BufferLocation{1} << kLocationShift) | shift);
        EXPECT_EQ(made.output.location, (BufferLocation{1} << kLocationShift) | kOutputOffset);
        rank.meet();
        if (rank.number() == 1) {
          rank.kernels().give_up(DeviceFault::kAsymmetricUse, 0, 1, made.input.location, 2);
        }
        expect_error(rank.failure(), ErrorCode::kMismatch,
                     {"all_reduce", "multimem", "rank 0", "rank 1", "symmetric registration"});
        rank.meet();
      },
      Algorithm::kMultimem);
}

// A rank that passes an ordinary tensor is refused alone; its next call tells everybody.
TEST_F(DeviceMultimemTest, AsymmetricUseIsFoundByTheNextCall) {
  run_group(
      2,
      [](DeviceRank& rank) {
        const auto segment = register_segment(rank, kSegmentBytes, true);
        rank.launch(CollectiveArgs{});
        std::vector<std::byte> plain(4096);
        std::byte* const data = rank.number() == 0 ? segment->base(0) : plain.data();
        const std::optional<Error> error =
            error_of([&] { launch(rank, {.input = data, .output = data}); });
        EXPECT_EQ(error.has_value(), rank.number() == 1);
        rank.meet();
        if (rank.number() == 1) error_of([&] { rank.launch(CollectiveArgs{}); });
        expect_error(rank.failure(), ErrorCode::kMismatch,
                     {"device seq 2", "all_reduce", "multimem", "barrier"});
        rank.meet();
      },
      Algorithm::kMultimem);
}

TEST_F(DeviceMultimemTest, DeterminismMustBeWaivedByEveryRank) {
  adjust_ = [](CommunicatorConfig& config) { config.deterministic = config.rank != 2; };
  for (const auto& error : errors_in_group(3, [](DeviceRank&) {})) {
    expect_error(error, ErrorCode::kInvalidArgument,
                 {"deterministic: expected the same on every rank", "1 on rank 0", "0 on rank 2"});
  }
  for (const char* wrong : {"", "no", "2"}) {
    const ScopedVariable variable("SYMM_DETERMINISTIC", wrong);
    for (const auto& error : errors_in_group(1, [](DeviceRank&) {})) {
      expect_error(error, ErrorCode::kInvalidArgument,
                   {"SYMM_DETERMINISTIC", "0 or 1", "got '" + std::string(wrong) + "'"});
    }
  }
}

}  // namespace
}  // namespace symm
