// Collectives and messages on a GPU through whole communicators, against the same communicators'
// host device: all bytes must be equal.
#include <gtest/gtest.h>

#include <set>

#include "kernels/plan/plan.hpp"
#include "test/gpu/gpu_call.hpp"

namespace symm::test {
namespace {

constexpr std::size_t kLarge = std::size_t{9} << 20;  // bytes of all shares, beyond every row

// Elements of `kind` around which the algorithms change, and some that are far from it.
std::set<std::size_t> telling_counts(CollectiveKind kind, int world, std::size_t element_bytes) {
  const std::size_t shares = staged_bytes(kind, world, 1);
  std::set<std::size_t> counts = {0, 1, 3, 1000, kLarge / shares / element_bytes};
  for (const WireKind wire : {WireKind::kLL, WireKind::kLine}) {
    for (const PlanRow& row : PlanTable::built_in_gpu(wire).rows()) {
      if (row.kind != kind || row.max_bytes == PlanRow::kNoLimit) continue;
      if (world < row.min_world || world > row.max_world) continue;
      const std::size_t limit = row.max_bytes / shares / element_bytes;
      counts.insert({limit - 1, limit, limit + 1});
    }
  }
  return counts;
}

class DeviceCollectivesTest : public GpuRanksTest, public testing::WithParamInterface<int> {};

TEST_P(DeviceCollectivesTest, EveryCollectiveAtEverySizeEqualsTheHost) {
  run_group(GetParam(), [](GpuRank& rank) {
    int round = 0;
    for (int k = 0; k < kCollectiveKindCount; ++k) {
      const auto kind = static_cast<CollectiveKind>(k);
      for (const std::size_t count : telling_counts(kind, rank.world(), sizeof(float))) {
        ++round;
        check_call(rank,
                   {.kind = kind,
                    .count = count,
                    .root = round % rank.world(),
                    .in_place = round % 2 == 1 && kind != CollectiveKind::kAllToAll &&
                                kind != CollectiveKind::kGather && kind != CollectiveKind::kScatter,
                    .uneven = round % 3 != 0,
                    .shift = static_cast<std::size_t>(round % 4) * sizeof(float)});
      }
    }
    rank.meet();
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, DeviceCollectivesTest, testing::Values(1, 2, 3, 4));

class DeviceDtypesTest : public GpuRanksTest, public testing::WithParamInterface<int> {};

TEST_P(DeviceDtypesTest, EveryOperatorEqualsTheHost) {
  const auto dtype = static_cast<Dtype>(GetParam());
  run_group(3, [dtype](GpuRank& rank) {
    for (int op = 0; op < kReduceOpCount; ++op) {
      if (!op_supports(static_cast<ReduceOp>(op), dtype)) continue;
      for (const auto kind :
           {CollectiveKind::kAllReduce, CollectiveKind::kReduce, CollectiveKind::kReduceScatter}) {
        for (const std::size_t count : {std::size_t{5}, std::size_t{1003}, std::size_t{300'001}}) {
          check_call(rank, {.kind = kind,
                            .count = count,
                            .dtype = dtype,
                            .op = static_cast<ReduceOp>(op),
                            .root = 2});
        }
      }
    }
    for (const auto kind :
         {CollectiveKind::kBroadcast, CollectiveKind::kAllGather, CollectiveKind::kGather,
          CollectiveKind::kScatter, CollectiveKind::kAllToAll}) {
      check_call(rank, {.kind = kind, .count = 1003, .dtype = dtype, .root = 1, .uneven = true});
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Dtypes, DeviceDtypesTest, testing::Range(0, kDtypeCount),
                         [](const auto& i) {
                           return std::string(dtype_name(static_cast<Dtype>(i.param)));
                         });

class DeviceAlgorithmsTest : public GpuRanksTest, public testing::WithParamInterface<int> {};

// A small workspace makes large calls take several launches, or many chunks.
TEST_P(DeviceAlgorithmsTest, EveryForcedAlgorithmGivesTheSameBits) {
  const auto algorithm = static_cast<Algorithm>(GetParam());
  for (const std::size_t workspace : {std::size_t{64} << 20, std::size_t{4} << 20}) {
    run_group(3,
              [algorithm](GpuRank& rank) {
                for (int k = 0; k < kCollectiveKindCount; ++k) {
                  const auto kind = static_cast<CollectiveKind>(k);
                  if (!has_algorithm(kind, algorithm, PlanTarget::kGpu)) continue;
                  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{7},
                                                  std::size_t{1027}, std::size_t{1'000'003}}) {
                    for (const bool in_place : {false, true}) {
                      if (in_place && kind != CollectiveKind::kAllReduce) continue;
                      check_call(rank, {.kind = kind,
                                        .count = count,
                                        .dtype = Dtype::kBFloat16,
                                        .root = 1,
                                        .in_place = in_place,
                                        .uneven = true});
                    }
                  }
                }
              },
              {.algorithm = algorithm, .workspace_bytes = workspace});
  }
}

INSTANTIATE_TEST_SUITE_P(Algorithms, DeviceAlgorithmsTest,
                         testing::Values(static_cast<int>(Algorithm::kLL),
                                         static_cast<int>(Algorithm::kLLTwoShot),
                                         static_cast<int>(Algorithm::kBulk)),
                         [](const auto& i) {
                           return std::string(algorithm_name(static_cast<Algorithm>(i.param)));
                         });

class DeviceLaunchesTest : public GpuRanksTest {};

// The blocks of four ranks that share a GPU nearly fill it, launch after launch.
TEST_F(DeviceLaunchesTest, LaunchesOfFourRanksFollowEachOther) {
  constexpr std::size_t kThreeLaunches = 1'310'719;
  run_group(4,
            [](GpuRank& rank) {
              for (int repeat = 0; repeat < 4; ++repeat) {
                for (int k = 0; k < kCollectiveKindCount; ++k) {
                  const auto kind = static_cast<CollectiveKind>(k);
                  if (!has_algorithm(kind, Algorithm::kLL, PlanTarget::kGpu)) continue;
                  check_call(rank, {.kind = kind, .count = kThreeLaunches, .root = 3 - repeat});
                }
              }
              rank.meet();
            },
            {.algorithm = Algorithm::kLL});
}

class DeviceMemoryTest : public GpuRanksTest {
 protected:
  // A segment as large as both regions of a rank.
  static std::shared_ptr<Segment> join(GpuRank& rank, GpuRuntime& runtime, bool symmetric) {
    auto local = LocalSegment::allocate(runtime, 2 * GpuRank::kRegionBytes);
    return test::join_segment(rank.communicator, std::move(local), symmetric);
  }
};

TEST_F(DeviceMemoryTest, SomeRanksBringSymmetricTensors) {
  run_group(4, [&](GpuRank& rank) {
    const auto early = join(rank, *runtime_, false);
    rank.engine();
    const auto late = join(rank, *runtime_, false);
    int round = 0;
    for (const auto kind :
         {CollectiveKind::kAllReduce, CollectiveKind::kReduce, CollectiveKind::kBroadcast,
          CollectiveKind::kAllGather, CollectiveKind::kGather, CollectiveKind::kScatter,
          CollectiveKind::kReduceScatter}) {
      for (const bool in_place : {false, true}) {
        if (in_place && kind != CollectiveKind::kAllReduce) continue;
        ++round;
        // Of segments from before and after the group's first call; peers store where they may.
        const auto& segment = round % 2 == 0 ? early : late;
        const bool brings = (rank.number() + round) % 3 != 0;
        std::byte* input = brings ? segment->base(rank.number()) : rank.input();
        std::byte* output = brings ? input + GpuRank::kRegionBytes : rank.output();
        check_call(rank,
                   {.kind = kind, .count = 300'007, .root = 1, .in_place = in_place, .shift = 64},
                   input, output);
      }
    }
    rank.meet();
  });
}

TEST_F(DeviceMemoryTest, CopyEnginesMoveSymmetricMemory) {
  run_group(3,
            [&](GpuRank& rank) {
              const auto segment = join(rank, *runtime_, true);
              std::byte* input = segment->base(rank.number());
              for (int repeat = 0; repeat < 2; ++repeat) {
                for (const auto kind : {CollectiveKind::kAllGather, CollectiveKind::kBroadcast,
                                        CollectiveKind::kAllToAll}) {
                  for (const std::size_t count : {std::size_t{1}, std::size_t{1'000'003}}) {
                    check_call(rank,
                               {.kind = kind, .count = count, .dtype = Dtype::kInt32, .root = 1},
                               input, input + GpuRank::kRegionBytes);
                  }
                }
              }
              rank.meet();
            },
            {.algorithm = Algorithm::kCopyEngine});
}

class DeviceMessagesTest : public GpuRanksTest {};

// Both directions at once, recvs in another order than the sends, tags of every tag channel.
TEST_F(DeviceMessagesTest, MessagesOfAnySizeFindTheirRecv) {
  const std::vector<std::size_t> sizes = {0, 1, 479, 65'536, 70'001, kLarge / 2};
  run_group(3, [&](GpuRank& rank) {
    const auto bytes_of = [&](int from, int to, std::size_t k) {
      Call seed{.count = sizes[k] + 1000 * static_cast<std::size_t>(from * 5 + to),
                .dtype = Dtype::kUInt8};
      return call_input(seed, from, sizes[k]);
    };
    for (int repeat = 0; repeat < 3; ++repeat) {
      std::vector<TransferOp> ops;
      std::vector<std::pair<std::byte*, std::vector<std::byte>>> expected;
      std::byte* out = rank.input();
      std::byte* in = rank.output();
      for (int peer = 0; peer < rank.world(); ++peer) {
        if (peer == rank.number()) continue;
        for (std::size_t k = 0; k < sizes.size(); ++k) {
          rank.write(out, bytes_of(rank.number(), peer, k));
          ops.push_back({out, sizes[k], static_cast<std::int64_t>(k), peer, true});
          out += align_up(sizes[k] + 1, 16);
        }
        // Messages of one tag channel (tags that are equal modulo kTagChannels) keep their
        // order.
        for (const std::size_t k : {3u, 2u, 1u, 0u, 5u, 4u}) {
          rank.write(in, std::vector<std::byte>(sizes[k] + 1, std::byte{0xee}));
          expected.emplace_back(in, bytes_of(peer, rank.number(), k));
          expected.back().second.push_back(std::byte{0xee});
          ops.push_back({in, sizes[k], static_cast<std::int64_t>(k), peer, false});
          in += align_up(sizes[k] + 1, 16);
        }
      }
      rank.engine().transfer(ops, rank.to());
      rank.finish();
      for (const auto& [place, bytes] : expected) {
        EXPECT_EQ(rank.read(place, bytes.size()) == bytes, true) << bytes.size() - 1 << " bytes";
      }
    }
    rank.meet();
  });
}

TEST_F(DeviceMessagesTest, MessagesOfTwoRanksLeaveTheThirdAlone) {
  run_group(3, [](GpuRank& rank) {
    if (rank.number() != 1) {
      const int peer = 2 - rank.number();
      const std::vector<std::byte> mine(3000, std::byte(10 + rank.number()));
      rank.write(rank.input(), mine);
      const TransferOp ops[] = {{rank.input(), 3000, 9, peer, true},
                                {rank.output(), 3000, 9, peer, false}};
      rank.engine().transfer(ops, rank.to());
      rank.finish();
      EXPECT_EQ(rank.read(rank.output(), 3000), std::vector<std::byte>(3000, std::byte(10 + peer)));
    }
    rank.meet();
    check_call(rank, {.count = 1000});
  });
}

class DeviceGraphsTest : public GpuRanksTest {};

std::int32_t graph_value(int rank, std::size_t index, int replay) {
  return static_cast<std::int32_t>(index) * 7 + rank * 1'000'003 + replay * 31;
}

// Sums and gathers of a graph, with new data in each replay.
void check_replay(GpuRank& rank, gpuStream_t stream, gpuGraphExec_t graph, std::size_t count,
                  int replay) {
  std::vector<std::byte> bytes(count * sizeof(std::int32_t));
  auto* values = reinterpret_cast<std::int32_t*>(bytes.data());
  for (std::size_t i = 0; i < count; ++i) values[i] = graph_value(rank.number(), i, replay);
  rank.write(rank.input(), bytes);
  SYMM_GPU_CHECK(gpuGraphLaunch(graph, stream));
  rank.finish();
  const std::size_t gathered = count * static_cast<std::size_t>(rank.world());
  const auto result = rank.read(rank.output(), (count + gathered) * sizeof(std::int32_t));
  const auto* found = reinterpret_cast<const std::int32_t*>(result.data());
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) {
    std::int32_t sum = 0;
    for (int r = 0; r < rank.world(); ++r) {
      sum += graph_value(r, i, replay);
      wrong += found[count + static_cast<std::size_t>(r) * count + i] != graph_value(r, i, replay);
    }
    wrong += found[i] != sum;
  }
  EXPECT_EQ(wrong, 0u) << "elements in replay " << replay << " on rank " << rank.number();
}

TEST_F(DeviceGraphsTest, ReplaysUseNewData) {
  for (const std::size_t count : {std::size_t{1003}, std::size_t{200'003}}) {
    run_group(3, [count](GpuRank& rank) {
      CollectiveArgs sum;
      sum.kind = CollectiveKind::kAllReduce;
      sum.dtype = Dtype::kInt32;
      sum.count = count;
      sum.input = rank.input();
      sum.output = rank.output();
      std::vector<Part> parts;
      for (int r = 0; r < rank.world(); ++r) {
        parts.push_back({rank.output() + (1 + static_cast<std::size_t>(r)) * count * 4, count});
      }
      CollectiveArgs gather = sum;
      gather.kind = CollectiveKind::kAllGather;
      gather.output = nullptr;
      gather.output_parts = parts;
      rank.launch(CollectiveArgs{});
      rank.finish();
      rank.meet();
      gpuGraph_t graph = nullptr;
      gpuGraphExec_t executable = nullptr;
      SYMM_GPU_CHECK(gpuStreamBeginCapture(rank.stream(), gpuStreamCaptureModeThreadLocal));
      rank.launch(sum);
      rank.launch(gather);
      rank.launch(CollectiveArgs{});
      SYMM_GPU_CHECK(gpuStreamEndCapture(rank.stream(), &graph));
      SYMM_GPU_CHECK(gpuGraphInstantiate(&executable, graph));
      rank.meet();
      for (int replay = 0; replay < 100; ++replay) {
        check_replay(rank, rank.stream(), executable, count, replay);
        if (replay % 10 == 0) check_call(rank, {.count = 77});  // eager calls in between
      }
      rank.meet();
      SYMM_GPU_CHECK(gpuGraphExecDestroy(executable));
      SYMM_GPU_CHECK(gpuGraphDestroy(graph));
    });
  }
}

TEST_F(DeviceGraphsTest, AColdCallLeavesTheCaptureValid) {
  run_group(2, [](GpuRank& rank) {
    rank.engine();
    rank.meet();
    gpuGraph_t graph = nullptr;
    SYMM_GPU_CHECK(gpuStreamBeginCapture(rank.stream(), gpuStreamCaptureModeThreadLocal));
    EXPECT_THROW(rank.launch(CollectiveArgs{}), Error);
    SYMM_GPU_CHECK(gpuStreamEndCapture(rank.stream(), &graph));
    SYMM_GPU_CHECK(gpuGraphDestroy(graph));
    check_call(rank, {.count = 1000});
  });
}

}  // namespace
}  // namespace symm::test
