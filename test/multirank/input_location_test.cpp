// Where a peer says that its input is: believed only inside the segment.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "backend/engine/communicator.hpp"
#include "backend/engine/group/call_record.hpp"
#include "kernels/core/atomics.hpp"
#include "kernels/cpu/wait.hpp"
#include "kernels/plan/plan.hpp"
#include "test/support/collective_cases.hpp"
#include "test/support/expect_error.hpp"
#include "test/support/joined_segment.hpp"
#include "test/support/memory_store.hpp"
#include "test/support/pretended_rank.hpp"
#include "test/support/rank_threads.hpp"

namespace symm {
namespace {

using test::config_with_pretender;
using test::error_of;
using test::expect_error;
using test::pretend;
using test::sum_args;

constexpr std::size_t kBytes = 4096;
constexpr std::size_t kCount = 100;
constexpr std::uint64_t kNumber = 1;  // of the segment that there is

// What rank 0's all_reduce makes of a record in which rank 1 says that its input is at `offset` of
// segment `number`.
std::optional<Error> error_for(std::uint64_t number, std::uint64_t offset) {
  test::MemoryStore store;
  std::optional<Error> found;
  test::run_ranks(2, [&](int rank) {
    Communicator communicator(store, config_with_pretender(rank));
    const auto segment =
        test::join_segment(communicator, LocalSegment::allocate(host_runtime(), kBytes));
    EXPECT_EQ(segment->number(), kNumber);
    std::memset(segment->base(rank), 0, kBytes);
    std::vector<float> data(kCount, 1.0f);
    const CollectiveArgs args = sum_args(data);
    communicator.run(CollectiveArgs{});
    if (rank == 0) {
      found = error_of([&] { communicator.run(args); });
      EXPECT_EQ(data[kCount - 1], 1.0f);  // the peer's input is zero, and none is read
      return;
    }
    CallRecord record = make_record(args, communicator.plan(args, {}, PlanTarget::kHost),
                                    communicator.next_sequence());
    record.segment = SegmentTable::in_record(number);
    record.offset = offset;
    pretend(communicator, record);
  });
  return found;
}

TEST(InputLocation, InsideTheSegmentIsRead) {
  EXPECT_FALSE(error_for(kNumber, 0));
  EXPECT_FALSE(error_for(kNumber, kBytes - kCount * sizeof(float)));
}

TEST(InputLocation, OutsideTheSegmentIsRefusedByTheNameOfThePeer) {
  for (const std::uint64_t offset :
       {std::uint64_t{kBytes - kCount * sizeof(float) + 1}, std::uint64_t{kBytes},
        std::uint64_t{1} << 40, std::numeric_limits<std::uint64_t>::max() - 3}) {
    expect_error(error_for(kNumber, offset), ErrorCode::kSecurity,
                 {"all_reduce(float32", "rank 1 (global rank 11) says that its 400 bytes of input",
                  "byte " + std::to_string(offset) + " of segment 1, which has 4096"});
  }
}

TEST(InputLocation, OfASegmentThatIsNotThereIsRefused) {
  expect_error(error_for(5, 0), ErrorCode::kMismatch,
               {"rank 1 (global rank 11) passed memory of segment 5", "does not know"});
}

// What rank 0's all_to_all makes of a row in which rank 1 says that its share is at `share` of its
// input, which begins at `begin` of the segment.
std::optional<Error> error_for_share(std::uint64_t begin, std::uint64_t share) {
  constexpr std::size_t kLarge = 100'000;
  test::MemoryStore store;
  std::optional<Error> found;
  test::run_ranks(2, [&](int rank) {
    Communicator communicator(store, config_with_pretender(rank));
    const auto segment =
        test::join_segment(communicator, LocalSegment::allocate(host_runtime(), 2 * kLarge));
    std::memset(segment->base(rank), 1, 2 * kLarge);
    std::vector<std::uint8_t> received(2 * kLarge);
    const std::vector<Part> inputs = {{segment->base(rank), kLarge},
                                      {segment->base(rank) + kLarge, kLarge}};
    const std::vector<Part> outputs = {{received.data(), kLarge},
                                       {received.data() + kLarge, kLarge}};
    CollectiveArgs args;
    args.kind = CollectiveKind::kAllToAll;
    args.dtype = Dtype::kUInt8;
    args.input_parts = inputs;
    args.output_parts = outputs;
    communicator.run(CollectiveArgs{});
    if (rank == 0) {
      found = error_of([&] { communicator.run(args); });
      if (found) {
        // Its own share is there, and nothing of the peer's.
        EXPECT_EQ(received[kLarge - 1], 1);
        EXPECT_EQ(std::count(received.begin() + kLarge, received.end(), 0),
                  static_cast<std::ptrdiff_t>(kLarge));
      }
      return;
    }
    CallRecord record = make_record(args, communicator.plan(args, {}, PlanTarget::kHost),
                                    communicator.next_sequence());
    record.segment = SegmentTable::in_record(kNumber);
    record.offset = begin;
    pretend(communicator, record, {kLarge, 0, share, 0});
  });
  return found;
}

TEST(InputLocation, AShareInsideTheSegmentIsRead) {
  EXPECT_FALSE(error_for_share(0, 0));
  EXPECT_FALSE(error_for_share(0, 100'000));
}

TEST(InputLocation, AShareOutsideTheSegmentIsRefusedByTheNameOfThePeer) {
  for (const std::uint64_t share : {std::uint64_t{100'001}, std::uint64_t{200'000},
                                    std::numeric_limits<std::uint64_t>::max() - 3}) {
    expect_error(error_for_share(0, share), ErrorCode::kSecurity,
                 {"all_to_all", "rank 1 (global rank 11) says that its 100000 bytes of input",
                  "byte " + std::to_string(share) + " of segment 1, which has 200000"});
  }
  expect_error(error_for_share(8, 0), ErrorCode::kSecurity,
               {"rank 1 (global rank 11) says that its input begins within segment 1"});
}

TEST(InputLocation, EveryKindOfCallKnowsHowMuchAPeerLetsOthersRead) {
  float value = 0;
  const std::vector<Part> parts = {{&value, 3}, {&value, 5}};
  CollectiveArgs args;
  args.dtype = Dtype::kFloat64;
  args.count = 7;
  args.input_parts = args.output_parts = parts;
  const auto bytes = [&](CollectiveKind kind, int peer) {
    args.kind = kind;
    return input_bytes(args, peer, 2);
  };
  EXPECT_EQ(bytes(CollectiveKind::kBroadcast, 1), 7u * 8);
  EXPECT_EQ(bytes(CollectiveKind::kAllGather, 1), 5u * 8);
  EXPECT_EQ(bytes(CollectiveKind::kReduceScatter, 0), 8u * 8);
  EXPECT_EQ(bytes(CollectiveKind::kScatter, 0), 14u * 8);
  EXPECT_EQ(bytes(CollectiveKind::kAllToAll, 0), 0u);
}

}  // namespace
}  // namespace symm
