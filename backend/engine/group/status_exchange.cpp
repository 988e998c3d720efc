#include "backend/engine/group/status_exchange.hpp"

#include "symm_mem/segment/segment_descriptor.hpp"

namespace symm {

void exchange_status(LocalGroup& group, LocalGroup::Purpose purpose,
                     const std::optional<Error>& own, const Deadline& deadline) {
  SegmentDescriptor status;
  status.error = own;
  const auto statuses = group.exchange_metadata(purpose, status.encode(), deadline);
  if (own) throw Error(*own);
  for (int rank = 0; rank < group.world_size(); ++rank) {
    const auto& message = statuses.messages[static_cast<std::size_t>(rank)];
    const std::optional<Error> theirs =
        SegmentDescriptor::decode(message, rank, group.names()).error;
    if (!theirs) continue;
    throw Error(theirs->code(), group.prefix(), group.rank_name(rank), " failed: ", theirs->what());
  }
}

}  // namespace symm
