// Tensors in segments of the group: what device groups make of where they are, on fake GPUs.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <vector>

#include "backend/engine/device/device_group.hpp"
#include "backend/engine/group/call_record.hpp"
#include "backend/engine/host/mailbox_engine.hpp"
#include "kernels/plan/plan.hpp"
#include "test/support/device_ranks.hpp"
#include "test/support/expect_error.hpp"
#include "test/support/pretended_rank.hpp"

namespace symm {
namespace {

using test::DeviceRank;
using test::error_of;
using test::expect_error;
using test::gather_into;
using test::register_segment;

class DeviceSegmentsTest : public test::DeviceRanksTest {};

TEST_F(DeviceSegmentsTest, CopyEnginesNeedSymmetricRegistrationAndSize) {
  run_group(2, [](DeviceRank& rank) {
    constexpr std::size_t kShare = std::size_t{64} << 20;  // copy_engine_bytes
    constexpr std::size_t kOffset = 4096;
    const auto host =
        test::join_segment(rank.communicator, LocalSegment::allocate(host_runtime(), 100));
    const auto early = register_segment(rank, 2 * kShare + kOffset, true);
    const auto plain = register_segment(rank, 2 * kShare, false);
    gather_into(rank, early->base(rank.number()) + kOffset, kShare);
    gather_into(rank, early->base(rank.number()) + kOffset, kShare - 1);
    gather_into(rank, plain->base(rank.number()), kShare);
    const auto late = register_segment(rank, 2 * kShare, true);
    gather_into(rank, late->base(rank.number()), kShare);
    const auto& launches = rank.kernels().launches();
    ASSERT_EQ(launches.size(), 4u);
    EXPECT_TRUE(launches[0].copies);
    EXPECT_EQ(launches[0].location, (BufferLocation{1} << kLocationShift) | kOffset);
    EXPECT_EQ(launches[0].peer_outputs,
              (std::vector<std::byte*>{early->base(0) + kOffset, early->base(1) + kOffset}));
    EXPECT_FALSE(launches[1].copies);
    EXPECT_FALSE(launches[2].copies);
    EXPECT_EQ(launches[2].plan.algorithm, Algorithm::kBulk);
    EXPECT_TRUE(launches[3].copies);
    EXPECT_EQ(launches[3].location, BufferLocation{3} << kLocationShift);
    EXPECT_EQ(rank.kernels().segments().size(), 3u);
    EXPECT_EQ(rank.kernels().segments().at(1),
              (std::vector<std::byte*>{plain->base(0), plain->base(1)}));
  });
}

TEST_F(DeviceSegmentsTest, ForcedCopyEnginesNameTheFix) {
  run_group(
      2,
      [](DeviceRank& rank) {
        std::vector<std::byte> plain(20);
        expect_error(error_of([&] { gather_into(rank, plain.data(), 10); }),
                     ErrorCode::kUnsupported,
                     {"all_gather", "copy_engine", "symmetric=True", "another algorithm"});
        const auto segment = register_segment(rank, 20, true);
        gather_into(rank, segment->base(rank.number()), 10);
        rank.launch(CollectiveArgs{});  // has no copy engine
        ASSERT_EQ(rank.kernels().launches().size(), 2u);
        EXPECT_TRUE(rank.kernels().launches()[0].copies);
      },
      Algorithm::kCopyEngine);
}

TEST_F(DeviceSegmentsTest, AsymmetricUseIsAnErrorOnEveryRank) {
  run_group(2, [](DeviceRank& rank) {
    constexpr std::size_t kShare = std::size_t{64} << 20;
    const auto segment = register_segment(rank, 2 * kShare, true);
    rank.launch(CollectiveArgs{});
    std::vector<std::byte> plain(rank.number() == 0 ? 2 * kShare : 0);
    std::byte* output = rank.number() == 0 ? plain.data() : segment->base(1);
    rank.meet();  // neither waits for the other's memory while it looks for the error
    error_of([&] { gather_into(rank, output, kShare); });
    expect_error(rank.failure(), ErrorCode::kMismatch, {"device seq 2", "copy_engine", "bulk"});
    rank.meet();
  });
}

// An all_reduce of which only rank 1's tensor is symmetric: the algorithm is the same on both.
void reduce_half_symmetric(DeviceRank& rank, std::size_t count) {
  const auto segment = register_segment(rank, 4 * count + 64, false);
  CollectiveArgs args;
  args.kind = CollectiveKind::kAllReduce;
  args.dtype = Dtype::kFloat32;
  args.count = count;
  std::vector<float> plain(count);
  args.input = args.output =
      rank.number() == 1 ? static_cast<void*>(segment->base(1) + 64) : plain.data();
  rank.launch(args);
  EXPECT_FALSE(rank.communicator.failure().has_value());
}

TEST_F(DeviceSegmentsTest, WhereATensorLiesChoosesNothing) {
  run_group(2, [](DeviceRank& rank) {
    reduce_half_symmetric(rank, 16);
    reduce_half_symmetric(rank, 4'000'000);
    const auto& launches = rank.kernels().launches();
    EXPECT_EQ(launches.at(0).plan.algorithm, Algorithm::kLL);
    EXPECT_EQ(launches.at(1).plan.algorithm, Algorithm::kBulk);
  });
}

// Kernels learn of the segment that holds the output of a call by lanes, or of an all_to_all,
// whatever its registration; a rank whose output is elsewhere says nothing.
TEST_F(DeviceSegmentsTest, LanesStoreOutputsInSegmentsDirectly) {
  run_group(2, [](DeviceRank& rank) {
    constexpr std::size_t kShare = 9u << 20;  // beyond what wires carry
    constexpr std::size_t kBytes = 2 * kShare + 64;
    const auto other = register_segment(rank, 100, false);
    const auto segment = register_segment(rank, kBytes, false);
    std::byte* const here = segment->base(rank.number());
    std::vector<std::byte> plain(2 * kShare);
    gather_into(rank, here + 64, kShare);
    gather_into(rank, rank.number() == 1 ? here : plain.data(), kShare);
    gather_into(rank, here, 16);  // over a wire
    const std::vector<Part> in = {{plain.data(), kShare}, {plain.data() + kShare, kShare}};
    const std::vector<Part> out = {{here, kShare}, {here + kShare, kShare}};
    CollectiveArgs args;
    args.kind = CollectiveKind::kAllToAll;
    args.dtype = Dtype::kUInt8;
    args.input_parts = in;
    args.output_parts = out;
    rank.launch(args);
    const auto& launches = rank.kernels().launches();
    ASSERT_EQ(launches.size(), 4u);
    const std::vector<bool> expected = {true, rank.number() == 1, false, true};
    for (std::size_t i = 0; i < expected.size(); ++i) {
      SCOPED_TRACE(i);
      const SymmetricRange& range = launches[i].symmetric_output;
      EXPECT_EQ(range.data, expected[i] ? here : nullptr);
      EXPECT_EQ(range.bytes, expected[i] ? kBytes : 0);
      EXPECT_EQ(range.location, expected[i] ? BufferLocation{2} << kLocationShift : 0);
    }
  });
}

// A CPU that follows such an address ends its process.
TEST_F(DeviceSegmentsTest, ACallOnTheHostReadsNoMemoryOfAGpu) {
  run_group(2, [](DeviceRank& rank) {
    constexpr std::size_t kBytes = 4096;
    const auto segment = register_segment(rank, kBytes, false);
    std::memset(segment->base(rank.number()), 1, kBytes);
    Communicator& communicator = rank.communicator;
    communicator.run(CollectiveArgs{});
    std::vector<float> data(100);
    const CollectiveArgs args = test::sum_args(data);
    if (rank.number() == 0) {
      test::pretend_to_send(communicator, 0, kBytes, segment->number(), 0);
      rank.meet();
      rank.meet();
      expect_error(error_of([&] { communicator.run(args); }), ErrorCode::kSecurity,
                   {"rank 1 says that its input is in segment 1, which is memory of a GPU"});
      EXPECT_EQ(data, std::vector<float>(100));
    } else {
      rank.meet();
      MailboxEngine& engine = communicator.point_to_point();
      std::vector<std::uint8_t> received(kBytes);
      const TransferOp op{received.data(), kBytes, 0, 0, false, Dtype::kUInt8};
      const auto recv = engine.start({op, {}}, {});
      expect_error(error_of([&] { engine.wait(*recv, std::chrono::milliseconds(30)); }),
                   ErrorCode::kTimeout, {"not done"});
      EXPECT_EQ(received, std::vector<std::uint8_t>(kBytes));
      rank.meet();
      CallRecord record = make_record(args, communicator.plan(args, {}, PlanTarget::kHost),
                                      communicator.next_sequence());
      record.segment = SegmentTable::in_record(segment->number());
      test::pretend(communicator, record);
      while (!recv->done()) error_of([&] { engine.wait(*recv, {}); });  // with the group's failure
    }
  });
}

}  // namespace
}  // namespace symm
