// What peers have sent and nobody has asked for yet.
//
// NOTE [Two kinds of packets]
// The packets of exchanges and those that were posted share a socket. Whoever reads it, an exchange
// or a take in another thread, sorts what arrives into two queues a peer, and each reader is served
// from its own queue first. So neither can use up what the other waits for; a reader that sleeps in
// poll() misses what the other one sorted for it and must look again after a few milliseconds.
//
// Thread safe. The sockets are the mesh's and must outlive the inbox. Never blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "kernels/core/error.hpp"
#include "symm_mem/bootstrap/peer_mesh.hpp"
#include "symm_mem/bootstrap/unix_socket.hpp"

namespace symm {

struct PeerPacket {
  std::uint64_t number = 0;  // sequence of the exchange, or topic of the post
  PeerMesh::Received content;
  // Why the packet is of no use, "" where it is whole.
  std::string problem;
  ErrorCode problem_code = ErrorCode::kSecurity;
};

class PeerInbox {
 public:
  // Of each kind and peer; a peer that sends more unasked is refused.
  static constexpr std::size_t kMaxKept = 16;

  // By rank; a socket is -1 for this rank. `pids` and `prefix` are for messages.
  PeerInbox(std::string prefix, std::span<const int> sockets, std::span<const std::int64_t> pids);

  // The peer's next packet of an exchange (malformed packets count as such), empty where none has
  // arrived. Throws Error: kPeerLost once the peer has closed and all that it sent was handed out,
  // kSecurity for a peer that sent too much.
  std::optional<PeerPacket> next_exchange(std::size_t peer);

  // The same for the post of `topic`. Throws kInvalidArgument for one that was handed out before.
  std::optional<PeerPacket> next_post(std::size_t peer, std::uint64_t topic);

 private:
  struct Peer {
    std::deque<PeerPacket> exchanges;
    std::deque<PeerPacket> posts;
    std::set<std::uint64_t> taken;  // topics handed out
    bool closed = false;
    std::string offence;
  };

  // Reads until `queue` has grown or the socket is empty.
  void read(std::size_t peer, const std::deque<PeerPacket>& queue);
  void sort(Peer& from, ReceivedPacket packet);
  void throw_if_over(std::size_t peer) const;

  const std::string prefix_;
  const std::span<const int> sockets_;
  const std::span<const std::int64_t> pids_;
  std::mutex mutex_;
  std::vector<Peer> peers_;
};

}  // namespace symm
