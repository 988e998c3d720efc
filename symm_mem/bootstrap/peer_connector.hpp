// Connects this rank's sockets to all peers, from published records to authenticated connections.
//
// NOTE [Connecting]
// Every rank connects to the lower ranks and accepts from the higher ones. One loop without
// blocking calls drives all connections, so that no stranger and no dead rank can hold up the
// others. A dead rank shows in one of three events: a listener that refuses (the connector's side),
// a hang-up of an established connection, and for a higher rank that has not connected yet a probe,
// which is a connection to its listener that says nothing and is closed at once.
//
// A dead rank is lost only where its record is of this try (NOTE [Tries and their records] in
// peer_board.hpp); else the record is read again until there is a new one or the deadline passes.
// The hang-up of a connection that is established is final.
#pragma once

#include <string>
#include <vector>

#include "symm_mem/bootstrap/peer_board.hpp"
#include "symm_mem/bootstrap/peer_record.hpp"
#include "symm_mem/process/deadline.hpp"
#include "symm_mem/process/guarded_descriptor.hpp"

namespace symm {

class PeerConnector {
 public:
  // `board` must stay valid. `listener` is this rank's socket; it listens until this ends.
  PeerConnector(std::string prefix, int rank, int world_size, PeerBoard& board,
                GuardedDescriptor listener);

  // Returns when every peer is connected; take sockets() then. `records` (by rank, this one
  // included) are replaced where ranks publish newer ones. Throws Error: kTimeout naming the ranks
  // that did not come, kPeerLost naming the ranks, kSecurity when a listener cannot show our nonce,
  // kUnsupported when a peer's socket is in another mount namespace. What a refused stranger did is
  // one line on stderr. Not thread safe.
  void run(std::vector<PeerRecord>& records, const Deadline& deadline);

  // By rank; invalid for this one and for those that are not connected.
  std::vector<GuardedDescriptor>& sockets() { return sockets_; }

 private:
  enum class Stage { kWaiting, kGreeted, kStanding };

  void connect_lower();
  void accept_strangers();
  bool hear_stranger(GuardedDescriptor& stranger);
  void hear_answers();
  void check_standing();
  void probe_higher();
  void wait(const Deadline& deadline);
  // `peer` could not be reached, with that error, or (0) has not answered: throws where it is lost.
  void look_again(int peer, int error);
  void take_newer(const PeerRecord& found);
  std::string name_of(int peer) const;  // with its pid
  std::vector<int> missing() const;
  // `seen` and every other peer that is gone as well.
  std::string names_of_the_lost(int seen) const;
  [[noreturn]] void throw_unreachable(int peer, int error) const;
  [[noreturn]] void throw_late(const std::vector<int>& peers) const;
  bool is_elsewhere(int peer, int error) const;
  std::string elsewhere(int peer) const;
  void refuse_stranger(const std::string& why);
  const PeerRecord& record(int peer) const { return (*records_)[static_cast<std::size_t>(peer)]; }
  GuardedDescriptor& socket(int peer) { return sockets_[static_cast<std::size_t>(peer)]; }
  Stage& stage(int peer) { return stages_[static_cast<std::size_t>(peer)]; }

  std::string prefix_;
  int rank_;
  int world_size_;
  PeerBoard& board_;
  std::vector<PeerRecord>* records_ = nullptr;
  GuardedDescriptor listener_;
  std::vector<Deadline::Clock::time_point> next_try_;  // by rank
  std::vector<GuardedDescriptor> sockets_;
  std::vector<Stage> stages_;
  std::vector<GuardedDescriptor> strangers_;  // accepted, have not said who they are
  int refusals_ = 0;
  Deadline::Clock::time_point next_probe_;
};

}  // namespace symm
