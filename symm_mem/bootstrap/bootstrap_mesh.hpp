// The authenticated connections between the ranks of one group on one host.
//
// NOTE [Bootstrap mesh]
// Every rank listens on a unix stream socket inside a private directory (0700), publishes
// {version, boot id, process, uid, 128-bit nonce, socket path, payload} in the Store (NOTE [Tries
// and their records] in peer_board.hpp), connects to every lower rank and accepts from every higher
// one. A connection counts only when the peer's uid
// (SO_PEERCRED) is ours and it has shown the nonce that the Store names. The directory is removed
// as soon as all ranks are connected. The sockets then stay open for the life of the group: the
// kernel closes them when a process ends, so a dead peer is an immediate hang-up, also across pid
// namespaces, and they carry descriptors (SCM_RIGHTS).
//
// Thread safety: hung_up(), post() and take() may be called from any thread at any time, also while
// another thread is inside exchange(); exchange() is collective and must not run concurrently with
// itself in one stream (NOTE [Streams of frames] in peer_frame.hpp).
// A forked child must not use the mesh: descriptors are close-on-exec and closed in the child, so
// that a child does not keep a dead parent's sockets open.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "symm_mem/bootstrap/peer_frame.hpp"
#include "symm_mem/bootstrap/peer_record.hpp"
#include "symm_mem/bootstrap/rank_names.hpp"
#include "symm_mem/bootstrap/store.hpp"
#include "symm_mem/process/deadline.hpp"
#include "symm_mem/process/file_descriptor.hpp"
#include "symm_mem/process/fork_guard.hpp"
#include "symm_mem/process/guarded_descriptor.hpp"

namespace symm {

class FrameQueues;

struct BootstrapMeshConfig {
  std::string group_name;  // for messages
  int rank = 0;            // group rank
  int world_size = 1;
  RankNames names = {};                  // for messages
  std::chrono::milliseconds timeout{0};  // whole set-up
  // Opaque bytes that every rank learns of every other; at most PeerRecord::kMaxPayload.
  std::vector<std::uint8_t> payload;
  // Called every few milliseconds while the set-up waits; what it throws ends it. May be null.
  std::function<void()> look;
  // Called once, when all ranks are connected; what it throws ends the set-up of all. May be null.
  std::function<void()> check = {};
};

class BootstrapMesh {
 public:
  // Collective over the group. Throws Error: kTimeout naming the ranks that did not come,
  // kSecurity for a failed check, kUnsupported when a rank is on another host (naming the rank and
  // saying that groups over several hosts are not there yet), kSystem with errno's text.
  static std::unique_ptr<BootstrapMesh> connect(KeyValueStore& store,
                                                const BootstrapMeshConfig& config);

  ~BootstrapMesh();

  int rank() const { return rank_; }
  int world_size() const { return static_cast<int>(peers_.size()); }
  const RankNames& names() const { return names_; }
  std::string rank_name(int rank) const { return names_.name(rank); }
  // What `rank` has published; of a group of one its pid and payload alone.
  const PeerRecord& peer(int rank) const { return peers_[checked(rank)]; }

  // True once `peer`'s process has ended or closed its side. Local, does not block, remembers.
  bool hung_up(int peer);

  // Sends each rank `message` (at most 4 KiB, same size on every rank is not required) with an
  // optional descriptor and receives every other rank's. Collective: calls must be made in the
  // same order on every rank; `sequence` is checked. Index `rank()` of the result is empty.
  // `give_up` is polled every few milliseconds while waiting; when it returns true the exchange
  // throws Error(kAborted). Throws kTimeout, kPeerLost naming the rank, kSecurity.
  struct Received {
    std::vector<std::uint8_t> message;
    FileDescriptor descriptor;  // invalid where none was sent
  };
  std::vector<Received> exchange(FramePosition sequence, std::span<const std::uint8_t> message,
                                 int descriptor, std::chrono::milliseconds timeout,
                                 const std::function<bool()>& give_up);

  // Sends every peer `message` (as for exchange) under `topic`, to be taken when the peer wants it.
  // Local: waits for nobody but, up to `timeout`, for room on the sockets; `give_up` as for
  // exchange(). One post a topic and rank; one that throws before any peer has it does not count.
  // Throws kInvalidArgument, kAborted, kSystem.
  void post(FramePosition topic, std::span<const std::uint8_t> message, int descriptor,
            std::chrono::milliseconds timeout = std::chrono::milliseconds(0),
            const std::function<bool()>& give_up = nullptr);

  // Takes in what peers have sent (NOTE [Descriptors under way] in frame_queues.hpp). Any thread.
  void take_in();

  // Waits for what `peer` posted under `topic`; each post can be taken once. Local to the two
  // ranks. `give_up` and errors as for exchange(); a peer that died after its post still counts.
  Received take(int peer, FramePosition topic, std::chrono::milliseconds timeout,
                const std::function<bool()>& give_up);

  // Tells the peers why this rank gives the mesh up; then destroy it. A peer that is in a round, or
  // comes to one, raises `reason` with this rank's name, or with that of the peer which told it.
  // Local.
  void leave(const Error& reason) const noexcept;

  // Starts `first.stream` again at that number: forgets an exchange of it that failed, and drops
  // what peers have sent or will send under lower numbers. Local; not beside a call of this stream.
  void restart(FramePosition first);

  // `is_given_up` says whether `peer` has given up what it sends under that position: then it is of
  // no use, and a peer may send any number of such frames. It is called with a lock of the mesh
  // held. Local, once, before any other thread uses the mesh.
  void set_given_up(std::function<bool(std::size_t peer, FramePosition position)> is_given_up);

 private:
  struct Stream {
    std::string failure;             // of the first exchange that left frames behind
    std::set<std::uint64_t> posted;  // topics
  };

  BootstrapMesh(const BootstrapMeshConfig& config, std::vector<PeerRecord> peers,
                std::vector<GuardedDescriptor> sockets);
  Stream& state(FrameStream stream) { return streams_[static_cast<std::size_t>(stream)]; }
  void send_post(int peer, std::span<const std::uint8_t> frame, int descriptor,
                 const Deadline& deadline, const std::function<bool()>& give_up);
  std::size_t checked(int rank) const;
  void check_process() const;
  void check_size(std::size_t message_bytes) const;

  const std::string prefix_;
  const RankNames names_;
  const int rank_;
  const std::vector<PeerRecord> peers_;
  const std::vector<GuardedDescriptor> sockets_;  // by rank; invalid for this one
  const std::unique_ptr<FrameQueues> queues_;     // reads from sockets_
  std::array<Stream, kFrameStreams> streams_;
  std::mutex posted_mutex_;
  std::vector<std::atomic<bool>> hung_up_;
  const std::uint32_t generation_ = fork_generation();
};

}  // namespace symm
