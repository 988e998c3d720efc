// The records of calls, which every rank can write over: a rank believes its own copy of its own,
// and blames for a peer's all who can have done it.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "backend/engine/communicator.hpp"
#include "backend/engine/group/call_record.hpp"
#include "kernels/core/atomics.hpp"
#include "kernels/cpu/wait.hpp"
#include "kernels/plan/plan.hpp"
#include "kernels/protocol/group_page.hpp"
#include "test/support/collective_cases.hpp"
#include "test/support/expect_error.hpp"
#include "test/support/memory_store.hpp"
#include "test/support/pretended_rank.hpp"
#include "test/support/rank_threads.hpp"

namespace symm {
namespace {

// Where test/fault/hostile_rank_faults.py has the records of a rank begin.
static_assert(sizeof(GroupPage) == 28 << 10);

using test::error_of;
using test::expect_error;

// What rank 0's all_reduce ends with where rank 1 changes, before it comes, the record of rank 0 by
// `mine` and its own by `theirs`.
using Change = std::function<void(CallRecord&)>;
std::optional<Error> error_for(const Change& mine, const Change& theirs) {
  test::MemoryStore store;
  std::optional<Error> found;
  test::run_ranks(2, [&](int rank) {
    Communicator communicator(store, test::config_with_pretender(rank));
    std::vector<float> data(100, 1.0f);
    const CollectiveArgs args = test::sum_args(data);
    communicator.run(CollectiveArgs{});
    if (rank == 0) {
      found = error_of([&] { communicator.run(args); });
      return;
    }
    CallRecord record = make_record(args, communicator.plan(args, {}, PlanTarget::kHost),
                                    communicator.next_sequence());
    auto& control = *reinterpret_cast<ControlRegion*>(communicator.local_group()->region(0));
    while (load_acquire(&control.progress.entered) < record.sequence) std::this_thread::yield();
    mine(control.calls[record.sequence % kCallRing]);
    test::pretend(communicator, record, {}, theirs);
  });
  return found;
}

void keep(CallRecord&) {}
void destroy(CallRecord& record) { std::memset(&record, 0xEE, sizeof(record)); }

TEST(OverwrittenRecords, ARankBelievesItsOwnCopy) { EXPECT_FALSE(error_for(destroy, keep)); }

TEST(OverwrittenRecords, WhatIsNoCallIsBlamedOnAllWhoCanWriteThere) {
  for (const Change& change :
       {Change(destroy), Change([](CallRecord& record) { record.sequence += kCallRing; }),
        Change([](CallRecord& record) { record.algorithm = kAlgorithmCount; })}) {
    expect_error(
        error_for(keep, change), ErrorCode::kSecurity,
        {"group \"test\"", "the record of the call that rank 1 (global rank 11) made at seq 2",
         "was written over, which can have been done by rank 1 (global rank 11)"});
  }
}

TEST(OverwrittenRecords, AnotherCallIsADifferentCall) {
  expect_error(error_for(keep, [](CallRecord& record) { record.count += 1; }), ErrorCode::kMismatch,
               {"different calls at seq 2", "count 100", "count 101"});
}

}  // namespace
}  // namespace symm
