// The kernels on multicast addresses, between ranks that share GPU 0. The instructions are a
// stand-in's; all else is what the library runs: parameters, the division among ranks and blocks,
// heads and ends, barriers, locations.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <vector>

#include "test/gpu/multimem/multimem_rig.hpp"

namespace symm::test {
namespace {

struct Pair {
  Dtype dtype;
  ReduceOp op;
};
constexpr Pair kPairs[] = {{Dtype::kFloat32, ReduceOp::kSum},  {Dtype::kFloat16, ReduceOp::kSum},
                           {Dtype::kFloat16, ReduceOp::kMin},  {Dtype::kFloat16, ReduceOp::kMax},
                           {Dtype::kBFloat16, ReduceOp::kSum}, {Dtype::kBFloat16, ReduceOp::kMin},
                           {Dtype::kBFloat16, ReduceOp::kMax}};

class MultimemKernelsTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!gpu_visible()) GTEST_SKIP() << "no GPU is visible";
  }
};

TEST_P(MultimemKernelsTest, EveryPairOfTheInstructionsHasAKernelAndNoOther) {
  int found = 0;
  for (int dtype = 0; dtype < kDtypeCount; ++dtype) {
    for (int op = 0; op < kReduceOpCount; ++op) {
      found += stand_in_kernel(CollectiveKind::kAllReduce, static_cast<Dtype>(dtype),
                               static_cast<ReduceOp>(op)) != nullptr;
    }
  }
  EXPECT_EQ(found, static_cast<int>(std::size(kPairs)));
}

TEST_P(MultimemKernelsTest, AllReduceOfEveryPairAndSize) {
  MultimemRig multimem(GetParam());
  int turn = 0;
  for (const auto& [dtype, op] : kPairs) {
    for (const std::size_t count : {1, 3, 7, 8, 9, 63, 1000, 4099, 100'003}) {
      multimem.run({.dtype = dtype,
                    .op = op,
                    .count = count,
                    .channels = turn % 3 == 0 ? 1 : 128 / GetParam(),
                    .in_place = turn % 2 == 1});
      if (HasFailure()) return;
      ++turn;
    }
  }
}

TEST_P(MultimemKernelsTest, SumsAreRoundedAsTheInstructionsMay) {
  MultimemRig multimem(GetParam());
  for (const auto& [dtype, op] : kPairs) {
    multimem.run({.dtype = dtype, .op = op, .count = 20'005}, /*whole_numbers=*/false);
    multimem.run({.kind = CollectiveKind::kReduceScatter, .dtype = dtype, .op = op, .count = 4096},
                 /*whole_numbers=*/false);
    if (HasFailure()) return;
  }
}

TEST_P(MultimemKernelsTest, ReduceScatterIntoMemoryAtAnyAddress) {
  MultimemRig multimem(GetParam());
  for (const auto& [dtype, op] : kPairs) {
    for (const std::size_t count : {8, 24, 1000, 50'000}) {
      for (const std::size_t elements : {0, 1, 5}) {
        multimem.run({.kind = CollectiveKind::kReduceScatter,
                      .dtype = dtype,
                      .op = op,
                      .count = count,
                      .channels = 8,
                      .shift = elements * dtype_bytes(dtype)});
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(MultimemKernelsTest, AllGatherFromMemoryAtAnyAddress) {
  MultimemRig multimem(GetParam());
  for (const std::size_t count : {16, 48, 4096, 300'000}) {
    for (const std::size_t shift : {0, 1, 4, 10}) {
      multimem.run({.kind = CollectiveKind::kAllGather,
                    .dtype = Dtype::kUInt8,
                    .count = count,
                    .channels = 8,
                    .shift = shift});
      if (HasFailure()) return;
    }
  }
}

TEST_P(MultimemKernelsTest, BroadcastOfAnySizeFromEveryRoot) {
  MultimemRig multimem(GetParam());
  for (int root = 0; root < GetParam(); ++root) {
    for (const std::size_t count : {1, 15, 16, 17, 5001, 200'007}) {
      multimem.run({.kind = CollectiveKind::kBroadcast,
                    .dtype = Dtype::kUInt8,
                    .count = count,
                    .root = root,
                    .channels = 8,
                    .shift = count % 3});
      if (HasFailure()) return;
    }
  }
}

TEST_P(MultimemKernelsTest, NobodyWritesBeforeTheLastHasCome) {
  MultimemRig multimem(GetParam());
  for (int last = 0; last < GetParam(); ++last) {
    multimem.prepare({.count = 30'000, .channels = 8}, true);
    for (int i = 1; i < GetParam(); ++i) multimem.launch((last + i) % GetParam());
    EXPECT_TRUE(multimem.rig().stays_busy((last + 1) % GetParam()));
    for (int rank = 0; rank < GetParam(); ++rank) {
      EXPECT_TRUE(multimem.is_untouched(rank)) << "rank " << rank << " before rank " << last;
    }
    multimem.launch(last);
    multimem.rig().finish();
    for (int rank = 0; rank < GetParam(); ++rank) multimem.compare(rank, true);
    if (HasFailure()) return;
  }
}

// A rank whose stream has passed the call may write its input and its output again: nobody reads
// the one or writes the other any more, though other ranks may still be at work.
TEST_P(MultimemKernelsTest, MemoryIsFreeBehindTheCall) {
  MultimemRig multimem(GetParam());
  multimem.prepare({.dtype = Dtype::kBFloat16, .count = 40'001, .channels = 8}, true);
  constexpr int kRounds = 30;
  const std::size_t bytes = multimem.output_bytes();
  std::vector<std::unique_ptr<DeviceBytes>> fresh;
  std::vector<std::unique_ptr<DeviceBytes>> kept;
  for (int rank = 0; rank < GetParam(); ++rank) {
    fresh.push_back(std::make_unique<DeviceBytes>(bytes));
    kept.push_back(std::make_unique<DeviceBytes>(kRounds * bytes));
    check(gpuMemcpy(fresh.back()->at(0), multimem.host_input(rank).data(), bytes,
                    gpuMemcpyHostToDevice),
          "Memcpy");
  }
  check(gpuDeviceSynchronize(), "DeviceSynchronize");
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 0; i < GetParam(); ++i) {
      const int rank = (round + i) % GetParam();
      const auto index = static_cast<std::size_t>(rank);
      const gpuStream_t stream = multimem.rig().stream(rank);
      check(gpuMemcpyAsync(multimem.input(rank), fresh[index]->at(0), bytes, gpuMemcpyDefault,
                           stream),
            "Memcpy");
      multimem.launch(rank);
      check(gpuMemsetAsync(multimem.input(rank), 0x3c, bytes, stream), "Memset");
      check(gpuMemcpyAsync(kept[index]->at(static_cast<std::size_t>(round) * bytes),
                           multimem.output(rank), bytes, gpuMemcpyDefault, stream),
            "Memcpy");
      check(gpuMemsetAsync(multimem.output(rank), 0x5a, bytes, stream), "Memset");
    }
  }
  multimem.rig().finish();
  multimem.rig().expect_healthy();
  for (int round = 0; round < kRounds; ++round) {
    for (int rank = 0; rank < GetParam(); ++rank) {
      check(gpuMemcpy(
                multimem.output(rank),
                kept[static_cast<std::size_t>(rank)]->at(static_cast<std::size_t>(round) * bytes),
                bytes, gpuMemcpyDefault),
            "Memcpy");
    }
    check(gpuDeviceSynchronize(), "DeviceSynchronize");
    for (int rank = 0; rank < GetParam(); ++rank) multimem.compare(rank, true);
    if (HasFailure()) FAIL() << "round " << round;
  }
}

TEST_P(MultimemKernelsTest, OtherLocationsEndTheGroupBeforeAnythingIsWritten) {
  MultimemRig multimem(GetParam());
  multimem.prepare({.count = 1000}, true);
  for (int rank = 0; rank < GetParam(); ++rank) multimem.launch(rank, rank == 1 ? 64 : 0);
  multimem.rig().finish();
  for (int rank = 0; rank < GetParam(); ++rank) {
    const auto fault =
        static_cast<DeviceFault>(load_acquire(&multimem.rig().page(rank).report.fault));
    EXPECT_EQ(fault, DeviceFault::kAsymmetricUse) << "rank " << rank;
  }
}

TEST_P(MultimemKernelsTest, ARankThatDoesNotComeEndsTheOthers) {
  MultimemRig multimem(GetParam());
  multimem.prepare({.count = 1000}, true);
  for (int rank = 1; rank < GetParam(); ++rank) {
    multimem.launch(rank, 0, std::chrono::milliseconds(300));
  }
  multimem.rig().finish();
  for (int rank = 1; rank < GetParam(); ++rank) {
    const DevicePage::Report& report = multimem.rig().page(rank).report;
    EXPECT_EQ(static_cast<DeviceFault>(load_acquire(&report.fault)), DeviceFault::kTimeout);
    EXPECT_EQ(report.peer, 0);
  }
  EXPECT_TRUE(multimem.is_untouched(0));
}

// Rank 0 gives up, and its user writes to its input: the others, who would read it, are told.
TEST_P(MultimemKernelsTest, LateRanksAreToldThatOneGaveUp) {
  MultimemRig multimem(GetParam());
  multimem.prepare({.count = 1000}, true);
  multimem.launch(0, 0, std::chrono::milliseconds(50));
  check(gpuStreamSynchronize(multimem.rig().stream(0)), "StreamSynchronize");
  check(gpuMemset(multimem.input(0), 0x77, 1000 * sizeof(float)), "Memset");
  check(gpuDeviceSynchronize(), "DeviceSynchronize");
  for (int rank = 1; rank < GetParam(); ++rank) {
    multimem.launch(rank, 0, std::chrono::milliseconds(2000));
  }
  multimem.rig().finish();
  for (int rank = 1; rank < GetParam(); ++rank) {
    const DevicePage& page = multimem.rig().page(rank);
    const auto fault = static_cast<DeviceFault>(load_acquire(&page.report.fault));
    EXPECT_EQ(fault, DeviceFault::kPeerGaveUp) << "rank " << rank;
    EXPECT_EQ(load_acquire(&page.completed), 0u);
  }
}

TEST_P(MultimemKernelsTest, CountersPassTheWidthOfAWord) {
  MultimemRig multimem(GetParam(), (std::uint64_t{1} << 32) - 2);
  for (int call = 0; call < 4; ++call) {
    multimem.run({.count = 3000, .channels = 4});
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, MultimemKernelsTest, testing::Values(2, 3, 4, 8));

}  // namespace
}  // namespace symm::test
