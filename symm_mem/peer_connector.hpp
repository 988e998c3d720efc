// Connects this rank's sockets to all peers, from published records to authenticated connections.
//
// NOTE [Connecting]
// Every rank connects to the lower ranks and accepts from the higher ones. One loop without
// blocking calls drives all connections, so that no stranger and no dead rank can hold up the
// others. Who died is seen in three ways: a listener that refuses (the connector's side), a
// hang-up of a connection that stands, and for a higher rank that has not connected yet a probe,
// which is a connection to its listener that says nothing and is closed at once.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "symm_mem/deadline.hpp"
#include "symm_mem/guarded_descriptor.hpp"
#include "symm_mem/peer_record.hpp"

namespace symm {

class PeerConnector {
 public:
  // `records` (by rank, this one included) must stay valid. `listener` is this rank's socket.
  PeerConnector(std::string prefix, int rank, const std::vector<PeerRecord>& records,
                GuardedDescriptor listener);

  // Returns when every peer is connected; take sockets() then. Throws Error: kTimeout naming the
  // ranks that did not come, kPeerLost naming the ranks, kSecurity when a listener cannot show our
  // nonce, kUnsupported when a peer's socket is in another mount namespace. What a refused
  // stranger did is told in one line on stderr. Not thread safe.
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
  const std::vector<PeerRecord>& records_;
  GuardedDescriptor listener_;
  std::vector<GuardedDescriptor> sockets_;
  std::vector<Stage> stages_;
  std::vector<GuardedDescriptor> strangers_;  // accepted, have not said who they are
  int refusals_ = 0;
  Deadline::Clock::time_point next_probe_;
};

}  // namespace symm
