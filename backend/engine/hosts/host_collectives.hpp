// The collectives of a group over several hosts: those of each host and a link between the hosts,
// composed (NOTE [Steps over hosts] in host_algorithms.hpp).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "backend/engine/hosts/call_watch.hpp"
#include "backend/engine/hosts/host_legs.hpp"
#include "backend/engine/legs/leg_space.hpp"
#include "kernels/core/collective.hpp"

namespace symm {

class Communicator;

class HostCollectives {
 public:
  // `rank` is a group rank of `group`, whose name is for messages; `local` has the ranks of its
  // host, and `space` runs what they do. All outlive this object. `store`, for this alone, is for
  // NOTE [Late calls] in call_watch.hpp; null where run() does not wait for messages.
  HostCollectives(std::string group, const HostLayout& layout, int rank, RankNames names,
                  Communicator& local, LegSpace& space, const HostLimits& limits,
                  std::shared_ptr<KeyValueStore> store);

  // As Communicator's; a call at a time, later ones wait. A failure ends the group on every rank:
  // here at once, on the other hosts once the link has told them. run() returns when the call is
  // done, or, in a space that is a stream, when all of it is there.
  void validate(const CollectiveArgs& args) const;
  void run(const CollectiveArgs& args, std::chrono::milliseconds timeout);

 private:
  void dispatch(const CollectiveArgs& args);
  void give_up(const std::string& reason);
  // The failure of this host's group, or of a rank of it that has ended without leaving.
  std::optional<Error> failure_here() const;
  // "; rank 3 of this host has ended or left", or nothing. Local.
  std::string who_is_gone() const;

  const std::string group_;
  Communicator& communicator_;
  LegSpace& space_;
  std::mutex mutex_;              // guards what follows
  std::atomic<int> awaited_{-1};  // where there is no watch
  std::unique_ptr<CallWatch> watch_;
  HostLegs legs_;
  std::uint64_t sequence_ = 0;
};

}  // namespace symm
