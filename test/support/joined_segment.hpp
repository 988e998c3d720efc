// A segment that a communicator's collectives know.
#pragma once

#include <chrono>
#include <memory>
#include <utility>

#include "backend/engine/communicator.hpp"
#include "symm_mem/segment/segment.hpp"

namespace symm::test {

// Collective: shares `local` over the communicator's LocalGroup, as a rendezvous of PyTorch's API
// does, and adds the segment.
inline std::shared_ptr<Segment> join_segment(Communicator& communicator,
                                             std::shared_ptr<LocalSegment> local,
                                             bool symmetric = false) {
  communicator.check_segment(*local);
  auto segment =
      communicator.local_group()->share(std::move(local), Deadline(std::chrono::seconds(20)));
  communicator.add_segment(segment, symmetric);
  return segment;
}

}  // namespace symm::test
