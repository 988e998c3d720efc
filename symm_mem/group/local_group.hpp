// The ranks of one group on one host: a mesh of connections, a page of shared memory a rank, one
// failure and one watchdog. Collectives and symmetric memory of a group share one such object.
//
// NOTE [How a failure spreads]
// The first error of a rank (a peer that died or left, a time-out of a collective, a different
// call, abort()) is the failure of the group on this rank and is published on its page, with the
// rank and the words of its origin, which those who fail because of it pass on as they are. Whoever
// waits polls, every few milliseconds, its own failure, the pages of its peers and their
// connections, so one rank's failure ends the waits of all. A peer that is gone is no failure for a
// call that it has completed. The failure ends collectives and symmetric memory of the group; a
// rendezvous that fails ends nothing but itself.
//
// NOTE [Memory of a rank that gives up]
// A peer may read memory of a rank in place. The rank gives it back to its user when all have read
// it, or when it gives up: then a late peer may read what the user has written since. A look before
// the read would not tell, so
//   the owner   publishes that it gave up or left; fence_before_writes(); raises to its user
//   the reader  reads; fence_after_reads(); looks whether the owner gave up or left
// A reader that has read anything newer finds the owner's word, and raises. stands() is that look.
// Every thread that raises the failure has passed the fence, whichever thread failed the group.
//
// NOTE [Metadata exchange]
// In exchange_metadata() every rank writes a message on its page, stores the exchange's number, and
// reads all messages once all ranks have stored it. A page has two messages, used by turns: a fast
// rank writes the next one while a slow rank still reads this one, and cannot be further ahead,
// since an exchange ends only when all ranks have come. It takes a few microseconds and no system
// call where all ranks come at the same time. All ranks have the same messages, so they decide the
// same from them.
//
// A rank that gives up an exchange, or a rendezvous that it began, stores that number on its page,
// and whom it missed, which those who give up because of it pass on. Ranks that wait for it, or
// come later, raise; all go on with the next number over the same connections. It may then write
// over a message that a late rank still reads, which looks again once it has read.
//
// Metadata exchanges and share() are collective over the group, in the same order on every rank,
// and independent of the order of collectives (NOTE [Streams of frames] in peer_frame.hpp); a mutex
// orders callers on one rank. Everything else is local and may be called from any thread. Calls
// that wait must be made without Python's interpreter lock.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/core/atomics.hpp"
#include "kernels/core/error.hpp"
#include "kernels/cpu/wait.hpp"
#include "kernels/protocol/group_page.hpp"
#include "symm_mem/bootstrap/bootstrap_mesh.hpp"
#include "symm_mem/bootstrap/mesh_round.hpp"
#include "symm_mem/bootstrap/rank_names.hpp"
#include "symm_mem/bootstrap/store.hpp"
#include "symm_mem/group/pending_work.hpp"
#include "symm_mem/group/segment_table.hpp"
#include "symm_mem/group/watchdog.hpp"
#include "symm_mem/process/deadline.hpp"
#include "symm_mem/segment/segment.hpp"

namespace symm {

struct LocalGroupConfig {
  std::string group_name;  // for messages
  int rank = 0;            // group rank
  int world_size = 1;
  // By group rank. Empty where they are unknown: then messages take the group rank, and what other
  // groups know of its members is not used (NOTE [Ranks that never publish] in live_groups.hpp).
  std::vector<std::int64_t> global_ranks;
  std::chrono::milliseconds timeout{300'000};  // of set-up
  std::vector<std::uint8_t> payload;           // opaque bytes that every rank learns
  // How many threads want this machine's cores where that is more than one a rank; how a rank waits
  // depends on it.
  int busy_threads = 0;
  // Shared host memory of a rank behind its page, zero at the start; the same on every rank. A
  // group of one has none.
  std::size_t region_bytes = 0;
  // What each rank will share later: room for it is looked for now.
  std::size_t later_bytes = 0;
  // Metadata exchanges that count as over, the same on every rank: tests set it near the widths of
  // words.
  std::uint64_t first_exchange = 0;
};

class LocalGroup {
 public:
  // Collective. Throws as BootstrapMesh::connect, and kSystem.
  static std::shared_ptr<LocalGroup> connect(KeyValueStore& store, const LocalGroupConfig& config);

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  const std::string& group_name() const { return group_name_; }
  const std::vector<int>& global_ranks() const { return global_ranks_; }  // by group rank
  std::span<const std::uint8_t> payload(int rank) const;
  BootstrapMesh& mesh() const { return *mesh_; }
  std::byte* region(int rank) const;  // null in a group of one
  // Of this rank's page and region; 0 in a group of one.
  std::size_t shared_bytes() const { return pages_ ? pages_->mapped_bytes() : 0; }
  const WaitPolicy& policy() const { return policy_; }
  Watchdog& watchdog() { return watchdog_; }
  SegmentTable& segments() { return segments_; }
  // To be finished before leave() where the group has not failed.
  PendingWork& pending_work() { return pending_work_; }

  // "rank 2", with the global rank where that is another number.
  std::string rank_name(int rank) const { return names_.name(rank); }
  const RankNames& names() const { return names_; }
  // What the system knows of a peer beside its pages: "its process, pid 12, is stopped", or "".
  std::string process_note(int peer) const;
  // rank_name() with process_note() behind it.
  std::string rank_report(int peer) const;
  // "group \"0\": rank 1: ".
  const std::string& prefix() const { return prefix_; }
  // "symmetric memory of group 'x', rank 2: ".
  const std::string& memory_prefix() const { return memory_prefix_; }

  // True in a child forked after the group was made.
  bool in_forked_child() const;

  bool failed() const noexcept { return failed_.load(std::memory_order_acquire); }
  // The failure; call only when failed().
  Error failure() const;
  // Keeps `error` unless there is a failure already, and publishes it to the peers.
  void fail(const Error& error);
  // `hook` is called once, by the thread that fails the group and after the peers can learn of it;
  // at once where that has happened. It must not throw, nor call the group.
  void on_failure(std::function<void()> hook);
  // This rank leaves in good order: its own waits end with kAborted, peers see that it has left.
  void leave();
  // From now on a failure, or leaving, sets `word` to 1 before anybody can learn of it; at once
  // where that has happened. `word` must stay valid until the next call; null: no word any more.
  void set_abort_word(std::uint32_t* word);

  // False, having failed the group, where a peer says that it has failed: memory is read, no
  // connection is looked at. `call` names the operation in messages; it is asked only once a
  // failure has been found, so that it names what this rank was in by then.
  using CallName = std::function<std::string()>;
  bool poll(const CallName& call);
  bool poll(const std::string& call) {
    return poll([&call] { return call; });
  }
  // True when `peer` has left or its process has ended: what it has published remains valid, and
  // nothing more will come. `reason` (or null) says which it is. At most one system call.
  bool is_gone(int peer, Error* reason = nullptr) const;

  // Whether this rank, or `peer`, has left in good order.
  bool has_left() const { return has_left(rank_); }
  bool has_left(int peer) const;
  // Whether this rank itself has put an end to the group: it has left, or it has aborted it.
  bool ended_here() const;
  // True when the process of `peer` has ended without leaving. At most one system call while it
  // runs.
  bool has_ended(int peer) const;

  // After a read of memory that belongs to `peer`: true while the peer has neither failed nor left,
  // so that what was read is what the peer had published. Two loads.
  bool stands(int peer) const {
    fence_after_reads();
    return load_acquire(&page(peer).failure.state) == 0 &&
           load_acquire(&page(peer).lifecycle) != static_cast<std::uint32_t>(Lifecycle::kLeft);
  }

  // Throws the failure, or Error(kAborted) in a forked child.
  void check_usable() const;

  // What a metadata exchange is for; the same on every rank, else kMismatch that names both, on
  // every rank.
  enum class Purpose : std::uint64_t {
    kRendezvous = 1,
    kView = 2,
    kMessage = 3,
    kShare = 4,
    kSuspend = 5,
    kResume = 6
  };
  template <typename Element>
  struct Metadata {
    std::uint64_t number = 0;  // of the exchange, the same on every rank, never used twice
    std::vector<std::vector<Element>> messages;  // by rank
  };
  // `message` has at most GroupPage::kMessageBytes. Throws kTimeout and kPeerLost naming the ranks.
  Metadata<std::uint8_t> exchange_metadata(Purpose purpose, std::span<const std::uint8_t> message,
                                           const Deadline& deadline);
  // The same of 64-bit words; a peer's message of less than `least` words is filled up with zeros.
  Metadata<std::uint64_t> exchange_words(Purpose purpose, std::span<const std::uint64_t> words,
                                         std::size_t least, const Deadline& deadline);
  // Runs `step`, which makes the exchange with the next number and what follows from it, over the
  // connections: a step that throws because a rank did not come or is gone, or that throws anything
  // before it has made the exchange, gives that exchange up.
  // `step` returns whether any rank may have sent something over the connections.
  void run_rendezvous(const Deadline& deadline,
                      const std::function<bool(const MeshRound& round)>& step);

  // A rendezvous of its own: two rounds.
  std::shared_ptr<Segment> share(std::shared_ptr<LocalSegment> local, const Deadline& deadline);

  // Held by a caller over several exchanges that belong together.
  std::unique_lock<std::recursive_mutex> hold() {
    return std::unique_lock<std::recursive_mutex>(order_);
  }

 private:
  class ExchangeSupervisor;
  // Where a failure began: FailureRecord without its encoding.
  struct Cause {
    ErrorCode code;
    int origin;
    std::string text;
  };

  explicit LocalGroup(const LocalGroupConfig& config);
  void learn_ranks();
  void fail(const Error& error, const Cause& cause);
  GroupPage& page(int rank) const;
  bool hear(int peer, const CallName& call);
  // Whether `peer` has given up exchange `number`.
  bool has_given_up(int peer, std::uint64_t number) const;
  // Throws where a peer has given up exchange `number`.
  void check_given_up(std::uint64_t number, const char* call) const;
  void enter(std::uint64_t number);
  using RankMask = std::array<std::uint64_t, GroupPage::kMaskWords>;
  // Whom the exchange that ends with an error here failed to meet: what peers say that have given
  // it up, else those who are gone without having entered it, else all who have not entered it.
  RankMask missed(std::uint64_t number) const;
  // `missed` is for messages of the peers.
  void give_up(std::uint64_t number, const RankMask& missed) noexcept;
  void await_all(std::uint64_t number, const char* call, const Deadline& deadline);
  template <typename Element>
  Metadata<Element> exchange(Purpose purpose, std::span<const Element> message,
                             const Deadline& deadline);
  void check_purposes(const std::vector<std::uint64_t>& purposes) const;  // by rank
  std::vector<int> absent(std::uint64_t number) const;
  std::vector<int> missed_by(int peer) const;

  const std::string group_name_;
  const int rank_;
  const int world_size_;
  std::vector<int> global_ranks_;
  RankNames names_;
  std::string prefix_;
  std::string memory_prefix_;
  const WaitPolicy policy_;
  const std::uint32_t fork_generation_;
  std::unique_ptr<BootstrapMesh> mesh_;
  std::shared_ptr<Segment> pages_;       // null in a group of one
  std::unique_ptr<GroupPage> own_page_;  // there only
  SegmentTable segments_;

  std::recursive_mutex order_;  // one metadata exchange at a time
  std::uint64_t number_ = 0;    // of the last one

  std::atomic<bool> failed_{false};
  mutable std::mutex failure_mutex_;  // guards what follows
  std::optional<Error> failure_;
  std::uint32_t* abort_word_ = nullptr;
  std::function<void()> failure_hook_;

  PendingWork pending_work_;
  Watchdog watchdog_;  // the last member: it ends first
};

// How many ranks share this host's cores: torchrun says how many of the job there are.
int ranks_on_host(int world_size);

}  // namespace symm
