// Calls with a plan of their own, on the host and on fake GPUs.
#include <gtest/gtest.h>

#include "kernels/plan/plan.hpp"
#include "test/support/collective_cases.hpp"
#include "test/support/device_ranks.hpp"
#include "test/support/environment.hpp"
#include "test/support/expect_error.hpp"
#include "test/support/memory_store.hpp"
#include "test/support/rank_threads.hpp"

namespace symm {
namespace {

using test::DeviceRank;
using test::error_of;
using test::expect_error;
using test::FakeGpu;
using test::register_segment;

constexpr PlanRequest kRing{.algorithm = Algorithm::kRing};
constexpr PlanRequest kTwoShot{.algorithm = Algorithm::kTwoShot};

CommunicatorConfig config_of(int rank, int world, Algorithm algorithm) {
  CommunicatorConfig config;
  config.group_name = "test";
  config.rank = rank;
  config.world_size = world;
  config.timeout = std::chrono::milliseconds(20'000);
  config.algorithm = algorithm;
  return config;
}

std::vector<std::optional<Error>> errors_of_group(int world,
                                                  const std::function<void(Communicator&)>& body,
                                                  Algorithm algorithm = Algorithm::kAuto) {
  test::MemoryStore store;
  return test::errors_of_ranks(world, [&](int rank) {
    const auto communicator =
        std::make_unique<Communicator>(store, config_of(rank, world, algorithm));
    body(*communicator);
  });
}

void run_group(int world, const std::function<void(Communicator&)>& body) {
  for (const auto& error : errors_of_group(world, body)) {
    if (error) FAIL() << error->what();
  }
}

TEST(ConfiguredCalls, EveryAlgorithmOfEveryCollectiveGivesTheResult) {
  run_group(3, [](Communicator& communicator) {
    int round = 0;
    for (int k = 0; k < kCollectiveKindCount; ++k) {
      const auto kind = static_cast<CollectiveKind>(k);
      for (int a = 1; a < kAlgorithmCount; ++a) {
        const auto algorithm = static_cast<Algorithm>(a);
        if (!has_algorithm(kind, algorithm, PlanTarget::kHost)) continue;
        for (const std::size_t chunk : {std::size_t{0}, std::size_t{16'384}}) {
          const PlanRequest request{.algorithm = algorithm, .chunk_bytes = chunk};
          test::CollectiveCase one(
              communicator.rank(), communicator.world_size(), ++round,
              [&](const CollectiveArgs& args) { communicator.run(args, {}, request); });
          one.check(kind, 30'011, round % 3);
        }
      }
    }
  });
}

// What a rank tells its peers is what it carries out, so a difference shows the plan of each.
TEST(ConfiguredCalls, RanksCompareTheirPlans) {
  const auto run = [](const PlanRequest& first, const PlanRequest& second, Algorithm forced) {
    return errors_of_group(
        2,
        [&](Communicator& communicator) {
          std::vector<float> data(8);
          communicator.run(test::sum_args(data), {}, communicator.rank() == 0 ? first : second);
        },
        forced);
  };
  for (const auto& error : run(kRing, kTwoShot, Algorithm::kAuto)) {
    expect_error(error, ErrorCode::kMismatch, {"seq 1", "8, ring)", "8, two_shot)"});
  }
  for (const auto& error : run(kTwoShot, {}, Algorithm::kRing)) {
    expect_error(error, ErrorCode::kMismatch, {"8, ring)", "8, two_shot)"});
  }
  const PlanRequest chunked{.algorithm = Algorithm::kRing, .chunk_bytes = 16'384};
  for (const auto& error : run(kRing, chunked, Algorithm::kAuto)) {
    expect_error(error, ErrorCode::kMismatch, {"8, ring)", "with chunk_bytes", "16384", "262144"});
  }
}

TEST(ConfiguredCalls, ARefusedRequestSendsNothing) {
  run_group(2, [](Communicator& communicator) {
    std::vector<float> data(8, 1.0f);
    CollectiveArgs args = test::sum_args(data);
    expect_error(
        error_of([&] { communicator.run(args, {}, {.algorithm = Algorithm::kPipelined}); }),
        ErrorCode::kInvalidArgument, {"all_reduce", "one_shot, two_shot, ring", "got pipelined"});
    // A slot is an eighth of the workspace, and the small ones have 64 KiB.
    expect_error(error_of([&] { communicator.run(args, {}, {.chunk_bytes = (1 << 20) + 128}); }),
                 ErrorCode::kInvalidArgument, {"to 1048576,"});
    expect_error(error_of([&] {
                   communicator.run(args, {},
                                    {.algorithm = Algorithm::kOneShot, .chunk_bytes = 65'664});
                 }),
                 ErrorCode::kInvalidArgument, {"to 65536,"});
    EXPECT_EQ(communicator.next_sequence(), 1u);
    communicator.run(args, {}, kRing);
    EXPECT_EQ(data, std::vector<float>(8, 2.0f));
  });
}

class ConfiguredDeviceCalls : public test::DeviceRanksTest {};

void launch(DeviceRank& rank, const CollectiveArgs& args, const PlanRequest& request) {
  rank.engine().launch(args, {FakeGpu::plain_stream()}, request);
}

TEST_F(ConfiguredDeviceCalls, TheRequestIsThePlan) {
  run_group(2, [](DeviceRank& rank) {
    std::vector<float> data(8);
    const CollectiveArgs args = test::sum_args(data);
    launch(rank, args, {});
    launch(rank, args, {.algorithm = Algorithm::kBulk, .channels = 7});
    launch(rank, args, {.channels = 3});
    const auto& launches = rank.kernels().launches();
    ASSERT_EQ(launches.size(), 3u);
    EXPECT_EQ(launches[0].plan.algorithm, Algorithm::kLL);
    EXPECT_EQ(launches[1].plan, (Plan{Algorithm::kBulk, 0, 7}));
    EXPECT_EQ(launches[2].plan, (Plan{Algorithm::kLL, 0, 3}));
    expect_error(error_of([&] { launch(rank, args, {.algorithm = Algorithm::kTwoShot}); }),
                 ErrorCode::kInvalidArgument, {"all_reduce", "ll_two_shot", "got two_shot"});
    expect_error(error_of([&] { launch(rank, args, {.chunk_bytes = 16'384}); }),
                 ErrorCode::kInvalidArgument, {"all_reduce", "chunk_bytes", "got 16384"});
    EXPECT_EQ(launches.size(), 3u);
    launch(rank, args, {});
  });
}

TEST_F(ConfiguredDeviceCalls, RanksCompareTheirChannels) {
  run_group(2, [](DeviceRank& rank) {
    std::vector<float> data(8);
    rank.launch(CollectiveArgs{});
    error_of([&] { launch(rank, test::sum_args(data), {.channels = 4 + rank.number()}); });
    expect_error(rank.failure(), ErrorCode::kMismatch, {"device seq 2", "with channels", "4", "5"});
    rank.meet();
  });
}

CollectiveArgs gather_args(std::vector<Part>& parts, std::byte* output, std::size_t bytes,
                           const DeviceRank& rank) {
  const auto world = static_cast<std::size_t>(rank.communicator.world_size());
  for (std::size_t r = 0; r < world; ++r) parts.push_back({output + r * bytes, bytes});
  CollectiveArgs args;
  args.kind = CollectiveKind::kAllGather;
  args.count = bytes;
  args.input = output + static_cast<std::size_t>(rank.number()) * bytes;
  args.output_parts = parts;
  return args;
}

// The request says that the tensors are symmetric, so no segment needs symmetric registration and
// no size is too small.
TEST_F(ConfiguredDeviceCalls, CopyEnginesWriteSegmentsOfTheGroup) {
  run_group(2, [](DeviceRank& rank) {
    const PlanRequest request{.algorithm = Algorithm::kCopyEngine};
    const auto segment = register_segment(rank, 4096, /*symmetric=*/false);
    std::byte* const output = segment->base(rank.number()) + 128;
    std::vector<Part> parts;
    EXPECT_TRUE(rank.engine().knows(output, 20));
    launch(rank, gather_args(parts, output, 10, rank), request);
    std::vector<std::byte> plain(20);
    std::vector<Part> plain_parts;
    const CollectiveArgs refused = gather_args(plain_parts, plain.data(), 10, rank);
    EXPECT_FALSE(rank.engine().knows(plain.data(), 20));
    expect_error(error_of([&] { launch(rank, refused, request); }), ErrorCode::kUnsupported,
                 {"all_gather", "copy_engine", "segment of the group", "another algorithm"});
    std::vector<Part> empty_parts;
    launch(rank, gather_args(empty_parts, output, 0, rank), request);
    const auto& launches = rank.kernels().launches();
    ASSERT_EQ(launches.size(), 2u);
    EXPECT_TRUE(launches[0].copies);
    EXPECT_EQ(launches[0].peer_outputs,
              (std::vector<std::byte*>{segment->base(0) + 128, segment->base(1) + 128}));
    EXPECT_FALSE(launches[1].copies);  // there is nothing to copy
  });
}

// On fake GPUs alone, where multicast may be switched on.
TEST_F(ConfiguredDeviceCalls, MultimemByRequestNeedsNoRegistrationEither) {
  const test::ScopedVariable switches[] = {{"SYMM_DISABLE_MULTICAST", std::nullopt},
                                           {"TORCH_SYMM_MEM_DISABLE_MULTICAST", std::nullopt},
                                           {"NVSHMEM_DISABLE_NVLS", std::nullopt}};
  for (int gpu = 0; gpu < 2; ++gpu) gpus_[gpu].fake_multicast().present = true;
  run_group(2, [](DeviceRank& rank) {
    const PlanRequest request{.algorithm = Algorithm::kMultimem, .channels = 9};
    const auto segment = register_segment(rank, 1 << 20, /*symmetric=*/false);
    std::byte* const output = segment->base(rank.number()) + 256;
    std::vector<Part> parts;
    launch(rank, gather_args(parts, output, 64, rank), request);
    const auto& launches = rank.kernels().launches();
    ASSERT_EQ(launches.size(), 1u);
    EXPECT_TRUE(launches[0].multimem);
    EXPECT_EQ(launches[0].plan.channels, 9);
    EXPECT_EQ(launches[0].output.ranks,
              (std::vector<std::byte*>{segment->base(0) + 256, segment->base(1) + 256}));
    std::vector<std::byte> plain(128);
    std::vector<Part> plain_parts;
    const CollectiveArgs refused = gather_args(plain_parts, plain.data(), 64, rank);
    expect_error(error_of([&] { launch(rank, refused, request); }), ErrorCode::kUnsupported,
                 {"all_gather", "multimem", "output", "segment of the group"});
    rank.meet();
  });
}

TEST_F(ConfiguredDeviceCalls, ARequestComesBeforeForcedCopyEngines) {
  run_group(
      2,
      [](DeviceRank& rank) {
        std::vector<std::byte> plain(20);
        std::vector<Part> parts;
        launch(rank, gather_args(parts, plain.data(), 10, rank), {.algorithm = Algorithm::kBulk});
        ASSERT_EQ(rank.kernels().launches().size(), 1u);
        EXPECT_EQ(rank.kernels().launches()[0].plan.algorithm, Algorithm::kBulk);
      },
      Algorithm::kCopyEngine);
}

}  // namespace
}  // namespace symm
