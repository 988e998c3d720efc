// Algorithms over threads that share one address space: what ThreadSanitizer can follow.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>

#include "kernels/cpu/host_collectives.hpp"
#include "kernels/plan/plan.hpp"
#include "test/support/collective_cases.hpp"
#include "test/support/rank_threads.hpp"

namespace symm {
namespace {

constexpr std::size_t kWorkspaceSlot = 64 * 1024;

class AgreeingObserver : public CallObserver {
 public:
  // One rank that has found wrong data ends the waits of the others.
  bool keep_waiting(int) override { return !testing::Test::HasFailure(); }
  bool check_peer(int, const std::byte**, double*) override { return true; }
  bool check_owner(int, bool) override { return true; }
  bool check_share(int, const std::byte*, std::uint64_t, std::size_t) override { return true; }
  // Ranks are threads of one process.
  std::uint64_t address_for_peers(const void* data, std::size_t) override {
    return reinterpret_cast<std::uintptr_t>(data);
  }
  bool read_process(std::byte* destination, int, std::uint64_t address,
                    std::size_t bytes) override {
    ++reads;
    std::memcpy(destination, reinterpret_cast<const void*>(address), bytes);
    return true;
  }
  int reads = 0;
  void report_count_mismatch(int, std::uint64_t, std::uint64_t) override {
    ADD_FAILURE() << "count mismatch";
  }
};

// Reads rank 0's input in place. From `raised` on, rank 0 has raised: its memory is in use again.
class InPlaceObserver : public AgreeingObserver {
 public:
  InPlaceObserver(const std::byte* input, const std::atomic<bool>& raised)
      : input_(input), raised_(raised) {}
  bool check_peer(int, const std::byte** base, double*) override {
    *base = input_;
    return true;
  }
  bool check_owner(int peer, bool) override {
    EXPECT_EQ(peer, 0);
    ++looks;
    if (before_look) before_look();
    return !raised_;
  }
  int looks = 0;
  std::function<void()> before_look;

 private:
  const std::byte* input_;
  const std::atomic<bool>& raised_;
};

// Regions of all ranks in this process's own memory.
class ThreadWorld : public SlotProvider {
 public:
  explicit ThreadWorld(int world)
      : regions_(static_cast<std::size_t>(world)),
        workspace_(static_cast<std::size_t>(world) * kSlots * kWorkspaceSlot) {
    for (int rank = 0; rank < world; ++rank) {
      regions_[static_cast<std::size_t>(rank)] = std::make_unique<ControlRegion>();
      ControlRegion* region = regions_[static_cast<std::size_t>(rank)].get();
      controls_.push_back(region);
      small_.push_back(region->small_slots[0]);
      slots_.push_back(workspace_.data() +
                       static_cast<std::size_t>(rank) * kSlots * kWorkspaceSlot);
    }
  }
  SymmView view(int rank) const {
    return {rank, static_cast<int>(controls_.size()), controls_.data(), small_.data(),
            kSmallSlotBytes};
  }
  Slots small() override { return {small_.data(), kSmallSlotBytes}; }
  Slots workspace() override { return {slots_.data(), kWorkspaceSlot}; }

  // Lets every rank's counters start there.
  void start_at(std::uint64_t value) {
    for (ControlRegion* region : controls_) region->ready.value = region->done.value = value;
  }

 private:
  std::vector<std::unique_ptr<ControlRegion>> regions_;
  std::vector<std::byte> workspace_;
  std::vector<ControlRegion*> controls_;
  std::vector<std::byte*> small_;
  std::vector<std::byte*> slots_;
};

class ExecutorTest : public testing::TestWithParam<std::tuple<CollectiveKind, Algorithm, int>> {};

TEST_P(ExecutorTest, GivesEveryRankTheRightData) {
  const auto [kind, algorithm, world] = GetParam();
  ThreadWorld memory(world);
  memory.start_at((std::uint64_t{1} << 32) - 9);
  const std::vector<std::size_t> counts = {0, 1, 7, 1027, 40'001};
  const auto body = [&, kind = kind, algorithm = algorithm, world = world](int rank) {
    AgreeingObserver observer;
    HostExecutor executor(memory.view(rank), wait_policy(world), observer);
    int round = 0;
    for (int repeat = 0; repeat < 2; ++repeat) {
      for (const std::size_t count : counts) {
        test::CollectiveCase one(rank, world, ++round, [&](const CollectiveArgs& args) {
          executor.begin(
              {.element_bytes = dtype_bytes(args.dtype),
               .kernels = &reduce_kernels(Dtype::kFloat32, ReduceOp::kSum, Isa::kBaseline),
               .factor = 1.0,
               .in_place = false,
               .reads_processes = repeat == 1,
               .streams = repeat == 1});
          ASSERT_TRUE(run_collective(executor, args, {algorithm, 16 * 1024}, memory));
          ASSERT_TRUE(executor.end());
        });
        one.check(kind, count, round % world);
      }
    }
    EXPECT_EQ(observer.reads > 0, kind == CollectiveKind::kAllToAll);
  };
  test::run_ranks(world, body);
}

std::vector<std::tuple<CollectiveKind, Algorithm, int>> all_cases() {
  std::vector<std::tuple<CollectiveKind, Algorithm, int>> cases;
  for (int k = 0; k < kCollectiveKindCount; ++k) {
    for (int a = 1; a < kAlgorithmCount; ++a) {
      const auto kind = static_cast<CollectiveKind>(k);
      const auto algorithm = static_cast<Algorithm>(a);
      if (!has_algorithm(kind, algorithm, PlanTarget::kHost)) continue;
      for (const int world : {2, 3, 4, 7}) cases.emplace_back(kind, algorithm, world);
    }
  }
  return cases;
}

std::string case_name(const testing::TestParamInfo<std::tuple<CollectiveKind, Algorithm, int>>& i) {
  return std::string(collective_name(std::get<0>(i.param))) + "_by_" +
         std::string(algorithm_name(std::get<1>(i.param))) + "_of_" +
         std::to_string(std::get<2>(i.param));
}

INSTANTIATE_TEST_SUITE_P(All, ExecutorTest, testing::ValuesIn(all_cases()), case_name);

// Elements of the sum over four ranks that are not the sum in the order of ranks. In place `r` of
// the group stands what rank order[r] contributes.
std::size_t sums_out_of_order(Algorithm algorithm, const std::vector<int>& order) {
  constexpr std::size_t kCount = 40'001;
  const auto world = static_cast<int>(order.size());
  ThreadWorld memory(world);
  std::atomic<std::size_t> wrong{0};
  test::run_ranks(world, [&](int rank) {
    std::vector<float> data(kCount);
    for (std::size_t i = 0; i < kCount; ++i) {
      data[i] = test::reduce_value(order[static_cast<std::size_t>(rank)], i, 1);
    }
    AgreeingObserver observer;
    HostExecutor executor(memory.view(rank), wait_policy(world), observer);
    executor.begin({.element_bytes = sizeof(float),
                    .kernels = &reduce_kernels(Dtype::kFloat32, ReduceOp::kSum, selected_isa()),
                    .factor = 1.0});
    ASSERT_TRUE(run_collective(executor, test::sum_args(data), {algorithm, 16 * 1024}, memory));
    ASSERT_TRUE(executor.end());
    for (std::size_t i = 0; i < kCount; ++i) wrong += data[i] != test::expected_sum(world, i, 1);
  });
  return wrong;
}

class CombiningOrder : public testing::TestWithParam<Algorithm> {};

// What the tests compare tells orders apart: an algorithm that took the ranks in another order
// would fail them.
TEST_P(CombiningOrder, IsThatOfTheRanksAndAnotherOneShows) {
  EXPECT_EQ(sums_out_of_order(GetParam(), {0, 1, 2, 3}), 0u);
  EXPECT_GT(sums_out_of_order(GetParam(), {3, 2, 1, 0}), 10'000u);
  EXPECT_GT(sums_out_of_order(GetParam(), {1, 2, 3, 0}), 10'000u);
}

std::vector<Algorithm> algorithms_of_all_reduce() {
  std::vector<Algorithm> algorithms;
  for (int a = 1; a < kAlgorithmCount; ++a) {
    const auto algorithm = static_cast<Algorithm>(a);
    if (has_algorithm(CollectiveKind::kAllReduce, algorithm, PlanTarget::kHost)) {
      algorithms.push_back(algorithm);
    }
  }
  return algorithms;
}

INSTANTIATE_TEST_SUITE_P(All, CombiningOrder, testing::ValuesIn(algorithms_of_all_reduce()),
                         [](const auto& i) { return std::string(algorithm_name(i.param)); });

CollectiveArgs broadcast_args(std::vector<float>& data, int root) {
  CollectiveArgs args;
  args.kind = CollectiveKind::kBroadcast;
  args.dtype = Dtype::kFloat32;
  args.count = data.size();
  args.input = args.output = data.data();
  args.root = root;
  return args;
}

constexpr Plan kPieces{Algorithm::kPipelined, 16 * 1024};
constexpr std::size_t kPieceFloats = 16 * 1024 / sizeof(float);

// Rank 0 raises and uses its tensor again, while rank 1 still reads it: between the wait for the
// data and the read (`early`), or between the read and the look that follows it.
class TornReads : public testing::TestWithParam<bool> {};

TEST_P(TornReads, ALookAtTheOwnerFollowsEachReadAndComesBeforeAnythingIsTold) {
  ThreadWorld memory(2);
  std::vector<float> owner(3 * kPieceFloats, 1.0f);
  std::vector<float> output(owner.size(), -1.0f);
  std::atomic<bool> raised{false};
  AgreeingObserver agreeing;
  InPlaceObserver reading(reinterpret_cast<const std::byte*>(owner.data()), raised);
  HostExecutor root(memory.view(0), wait_policy(2), agreeing);
  HostExecutor reader(memory.view(1), wait_policy(2), reading);
  root.begin({.element_bytes = sizeof(float), .in_place = true});
  ASSERT_TRUE(run_collective(root, broadcast_args(owner, 0), kPieces, memory));
  // The root waits in end() until it gives up; nothing has told it that rank 1 has read.
  const auto raise = [&] {
    raised = true;
    std::fill(owner.begin(), owner.end(), 2.0f);
  };
  if (GetParam()) {
    raise();
  } else {
    reading.before_look = [&] {
      if (reading.looks == 2) raise();
    };
  }
  reader.begin({.element_bytes = sizeof(float), .in_place = false});
  EXPECT_FALSE(run_collective(reader, broadcast_args(output, 0), kPieces, memory) && reader.end());
  EXPECT_EQ(reading.looks, GetParam() ? 1 : 2);
  EXPECT_EQ(memory.view(1).controls[1]->done.value, GetParam() ? 0u : 1u);
}

INSTANTIATE_TEST_SUITE_P(Executor, TornReads, testing::Bool());

TEST(Executor, ReadsInPlaceWhileTheOwnerIsThere) {
  ThreadWorld memory(2);
  std::vector<float> owner(3 * kPieceFloats, 1.0f);
  std::vector<float> output(owner.size(), -1.0f);
  const std::atomic<bool> raised{false};
  AgreeingObserver agreeing;
  InPlaceObserver reading(reinterpret_cast<const std::byte*>(owner.data()), raised);
  test::run_ranks(2, [&](int rank) {
    CallObserver& observer = rank == 0 ? agreeing : static_cast<CallObserver&>(reading);
    HostExecutor executor(memory.view(rank), wait_policy(2), observer);
    executor.begin({.element_bytes = sizeof(float), .in_place = rank == 0});
    std::vector<float>& data = rank == 0 ? owner : output;
    ASSERT_TRUE(run_collective(executor, broadcast_args(data, 0), kPieces, memory));
    ASSERT_TRUE(executor.end());
  });
  EXPECT_EQ(output, owner);
  EXPECT_EQ(reading.looks, 3);
}

// Counters that stand still: rank 0 alone publishes so many steps, which is what as many steps of
// broadcasts from it do. `ready` of the others, and what they know of the slowest reader, stay
// where they were.
class CountersThatStandStill : public testing::TestWithParam<std::uint64_t> {
 protected:
  static constexpr int kWorld = 3;

  // The slots, which these steps do not use, would keep the ranks together; here `together_` does.
  void publish_steps_of_rank_0(HostExecutor& executor, std::uint64_t steps) {
    constexpr std::uint64_t kMost = std::uint64_t{1} << 30;
    for (std::uint64_t left = steps; left > 0;) {
      const std::uint64_t now = std::min(left, kMost);
      const auto last = static_cast<std::uint32_t>(now - 1);
      executor.begin({});
      if (executor.rank() == 0) executor.publish(last);
      EXPECT_TRUE(executor.rank() == 0 || executor.await(0, last));
      executor.read_done(last);
      EXPECT_TRUE(executor.end());
      together_.arrive_and_wait();
      left -= now;
    }
  }

 private:
  std::barrier<> together_{kWorld};
};

TEST_P(CountersThatStandStill, AReaderWaitsForARankThatHasNeverPublished) {
  ThreadWorld memory(kWorld);
  test::run_ranks(kWorld, [&](int rank) {
    AgreeingObserver observer;
    HostExecutor executor(memory.view(rank), wait_policy(kWorld), observer);
    publish_steps_of_rank_0(executor, GetParam());
    for (int root = kWorld - 1; root >= 0; --root) {
      std::vector<float> data(2 * kPieceFloats, rank == root ? 1.0f + rank : 0.0f);
      if (rank == root) std::this_thread::sleep_for(std::chrono::milliseconds(30));
      executor.begin({.element_bytes = sizeof(float)});
      ASSERT_TRUE(run_collective(executor, broadcast_args(data, root), kPieces, memory));
      ASSERT_TRUE(executor.end());
      ASSERT_EQ(data, std::vector<float>(data.size(), 1.0f + static_cast<float>(root)));
    }
  });
}

TEST_P(CountersThatStandStill, ARankThatHasNeverOpenedASlotWaitsForItsReaders) {
  constexpr std::size_t kManyPieces = 3 * kSlots;
  ThreadWorld memory(kWorld);
  test::run_ranks(kWorld, [&](int rank) {
    AgreeingObserver observer;
    HostExecutor executor(memory.view(rank), wait_policy(kWorld), observer);
    publish_steps_of_rank_0(executor, GetParam());
    std::vector<float> data(kManyPieces * kPieceFloats, -1.0f);
    for (std::size_t i = 0; rank == 1 && i < data.size(); ++i) {
      data[i] = static_cast<float>(i / kPieceFloats);
    }
    if (rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    executor.begin({.element_bytes = sizeof(float)});
    ASSERT_TRUE(run_collective(executor, broadcast_args(data, 1), kPieces, memory));
    ASSERT_TRUE(executor.end());
    for (std::size_t i = 0; i < data.size(); ++i) {
      ASSERT_EQ(data[i], static_cast<float>(i / kPieceFloats)) << "element " << i;
    }
  });
}

// Each algorithm, with the counters that publish_steps_of_rank_0() leaves behind.
TEST_P(CountersThatStandStill, EveryAlgorithmGivesTheRightData) {
  ThreadWorld memory(kWorld);
  test::run_ranks(kWorld, [&](int rank) {
    AgreeingObserver observer;
    HostExecutor executor(memory.view(rank), wait_policy(kWorld), observer);
    int round = 0;
    for (const auto& [kind, algorithm, world] : all_cases()) {
      if (world != kWorld) continue;
      publish_steps_of_rank_0(executor, GetParam());
      test::CollectiveCase one(rank, world, ++round, [&](const CollectiveArgs& args) {
        executor.begin(
            {.element_bytes = dtype_bytes(args.dtype),
             .kernels = &reduce_kernels(Dtype::kFloat32, ReduceOp::kSum, Isa::kBaseline)});
        ASSERT_TRUE(run_collective(executor, args, {algorithm, 16 * 1024}, memory));
        ASSERT_TRUE(executor.end());
      });
      one.check(kind, 40'001, round % world);
    }
  });
}

std::vector<std::uint64_t> around_the_widths() {
  std::vector<std::uint64_t> steps;
  for (const std::uint64_t width : {std::uint64_t{1} << 31, std::uint64_t{1} << 32}) {
    for (const std::uint64_t off : {0u, 1u, 5u, kSlots, 2 * kSlots}) {
      steps.push_back(width - off);
      if (off != 0) steps.push_back(width + off);
    }
    steps.push_back(width + width / 4);
  }
  return steps;
}

INSTANTIATE_TEST_SUITE_P(Executor, CountersThatStandStill, testing::ValuesIn(around_the_widths()));

}  // namespace
}  // namespace symm
