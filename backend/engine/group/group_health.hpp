// Whether a group still works, and if not, why.
//
// NOTE [How a failure spreads]
// The first thing that goes wrong on a rank (a peer that died or left, a time-out, a different
// call, abort()) is kept as the failure of the group on this rank and published in this rank's
// FailureRecord. Whoever waits looks, every few milliseconds, at its own failure, at the records of
// its peers and at their connections, so that a failure known to one rank ends the waits of all.
// A peer that is gone is no failure for a call that it has completed.
//
// Thread safety: every member may be called from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "backend/engine/group/group_memory.hpp"
#include "kernels/core/error.hpp"
#include "symm_mem/bootstrap/peer_mesh.hpp"

namespace symm {

class GroupHealth {
 public:
  // `global_ranks` by group rank. `mesh` and `memory` are null in a group of one.
  GroupHealth(const std::string& group_name, int rank, std::vector<std::int64_t> global_ranks,
              PeerMesh* mesh, GroupMemory* memory);

  bool failed() const noexcept { return failed_.load(std::memory_order_acquire); }

  // The failure; call only when failed().
  Error failure() const;

  // Keeps `error` unless there is a failure already, and publishes it to the peers.
  void fail(const Error& error);

  // From now on a failure, or leaving, sets `word` to 1 before anybody can learn of it; at once
  // where that has happened. `word` must stay valid until the next call; null: no word any more.
  void set_abort_word(std::uint32_t* word);

  // This rank leaves in good order: its own waits end with kAborted, peers see that it has left.
  void leave();

  // Looks at every peer. Returns false, having failed the group, when one of them has failed or is
  // gone without having completed collective `sequence`. `call` names the operation in messages.
  bool check_peers(std::uint64_t sequence, const std::string& call);

  // The same for what peers say of themselves alone: memory is read, no connection is looked at.
  bool hear_peers(const std::string& call);

  // True when `peer` has left or its process has ended: what it has published stands, but nothing
  // more will come. `reason` tells which.
  bool is_gone(int peer, Error* reason);

  // "rank 1", or "rank 1 (global rank 5)" where the two differ.
  std::string rank_name(int rank) const;
  // "group \"0\": rank 1: ".
  const std::string& prefix() const { return prefix_; }

  // For a time-out: which ranks have entered collective `sequence` and what the others did last.
  std::string attendance(std::uint64_t sequence) const;

 private:
  bool hear_peer(int peer, const std::string& call);
  bool check_peer(int peer, std::uint64_t sequence, const std::string& call);

  std::vector<std::int64_t> global_ranks_;
  int rank_;
  std::string prefix_;
  PeerMesh* mesh_;
  GroupMemory* memory_;
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;
  std::optional<Error> failure_;
  std::uint32_t* abort_word_ = nullptr;
};

}  // namespace symm
