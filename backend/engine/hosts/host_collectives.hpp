// The collectives of a group over several hosts: the communicator of each host and a link between
// the hosts, composed.
//
// NOTE [Steps over hosts]
// A rail is one rank of every host: those at one place among their host's ranks. There are as many
// as the smallest host has ranks.
//   all_reduce       reduce_scatter in the host, one share a rail; pieces over the rail, folded in
//                    the order of the hosts; folded pieces over the rail; all_gather in the host
//   reduce           the same as far as the folded pieces, which go to the root
//   reduce_scatter   reduce_scatter in the host; partial results to their ranks, folded there
//   all_gather       the input to one rank of every other host; all_gather in the host
//   broadcast        in the root's host; a share a rail to the others; all_gather in the host
//   gather, scatter, all_to_all: to each rank what is for it, over the link or in the host
// Values are combined in the order of the ranks inside a host and rounded, then in the order of the
// hosts; AVG divides at the end, PREMUL_SUM multiplies first. No step depends on the link's own
// order, so every rank has the same bits over any link.
//
// Before each collective all ranks tell those of other hosts what they are about to do, so calls
// that differ fail as kMismatch; it is the barrier between hosts too.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "backend/engine/hosts/host_layout.hpp"
#include "backend/engine/hosts/host_link.hpp"
#include "kernels/core/collective.hpp"
#include "symm_mem/bootstrap/rank_names.hpp"
#include "symm_mem/process/deadline.hpp"

namespace symm {

class Communicator;

class HostCollectives {
 public:
  // `rank` is a group rank; `local` has the ranks of its host. Both outlive this object.
  HostCollectives(const HostLayout& layout, int rank, RankNames names, Communicator& local,
                  HostLink& link);

  // As Communicator's. A failure ends the group on every rank: here at once, on the other hosts
  // once the link has told them.
  void validate(const CollectiveArgs& args) const;
  void run(const CollectiveArgs& args, std::chrono::milliseconds timeout);

 private:
  using Bytes = std::vector<std::byte>;
  using Parts = std::vector<Part>;
  struct Note;

  void dispatch(const CollectiveArgs& args);
  void compare_notes(const CollectiveArgs& args);
  void all_reduce(const CollectiveArgs& args);
  void reduce(const CollectiveArgs& args);
  void reduce_scatter(const CollectiveArgs& args);
  void all_gather(const CollectiveArgs& args);
  void broadcast(const CollectiveArgs& args);
  void gather(const CollectiveArgs& args);
  void scatter(const CollectiveArgs& args);
  void all_to_all(const CollectiveArgs& args);

  // The folded piece of this rank; empty beyond the rails.
  Bytes rail_fold(const CollectiveArgs& args);
  void fold(const CollectiveArgs& args, const std::vector<const void*>& of_hosts, void* result,
            std::size_t count) const;
  void run_local(const CollectiveArgs& args);
  // To every rank what is for it, in the host and between hosts; counts in bytes.
  void exchange_all(Parts& to, Parts& from);
  void exchange(const Parts& to, const Parts& from);

  Parts no_parts() const { return Parts(layout_.host_of.size()); }
  bool on_rail() const { return local_ < layout_.rails; }
  bool is_here(int rank) const { return layout_.host_of[static_cast<std::size_t>(rank)] == host_; }
  const std::vector<int>& here() const { return layout_.members[static_cast<std::size_t>(host_)]; }
  std::chrono::milliseconds left() const;

  const HostLayout& layout_;
  const int rank_;
  const int host_;
  const int local_;
  const RankNames names_;
  Communicator& communicator_;
  HostLink& link_;
  std::mutex mutex_;                                 // a call at a time; guards what follows
  Deadline deadline_{std::chrono::milliseconds(0)};  // of the call in progress
  std::uint64_t sequence_ = 0;
  const char* leg_ = "";
};

}  // namespace symm
