// What the ranks of one group use to agree about symmetric memory: a mesh of connections and a page
// of host memory a rank.
//
// NOTE [Rounds]
// agree() is a round: every rank writes the same number of words on its page, counts the round, and
// reads everybody's words once all have counted it. Two sets of words take turns, so a fast rank
// writes the next round's words beside those that a slow one still reads; it cannot be further
// ahead, since a round ends only when everybody has come. A round costs a few microseconds where
// all ranks come together, and no system call. Whatever ranks decide from the words, all decide
// alike.
//
// NOTE [A broken link]
// A rank that gives up in the middle of a round or an exchange closes its connections, which the
// others see as a hang-up and close theirs. The link is then of no use to anybody; a new one can be
// made for the same group (PeerMeshConfig::may_be_retried). Memory that was shared stays mapped.
//
// Rounds and shares are collective over the group, in the same order on every rank; a mutex orders
// callers on one rank. Everything else is local and may be called from any thread. Calls that wait
// must be made without Python's interpreter lock.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/cpu/wait.hpp"
#include "symm_mem/bootstrap/peer_mesh.hpp"
#include "symm_mem/bootstrap/store.hpp"
#include "symm_mem/segment/segment.hpp"

namespace symm {

struct PeerLinkConfig {
  std::string group_name;  // for messages
  int rank = 0;            // group rank
  int world_size = 1;
  std::int64_t global_rank = 0;                // of this rank; for messages, and told to the peers
  std::chrono::milliseconds timeout{300'000};  // of set-up
};

class PeerLink {
 public:
  static constexpr std::size_t kWords = 12;
  using Words = std::array<std::uint64_t, kWords>;

  // Collective. Throws as PeerMesh::connect, and kSystem.
  static std::shared_ptr<PeerLink> connect(KeyValueStore& store, const PeerLinkConfig& config);
  PeerLink(const PeerLink&) = delete;
  PeerLink& operator=(const PeerLink&) = delete;

  int rank() const { return config_.rank; }
  int world_size() const { return config_.world_size; }
  const std::string& group_name() const { return config_.group_name; }
  const std::vector<int>& global_ranks() const { return global_ranks_; }  // by group rank
  const WaitPolicy& policy() const { return policy_; }

  // "rank 2", with the global rank where that is another number.
  std::string rank_name(int rank) const;
  // "symmetric memory of group 'x', rank 2: ".
  const std::string& prefix() const { return prefix_; }

  // Throws Error(kAborted) where the link is broken, or in a forked child.
  void check_usable() const;
  // True once `peer`'s process has ended or has given the link up.
  bool hung_up(int peer);

  // One round. `what` names the caller's purpose, which must be the same on every rank: kMismatch
  // that names both otherwise, on every rank, and the link goes on. Returns everybody's words by
  // rank. Throws kTimeout and kPeerLost naming the ranks; the link is then broken.
  enum class Purpose : std::uint64_t { kRendezvous = 1, kView = 2 };
  struct Round {
    std::uint64_t number = 0;  // from 1, the same on every rank
    std::vector<Words> words;  // by rank
  };
  Round agree(Purpose purpose, const Words& words, std::chrono::milliseconds timeout);

  // Segment::rendezvous over this group. Refusals that all ranks share leave the link usable.
  std::shared_ptr<Segment> share(std::shared_ptr<LocalSegment> local,
                                 std::chrono::milliseconds timeout);

  // A message of at most 4 KiB from every rank to every other, by rank.
  std::vector<std::vector<std::uint8_t>> tell(std::span<const std::uint8_t> message,
                                              std::chrono::milliseconds timeout);

  // Breaks the link: `why` is what later calls throw. Never blocks.
  void close(const std::string& why) noexcept;

  // Held by a caller over several rounds that belong together.
  std::unique_lock<std::recursive_mutex> hold() {
    return std::unique_lock<std::recursive_mutex>(mutex_);
  }

 private:
  struct Page;
  class RoundSupervisor;

  explicit PeerLink(const PeerLinkConfig& config);
  Page& page(int rank) const;
  std::vector<int> absent(std::uint32_t round) const;
  std::string names(const std::vector<int>& ranks) const;
  std::shared_ptr<PeerMesh> mesh() const;
  void check_purposes(const std::vector<Words>& words, std::uint32_t round) const;
  template <typename Step>
  auto guarded(Step&& step);

  PeerLinkConfig config_;
  std::string prefix_;
  std::vector<int> global_ranks_;
  WaitPolicy policy_;
  const std::uint32_t fork_generation_;
  std::shared_ptr<Segment> pages_;

  std::recursive_mutex mutex_;  // one round or exchange at a time
  std::uint64_t round_ = 0;
  std::uint64_t sequence_ = 0;

  mutable std::mutex state_mutex_;  // guards what follows
  std::shared_ptr<PeerMesh> mesh_;
  std::string broken_;  // why; empty while the link works
  std::atomic<bool> is_broken_{false};
};

}  // namespace symm
