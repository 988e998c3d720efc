// Algorithms over threads that share one address space: what ThreadSanitizer can follow.
#include <gtest/gtest.h>

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
  bool keep_waiting(int) override { return true; }
  bool check_peer(int, const std::byte**, double*) override { return true; }
  void report_count_mismatch(int, std::uint64_t, std::uint64_t) override {
    ADD_FAILURE() << "count mismatch";
  }
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

  // Lets every rank's counters start just below wrap-around.
  void start_at(std::uint32_t value) {
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
  memory.start_at(static_cast<std::uint32_t>(-9));
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
               .in_place = false});
          ASSERT_TRUE(run_collective(executor, args, {algorithm, 16 * 1024}, memory));
          ASSERT_TRUE(executor.end());
        });
        one.check(kind, count, round % world);
      }
    }
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

}  // namespace
}  // namespace symm
