// Connects this rank's sockets to all peers, from published records to authenticated connections.
//
// NOTE [Connecting]
// Every rank connects to the lower ranks and accepts from the higher ones. One loop without
// blocking calls drives all connections, so that no stranger and no dead rank can hold up the
// others. A dead rank shows in one of three events: a listener that refuses (the connector's side),
// a hang-up of an established connection, and for a higher rank that has not connected yet a probe,
// which is a connection to its listener that says nothing and is closed at once.
//
// NOTE [Earlier tries]
// The Store may still hold what a rank published in an earlier try
// (BootstrapMeshConfig::may_be_retried). Then a peer that cannot be reached, or that leaves, is no
// failure: its record is read again until there is a new one, and only the deadline ends the wait.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "symm_mem/bootstrap/peer_record.hpp"
#include "symm_mem/process/deadline.hpp"
#include "symm_mem/process/guarded_descriptor.hpp"

namespace symm {

class PeerConnector {
 public:
  // What the Store holds for a rank now; nullopt where that cannot be read.
  using Reread = std::function<std::optional<PeerRecord>(int rank)>;

  // `records` (by rank, this one included) must stay valid. `listener` is this rank's socket.
  // `reread`: see NOTE [Earlier tries]; null where the records are final, else they are replaced by
  // newer ones.
  PeerConnector(std::string prefix, int rank, std::vector<PeerRecord>& records,
                GuardedDescriptor listener, Reread reread = nullptr);

  // Returns when every peer is connected; take sockets() then. Throws Error: kTimeout naming the
  // ranks that did not come, kPeerLost naming the ranks, kSecurity when a listener cannot show our
  // nonce, kUnsupported when a peer's socket is in another mount namespace. What a refused
  // stranger did is one line on stderr. Not thread safe.
  void run(const Deadline& deadline);

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
  // False where records are final; else `peer` is waited for again.
  bool expect_again(int peer);
  void read_again(int peer);
  std::vector<int> missing() const;
  // `seen` and every other peer that is gone as well.
  std::string names_of_the_lost(int seen) const;
  [[noreturn]] void throw_unreachable(int peer, int error) const;
  void refuse_stranger(const std::string& why);
  const PeerRecord& record(int peer) const { return records_[static_cast<std::size_t>(peer)]; }
  GuardedDescriptor& socket(int peer) { return sockets_[static_cast<std::size_t>(peer)]; }
  Stage& stage(int peer) { return stages_[static_cast<std::size_t>(peer)]; }

  std::string prefix_;
  int rank_;
  int world_size_;
  std::vector<PeerRecord>& records_;
  GuardedDescriptor listener_;
  Reread reread_;
  std::vector<Deadline::Clock::time_point> next_reread_;  // by rank
  std::vector<GuardedDescriptor> sockets_;
  std::vector<Stage> stages_;
  std::vector<GuardedDescriptor> strangers_;  // accepted, have not said who they are
  int refusals_ = 0;
  Deadline::Clock::time_point next_probe_;
};

}  // namespace symm
