// What a small call among ranks of a host costs this rank beside its waits: instructions, memory
// from the allocator and system calls, as counts of the code and not of a machine. The budgets of
// instructions are a tenth above what GCC 12 makes of it.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "test/libtorch/group_ranks.hpp"
#include "test/support/call_cost.hpp"

namespace symm::test {
namespace {

thread_local std::uint64_t allocations = 0;

struct Cost {
  std::uint64_t instructions;
  std::uint64_t allocations;
};

constexpr int kSteppedTries = 3;
constexpr int kStepped = 4;  // calls whose instructions are counted
constexpr int kTries = 20;
constexpr int kCalls = 400;  // for the rest

using Counted = std::optional<std::uint64_t>;
using Count = std::function<Counted(const std::function<void()>&)>;

Counted allocations_of(const std::function<void()>& body) {
  const std::uint64_t before = allocations;
  body();
  return allocations - before;
}

}  // namespace
}  // namespace symm::test

// Not inlined, or GCC takes new and free() for a pair that does not belong together.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++symm::test::allocations;
  if (void* const memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace symm::test {
namespace {

// Rank 0 of two counts, in as many calls as the other makes. Between the tries they meet, so that a
// sender is never far ahead of a receiver that makes single steps.
void expect_at_most(const Cost& budget, const std::function<void(c10d::Backend&, int)>& call) {
  run_ranks(2, [&](int rank) {
    const auto backend = c10d::resolve_process_group(kGroup)->getBackend(c10::kCPU);
    const auto repeat = [&](int calls) {
      for (int i = 0; i < calls; ++i) call(*backend, rank);
    };
    const auto least = [&](int tries, int calls, const Count& count) {
      Counted best;
      for (int i = 0; i < tries; ++i) {
        backend->barrier()->wait();
        Counted one;
        if (rank == 0) {
          one = count([&] { repeat(calls); });
        } else {
          repeat(calls);
        }
        best = best ? std::min(best, one) : one;
      }
      return best;
    };
    // As in a program that runs for some time: the flight record's ring has been full once.
    repeat(3'000);
    const Counted instructions = least(kSteppedTries, kStepped, instructions_of);
    const Counted allocated = least(kTries, kCalls, allocations_of);
    const Counted system_calls = least(kTries, kCalls, system_calls_of);
    if (rank != 0) return;
    std::printf("%llu instructions of %llu, %.2f allocations of %llu, %.2f system calls\n",
                static_cast<unsigned long long>(instructions.value_or(0) / kStepped),
                static_cast<unsigned long long>(budget.instructions),
                static_cast<double>(*allocated) / kCalls,
                static_cast<unsigned long long>(budget.allocations),
                static_cast<double>(system_calls.value_or(0)) / kCalls);
    EXPECT_LE(*allocated, kCalls * budget.allocations);
    if (!instructions || !system_calls) return;  // processes may not be traced here
    EXPECT_LE(*instructions, kStepped * budget.instructions);
    EXPECT_GE(*instructions, kStepped * 200u) << "cannot have been carried out";
    // The other rank sleeps while the tracer begins, and has to be woken then.
    EXPECT_LT(*system_calls, kCalls / 10);
  });
}

constexpr std::int64_t kElements = 64;
std::vector<at::Tensor> some() { return {torch::ones({kElements})}; }

TEST(SmallCalls, AllReduce) {
  c10d::AllreduceOptions options;
  options.asyncOp = false;
  std::vector<at::Tensor> tensors = some();
  expect_at_most({4'290, 0}, [&](c10d::Backend& group, int) { group.allreduce(tensors, options); });
}

TEST(SmallCalls, Broadcast) {
  c10d::BroadcastOptions options;
  options.asyncOp = false;
  std::vector<at::Tensor> tensors = some();
  expect_at_most({3'790, 0}, [&](c10d::Backend& group, int) { group.broadcast(tensors, options); });
}

// The allocation of these two is the list of shares.
TEST(SmallCalls, AllGather) {
  c10d::AllgatherOptions options;
  options.asyncOp = false;
  at::Tensor input = torch::ones({kElements});
  at::Tensor output = torch::empty({2 * kElements});
  expect_at_most({5'270, 1},
                 [&](c10d::Backend& group, int) { group._allgather_base(output, input, options); });
}

TEST(SmallCalls, ReduceScatter) {
  c10d::ReduceScatterOptions options;
  options.asyncOp = false;
  at::Tensor input = torch::ones({2 * kElements});
  at::Tensor output = torch::empty({kElements});
  expect_at_most({5'240, 1}, [&](c10d::Backend& group, int) {
    group._reduce_scatter_base(output, input, options);
  });
}

// The Work, the engine's transfer and its callback; seldom a block of a queue. In one direction:
// two ranks that are traced and wait for each other fall asleep by turns.
void expect_messages_at_most(int sender, const Cost& budget) {
  std::vector<at::Tensor> tensors = some();
  expect_at_most(budget, [&](c10d::Backend& group, int rank) {
    const auto work =
        rank == sender ? group.send(tensors, 1 - rank, 0) : group.recv(tensors, 1 - rank, 0);
    work->wait();
  });
}

TEST(SmallCalls, Send) { expect_messages_at_most(0, {4'880, 4}); }

TEST(SmallCalls, Receive) { expect_messages_at_most(1, {5'400, 5}); }

}  // namespace
}  // namespace symm::test
