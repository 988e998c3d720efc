// What peers have sent and nobody has asked for yet.
//
// NOTE [Sorting frames]
// The frames of both streams (NOTE [Streams of frames]), exchanged or posted, share a socket.
// Whoever reads it sorts what arrives into queues by peer, stream and kind, and each reader is
// served from its own queue first. So none can use up what another waits for; a reader that sleeps
// in poll() misses what another one sorted for it and must look again after a few milliseconds.
//
// NOTE [Descriptors under way]
// Linux limits how many descriptors of a user are on sockets, unread, at a time: to RLIMIT_NOFILE
// for those without CAP_SYS_RESOURCE. A group of W ranks that all post one to all peers has W (W -
// 1) under way, so a sender may have to wait until others read. Therefore whoever waits in a
// rendezvous reads all its sockets every few milliseconds, whatever it waits for: who cannot send,
// who waits in an exchange or for a post, and who waits for others on the pages. Then a sender
// waits no longer than for ranks that have not come, which it would miss anyway.
//
// Thread safe. Sockets and records are the mesh's and must outlive the queues. Never blocks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/error.hpp"
#include "symm_mem/bootstrap/bootstrap_mesh.hpp"
#include "symm_mem/bootstrap/unix_socket.hpp"

namespace symm {

struct PeerFrame {
  std::uint64_t number = 0;  // sequence of the exchange, or topic of the post
  BootstrapMesh::Received content;
  // Why the frame is of no use, "" where it is whole.
  std::string problem;
  ErrorCode problem_code = ErrorCode::kSecurity;
};

class FrameQueues {
 public:
  // Of each kind, stream and peer; a peer that sends more unasked is refused.
  static constexpr std::size_t kMaxKept = 16;

  // By rank; the socket of this rank is invalid. `prefix`, `names` and the peers' pids are for
  // messages.
  FrameQueues(std::string prefix, const RankNames& names,
              std::span<const GuardedDescriptor> sockets, std::span<const PeerRecord> records);

  // The peer's next frame of an exchange in `stream` (malformed frames count as such in the
  // collectives'), empty where none has arrived. Throws Error: kPeerLost once the peer has closed
  // and all that it sent was handed out, kSecurity for a peer that sent too much.
  std::optional<PeerFrame> next_exchange(std::size_t peer,
                                         FrameStream stream = FrameStream::kCollectives);

  // The same for the post of that topic. Throws kInvalidArgument for one that was handed out
  // before.
  std::optional<PeerFrame> next_post(std::size_t peer, FramePosition topic);

  // Drops the frames of `first.stream` with lower numbers, also those that are still to come. Reads
  // what is on the sockets, so that the descriptors of dropped frames are closed.
  void drop_before(FramePosition first);

  // Sorts all that has come from every peer. What is wrong with it is for those who ask for frames.
  void take_in();

  // Says which frames their sender has given up: these are dropped where there is no more room, and
  // are no offence. Called with a lock held. Set it before the queues are used by several threads.
  using IsGivenUp = std::function<bool(std::size_t peer, FramePosition position)>;
  void set_given_up(IsGivenUp is_given_up) { is_given_up_ = std::move(is_given_up); }

 private:
  struct Queue {
    std::deque<PeerFrame> exchanges;
    std::deque<PeerFrame> posts;
    std::set<std::uint64_t> taken;  // topics handed out
  };
  struct Peer {
    std::array<Queue, kFrameStreams> streams;
    bool closed = false;
    std::string offence;
  };

  Queue& queue(std::size_t peer, FrameStream stream) {
    return peers_[peer].streams[static_cast<std::size_t>(stream)];
  }
  // Reads until `waiting` has grown or the socket is empty; with null until it is empty.
  void read(std::size_t peer, const std::deque<PeerFrame>* waiting);
  void read_all();
  void sort(std::size_t peer, ReceivedFrame received);
  void throw_if_over(std::size_t peer) const;
  std::string names_of_the_gone(std::size_t seen) const;

  const std::string prefix_;
  const RankNames& names_;
  const std::span<const GuardedDescriptor> sockets_;
  const std::span<const PeerRecord> records_;
  std::mutex mutex_;
  std::vector<Peer> peers_;
  std::array<std::uint64_t, kFrameStreams> first_{};  // lower numbers are dropped
  IsGivenUp is_given_up_;                             // may be null
};

}  // namespace symm
