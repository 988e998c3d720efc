// A segment that a communicator's collectives know.
#pragma once

#include <gtest/gtest.h>

#include <barrier>
#include <chrono>
#include <functional>
#include <latch>
#include <memory>
#include <utility>

#include "backend/engine/communicator.hpp"
#include "symm_mem/segment/segment.hpp"
#include "symm_mem/segment/segment_rendezvous.hpp"
#include "test/support/expect_error.hpp"

namespace symm::test {

// What a test changes of a rendezvous.
struct JoinHooks {
  std::function<void()> before_status;
  std::function<bool()> give_up;  // in place of the group's
};

// Collective: shares `local` over the communicator's LocalGroup and adds the segment, as a
// rendezvous of PyTorch's API does.
inline std::shared_ptr<Segment> join_segment(Communicator& communicator,
                                             std::shared_ptr<LocalSegment> local,
                                             bool symmetric = false, const JoinHooks& hooks = {}) {
  LocalGroup& group = *communicator.local_group();
  std::shared_ptr<Segment> segment;
  group.run_rendezvous(Deadline(std::chrono::seconds(20)), [&](const MeshRound& given) {
    const MeshRound round{given.mesh, given.position, given.deadline,
                          hooks.give_up ? hooks.give_up : given.give_up};
    SegmentRendezvous rendezvous(round, std::move(local), group.segments().free_rows());
    rendezvous.post();
    group.exchange_metadata(LocalGroup::Purpose::kRendezvous, {}, round.deadline);
    segment = rendezvous.run([&](const Segment& made) {
      communicator.prepare_segment(made);
      if (hooks.before_status) hooks.before_status();
    });
    communicator.add_segment(segment, symmetric);
    return true;
  });
  return segment;
}

// A rendezvous that succeeds on rank 0 alone: the others give up when they have sent their status,
// before rank 0 sends its own. For one rendezvous.
class RendezvousOfRank0 {
 public:
  explicit RendezvousOfRank0(int world_size) : mapped_(world_size), ended_(world_size - 1) {}

  // By every rank. Null on all but rank 0.
  std::shared_ptr<Segment> join(Communicator& communicator, std::shared_ptr<LocalSegment> local,
                                bool symmetric = false) {
    if (communicator.rank() == 0) {
      const auto wait_for_others = [this] {
        mapped_.arrive_and_wait();
        ended_.wait();
      };
      return join_segment(communicator, std::move(local), symmetric,
                          {.before_status = wait_for_others, .give_up = {}});
    }
    bool mapped = false;
    const auto meet = [&] {
      mapped_.arrive_and_wait();
      mapped = true;
    };
    const auto error = error_of([&] {
      join_segment(communicator, std::move(local), symmetric,
                   {.before_status = meet, .give_up = [&] { return mapped; }});
    });
    ended_.count_down();
    expect_error(error, ErrorCode::kAborted, {"aborted while waiting for"});
    return nullptr;
  }

 private:
  std::barrier<> mapped_;
  std::latch ended_;
};

}  // namespace symm::test
