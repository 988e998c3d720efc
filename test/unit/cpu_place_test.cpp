// Leaving a CPU, and that a waiter leaves that of the rank it waits for.
#include "kernels/cpu/cpu_place.hpp"

#include <gtest/gtest.h>
#include <sched.h>

#include <chrono>
#include <thread>

#include "kernels/cpu/wait.hpp"

namespace symm {
namespace {

using namespace std::chrono_literals;

cpu_set_t affinity() {
  cpu_set_t set;
  EXPECT_EQ(::sched_getaffinity(0, sizeof(set), &set), 0);
  return set;
}

void set_affinity(const cpu_set_t& set) { ASSERT_EQ(::sched_setaffinity(0, sizeof(set), &set), 0); }

cpu_set_t only(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(cpu), &set);
  return set;
}

// Tried again where the scheduler takes the thread off its CPU in between.
constexpr int kTries = 50;

// Each try in a thread of its own: what is noted of moves is the thread's.
class CpuPlaceTest : public testing::Test {
 protected:
  void SetUp() override {
    const cpu_set_t all = affinity();
    if (CPU_COUNT(&all) < 2) GTEST_SKIP() << "needs two CPUs";
  }
  template <class Body>
  static void in_a_thread(const Body& body) {
    std::thread(body).join();
  }
  template <class Body>
  static bool succeeds_once(const Body& body) {
    bool done = false;
    for (int i = 0; i < kTries && !done; ++i) in_a_thread([&] { done = body(); });
    return done;
  }
};

TEST_F(CpuPlaceTest, LeavesACpuAndKeepsItsAffinity) {
  EXPECT_TRUE(succeeds_once([] {
    const cpu_set_t before = affinity();
    const int cpu = current_cpu();
    EXPECT_GE(cpu, 0);
    EXPECT_TRUE(leave_cpu(cpu));
    const bool is_elsewhere = current_cpu() != cpu;
    const cpu_set_t after = affinity();
    EXPECT_TRUE(CPU_EQUAL(&before, &after));
    return is_elsewhere;
  }));
}

TEST_F(CpuPlaceTest, RestsBetweenMoves) {
  EXPECT_TRUE(succeeds_once([] {
    EXPECT_TRUE(leave_cpu(current_cpu()));
    const bool rests = !leave_cpu(current_cpu());
    std::this_thread::sleep_for(2ms);
    EXPECT_TRUE(leave_cpu(current_cpu()));
    return rests;
  }));
}

TEST_F(CpuPlaceTest, StaysWhereItMayUseNoOther) {
  in_a_thread([] {
    const int cpu = current_cpu();
    const cpu_set_t one = only(cpu);
    set_affinity(one);
    EXPECT_FALSE(leave_cpu(cpu));
    EXPECT_EQ(current_cpu(), cpu);
    const cpu_set_t after = affinity();
    EXPECT_TRUE(CPU_EQUAL(&one, &after));
    EXPECT_FALSE(leave_cpu(-1));
    EXPECT_FALSE(leave_cpu(CPU_SETSIZE));
  });
}

TEST_F(CpuPlaceTest, AWaiterThatHasSpunLeavesTheCpuOfWhomItWaitsFor) {
  constexpr int kPauses = 10;
  const auto wait = [](int round, bool moves_apart, const SignalLine* awaited) {
    const WaitPolicy policy{.pauses = kPauses, .yields = 0, .moves_apart = moves_apart};
    EXPECT_EQ(spin(round, policy, awaited), round < kPauses);
  };
  EXPECT_TRUE(succeeds_once([&] {
    SignalLine line{};
    post(line, 1);
    const int cpu = current_cpu();
    const bool is_noted = line.cpu == static_cast<std::uint32_t>(cpu + 1);
    wait(kPauses, true, &line);
    return is_noted && current_cpu() != cpu && !leave_cpu(current_cpu());
  }));
  in_a_thread([&] {
    SignalLine line{};
    note_cpu(line);
    SignalLine elsewhere{};
    elsewhere.cpu = CPU_SETSIZE;
    wait(0, true, &line);             // it still spins
    wait(kPauses, false, &line);      // ranks share cores
    wait(kPauses, true, nullptr);     // nobody knows for whom
    wait(kPauses, true, &elsewhere);  // of somebody on another CPU
    EXPECT_TRUE(leave_cpu(current_cpu())) << "it has not moved before";
  });
}

}  // namespace
}  // namespace symm
