// By which kind of handle a group passes its device memory, over fake GPUs.
#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "test/support/device_ranks.hpp"
#include "test/support/environment.hpp"
#include "test/support/expect_error.hpp"

namespace symm {
namespace {

using test::DeviceRank;
using test::expect_error;
using test::FakeGpu;

constexpr auto kDescriptor = static_cast<std::size_t>(HandleKind::kDescriptor);
constexpr auto kFabric = static_cast<std::size_t>(HandleKind::kFabric);

class DeviceHandlesTest : public test::DeviceRanksTest {
 protected:
  void offer_fabric(int ranks) {
    for (int rank = 0; rank < ranks; ++rank) gpus_[rank].has_fabric_handles = true;
  }
  // Marks this rank's segment and finds the others' marks after a first collective.
  static void meet(DeviceRank& rank, int world) {
    rank.engine();
    auto* own = reinterpret_cast<int*>(rank.kernels().peer(rank.number()));
    own[1] = 300 + rank.number();
    rank.launch(CollectiveArgs{});
    rank.meet();
    for (int peer = 0; peer < world; ++peer) {
      EXPECT_EQ(reinterpret_cast<int*>(rank.kernels().peer(peer))[1], 300 + peer);
    }
    rank.meet();
  }

  test::ScopedVariable unset_{"SYMM_HANDLE_TYPE", std::nullopt};
};

TEST_F(DeviceHandlesTest, DescriptorsAreTakenWhereAllHaveThem) {
  offer_fabric(3);
  run_group(3, [](DeviceRank& rank) {
    meet(rank, 3);
    EXPECT_EQ(rank.gpu.imports[kDescriptor], 2);
    EXPECT_EQ(rank.gpu.imports[kFabric], 0);
  });
}

TEST_F(DeviceHandlesTest, FabricIsTakenWhereItIsAskedFor) {
  offer_fabric(3);
  const test::ScopedVariable fabric("SYMM_HANDLE_TYPE", "fabric");
  run_group(3, [](DeviceRank& rank) {
    meet(rank, 3);
    EXPECT_EQ(rank.gpu.imports[kFabric], 2);
    EXPECT_EQ(rank.gpu.exports[kDescriptor], 0);
  });
}

TEST_F(DeviceHandlesTest, FabricIsTakenByAllWhereOneRankHasNoDescriptors) {
  offer_fabric(3);
  gpus_[1].has_descriptors = false;
  run_group(3, [](DeviceRank& rank) {
    meet(rank, 3);
    EXPECT_EQ(rank.gpu.imports[kFabric], 2);
    EXPECT_EQ(rank.gpu.imports[kDescriptor], 0);
  });
}

TEST_F(DeviceHandlesTest, MessagesBeforeTheFirstCollectiveGoByWhatTwoRanksAllow) {
  offer_fabric(3);
  gpus_[2].has_descriptors = false;
  run_group(3, [](DeviceRank& rank) {
    std::vector<std::byte> data(64);
    if (rank.number() < 2) {
      const TransferOp op{data.data(), 32, 1, 1 - rank.number(), rank.number() == 0};
      rank.engine().transfer({&op, 1}, {FakeGpu::plain_stream()});
      EXPECT_EQ(rank.gpu.imports[kDescriptor], 1);
    }
    meet(rank, 3);
    EXPECT_EQ(rank.gpu.imports[kFabric], rank.number() < 2 ? 1 : 2);
  });
}

TEST_F(DeviceHandlesTest, AWishThatOneRankCannotMeetIsRefusedByAll) {
  offer_fabric(2);
  const test::ScopedVariable fabric("SYMM_HANDLE_TYPE", "fabric");
  const auto errors = errors_in_group(3, [](DeviceRank& rank) {
    rank.engine();
    rank.launch(CollectiveArgs{});
  });
  for (const auto& error : errors) {
    expect_error(error, ErrorCode::kUnsupported,
                 {"SYMM_HANDLE_TYPE=fabric on rank 0", "rank 2 has no fabric handle"});
  }
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(gpus_[rank].imports[kFabric], 0);
}

TEST_F(DeviceHandlesTest, AWrongValueIsRefusedWhereTheGroupIsMade) {
  const test::ScopedVariable wrong("SYMM_HANDLE_TYPE", "rdma");
  const auto errors = errors_in_group(1, [](DeviceRank&) { FAIL() << "a group was made"; });
  expect_error(errors[0], ErrorCode::kInvalidArgument,
               {"SYMM_HANDLE_TYPE", "auto, posix or fabric", "\"rdma\""});
}

}  // namespace
}  // namespace symm
