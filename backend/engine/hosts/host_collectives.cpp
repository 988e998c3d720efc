#include "backend/engine/hosts/host_collectives.hpp"

#include <string>
#include <utility>

#include "backend/engine/communicator.hpp"
#include "backend/engine/group/validation.hpp"
#include "backend/engine/hosts/host_algorithms.hpp"
#include "symm_mem/process/interrupt.hpp"
#include "symm_mem/process/process_identity.hpp"

namespace symm {

HostCollectives::HostCollectives(std::string group, const HostLayout& layout, int rank,
                                 RankNames names, Communicator& local, LegSpace& space,
                                 const HostLimits& limits, std::shared_ptr<KeyValueStore> store)
    : group_(std::move(group)),
      communicator_(local),
      space_(space),
      watch_(store == nullptr ? nullptr
                              : std::make_unique<CallWatch>(
                                    CallWatch::Config{std::move(store), layout, rank, names},
                                    [this] { return failure_here(); },
                                    [this](const Error& what) { give_up(what.what()); })),
      legs_(layout, rank, std::move(names), space, limits, watch_ ? watch_->awaited() : awaited_) {}

void HostCollectives::validate(const CollectiveArgs& args) const {
  communicator_.local_group()->check_usable();
  const HostLayout& layout = legs_.layout();
  validate_collective(args, legs_.rank(), layout.world_size(), legs_.names());
  const bool narrow =
      args.dtype == Dtype::kInt8 || args.dtype == Dtype::kUInt8 || args.dtype == Dtype::kInt16;
  if (reduces(args.kind) && args.op == ReduceOp::kAvg && narrow) {
    throw Error(ErrorCode::kUnsupported, collective_name(args.kind), ": ReduceOp AVG of dtype ",
                dtype_name(args.dtype), " over several hosts (", layout.text(),
                ") would wrap inside a host; use a wider dtype");
  }
}

void HostCollectives::run(const CollectiveArgs& args, std::chrono::milliseconds timeout) {
  validate(args);
  const std::lock_guard lock(mutex_);
  space_.check(args.kind);
  ++sequence_;
  const CallNote note = note_of(args, sequence_);
  legs_.begin(timeout, note);
  if (watch_) watch_->begin(args, note);
  const auto end_for = [this](const std::string& reason) {
    if (watch_) watch_->end();
    give_up(reason);
  };
  try {
    dispatch(args);
  } catch (const Error& error) {
    // What the difference of two calls led to says less than the difference.
    const std::optional<Error> difference = watch_ ? watch_->difference() : std::nullopt;
    if (watch_) watch_->end();
    const Error& cause = difference ? *difference : error;
    const HostLayout& layout = legs_.layout();
    const Error named(cause.code(), "group \"", group_, "\": ", collective_name(args.kind),
                      " over hosts (", layout.text(), ") seq ", sequence_, ": ",
                      legs_.text_of_rank(legs_.rank()), ": ", legs_.leg(), ": ", cause.what(),
                      who_is_gone());
    give_up(named.what());
    throw named;
  } catch (const Interrupted&) {
    end_for(interrupted_error().what());
    throw;
  } catch (...) {
    end_for("a collective over hosts was interrupted");
    throw;
  }
  if (watch_) watch_->end();
}

// The other hosts may hear of a death before this one does, and close what they share with the
// survivors: that is what fails here then, and not the cause.
std::string HostCollectives::who_is_gone() const {
  const LocalGroup& group = *communicator_.local_group();
  std::string text;
  for (int place = 0; place < group.world_size(); ++place) {
    if (place == legs_.place()) continue;
    if (!group.is_gone(place) && !has_begun_to_end(group.mesh().peer(place).process)) continue;
    const int rank = legs_.here()[static_cast<std::size_t>(place)];
    text += text_of("; ", legs_.names().name(rank), " of this host has ended or left");
  }
  return text;
}

std::optional<Error> HostCollectives::failure_here() const {
  LocalGroup& group = *communicator_.local_group();
  if (!group.poll(std::string("a collective over hosts"))) return group.failure();
  for (int place = 0; place < group.world_size(); ++place) {
    if (place == legs_.place() || !group.has_ended(place)) continue;
    const int rank = legs_.here()[static_cast<std::size_t>(place)];
    return Error(ErrorCode::kPeerLost, legs_.text_of_rank(rank), " died");
  }
  return std::nullopt;
}

// The ranks of this host first, so that they say what happened here and not what the link did.
void HostCollectives::give_up(const std::string& reason) {
  communicator_.abort(reason);
  space_.abort();
}

void HostCollectives::dispatch(const CollectiveArgs& args) {
  if (goes_by_leaders(legs_, args)) return call_by_leaders(legs_, args);
  switch (args.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduce:
      return reduce_over_rails(legs_, args);
    case CollectiveKind::kReduceScatter:
      return reduce_scatter_over_rails(legs_, args);
    case CollectiveKind::kAllGather:
      return all_gather_over_rails(legs_, args);
    case CollectiveKind::kBroadcast:
      return broadcast_over_rails(legs_, args);
    case CollectiveKind::kGather:
    case CollectiveKind::kScatter:
    case CollectiveKind::kAllToAll:
      return move_between_pairs(legs_, args);
    case CollectiveKind::kBarrier:
      return;  // always goes by leaders
  }
}

}  // namespace symm
