// Where a peer says that its input is: believed only inside the segment.
#include <gtest/gtest.h>

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
#include "test/support/rank_threads.hpp"

namespace symm {
namespace {

using test::error_of;
using test::expect_error;
using test::sum_args;

constexpr std::size_t kBytes = 4096;
constexpr std::size_t kCount = 100;

// What rank 0's all_reduce makes of a record in which rank 1 says that its input is at `offset` of
// segment `number`.
std::optional<Error> error_for(std::uint32_t number, std::uint64_t offset) {
  test::MemoryStore store;
  std::optional<Error> found;
  test::run_ranks(2, [&](int rank) {
    CommunicatorConfig config;
    config.group_name = "test";
    config.rank = rank;
    config.world_size = 2;
    config.global_ranks = {10, 11};
    config.timeout = std::chrono::milliseconds(20'000);
    config.algorithm = Algorithm::kOneShot;
    Communicator communicator(store, config);
    const auto segment =
        test::join_segment(communicator, LocalSegment::allocate(host_runtime(), kBytes));
    std::memset(segment->base(rank), 0, kBytes);
    std::vector<float> data(kCount, 1.0f);
    const CollectiveArgs args = sum_args(data);
    communicator.run(CollectiveArgs{});
    if (rank == 0) {
      found = error_of([&] { communicator.run(args); });
      EXPECT_EQ(data[kCount - 1], 1.0f);  // the peer's input is zero, and none is read
      return;
    }
    auto& control = *reinterpret_cast<ControlRegion*>(communicator.local_group()->region(rank));
    const std::uint64_t sequence = communicator.next_sequence();
    CallRecord record = make_record(args, communicator.plan(args, {}, PlanTarget::kHost), sequence);
    record.segment = number + 1;
    record.offset = offset;
    control.calls[sequence % kCallRing] = record;
    store_release(&control.progress.entered, sequence);
    post(control.ready, load_acquire(&control.ready.value) + 1);
    post(control.done, load_acquire(&control.done.value) + 1);
    const auto* const peer =
        reinterpret_cast<const ControlRegion*>(communicator.local_group()->region(0));
    while (load_acquire(&peer->progress.completed) < sequence &&
           communicator.local_group()->poll("test")) {
      std::this_thread::yield();
    }
    store_release(&control.progress.completed, sequence);
  });
  return found;
}

TEST(InputLocation, InsideTheSegmentIsRead) {
  EXPECT_FALSE(error_for(0, 0));
  EXPECT_FALSE(error_for(0, kBytes - kCount * sizeof(float)));
}

TEST(InputLocation, OutsideTheSegmentIsRefusedByTheNameOfThePeer) {
  for (const std::uint64_t offset :
       {std::uint64_t{kBytes - kCount * sizeof(float) + 1}, std::uint64_t{kBytes},
        std::uint64_t{1} << 40, std::numeric_limits<std::uint64_t>::max() - 3}) {
    expect_error(error_for(0, offset), ErrorCode::kSecurity,
                 {"all_reduce(float32", "rank 1 (global rank 11) says that its 400 bytes of input",
                  "byte " + std::to_string(offset) + " of segment 0, which has 4096"});
  }
}

TEST(InputLocation, OfASegmentThatIsNotThereIsRefused) {
  expect_error(error_for(5, 0), ErrorCode::kMismatch,
               {"rank 1 (global rank 11) passed memory of segment 5", "does not know"});
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
}

}  // namespace
}  // namespace symm
