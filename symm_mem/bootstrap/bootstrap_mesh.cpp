#include "symm_mem/bootstrap/bootstrap_mesh.hpp"

#include <poll.h>

#include <optional>
#include <utility>

#include "kernels/core/error.hpp"
#include "kernels/core/platform.hpp"
#include "symm_mem/bootstrap/frame_queues.hpp"
#include "symm_mem/bootstrap/peer_board.hpp"
#include "symm_mem/bootstrap/peer_connector.hpp"
#include "symm_mem/bootstrap/peer_exchange.hpp"
#include "symm_mem/bootstrap/private_directory.hpp"
#include "symm_mem/bootstrap/unix_socket.hpp"
#include "symm_mem/process/deadline.hpp"
#include "symm_mem/process/interrupt.hpp"

namespace symm {
namespace {

void check_config(const BootstrapMeshConfig& config) {
  const std::string prefix = mesh_prefix(config.group_name, config.names, config.rank);
  if (config.world_size < 1 || config.world_size > kMaxRanks) {
    throw Error(ErrorCode::kInvalidArgument, prefix, "world_size must be in [1, ", kMaxRanks,
                "], got ", config.world_size);
  }
  if (config.rank < 0 || config.rank >= config.world_size) {
    throw Error(ErrorCode::kInvalidArgument, prefix, "rank must be in [0, ", config.world_size,
                ")");
  }
  if (config.payload.size() > PeerRecord::kMaxPayload) {
    throw Error(ErrorCode::kInvalidArgument, prefix, "payload must have at most ",
                PeerRecord::kMaxPayload, " bytes, got ", config.payload.size());
  }
}

}  // namespace

BootstrapMesh::BootstrapMesh(const BootstrapMeshConfig& config, std::vector<PeerRecord> peers,
                             std::vector<GuardedDescriptor> sockets)
    : prefix_(mesh_prefix(config.group_name, config.names, config.rank)),
      names_(config.names),
      rank_(config.rank),
      peers_(std::move(peers)),
      sockets_(std::move(sockets)),
      queues_(std::make_unique<FrameQueues>(prefix_, names_, sockets_, peers_)),
      hung_up_(peers_.size()) {}

BootstrapMesh::~BootstrapMesh() = default;

std::unique_ptr<BootstrapMesh> BootstrapMesh::connect(KeyValueStore& store,
                                                      const BootstrapMeshConfig& config) {
  check_config(config);
  std::unique_ptr<BootstrapMesh> mesh;
  if (config.world_size == 1) {
    PeerRecord alone;
    alone.process = own_process();
    alone.payload = config.payload;
    mesh.reset(new BootstrapMesh(config, {alone}, std::vector<GuardedDescriptor>(1)));
    return mesh;
  }
  const Deadline deadline(config.timeout);
  const std::string prefix = mesh_prefix(config.group_name, config.names, config.rank);
  PeerBoard board(store, config);
  const PrivateDirectory directory;
  PeerConnector connector(prefix, config.rank, config.world_size, board,
                          listen_on(directory.socket_path(), kMaxRanks));
  try {
    board.publish(directory.socket_path());
    std::vector<PeerRecord> records = board.collect(deadline);
    connector.run(records, deadline);
    if (config.check) config.check();
    // The Store may end with the first rank that returns.
    board.joined(records);
    mesh.reset(new BootstrapMesh(config, std::move(records), std::move(connector.sockets())));
    // No rank returns before all ranks are connected.
    const std::vector<std::uint8_t> ready = {1};
    const std::function<bool()> look = [&board] {
      board.look();
      return false;
    };
    mesh->exchange(kSetupSequence, ready, -1, deadline.remaining(), look);
  } catch (const Error& error) {
    say_goodbye(prefix, config.rank, mesh ? mesh->sockets_ : connector.sockets(), error);
    board.failed(error);
    throw;
  } catch (const Interrupted&) {
    const Error error = interrupted_error();
    say_goodbye(prefix, config.rank, mesh ? mesh->sockets_ : connector.sockets(), error);
    board.failed(error);
    throw;
  }
  return mesh;
}

bool BootstrapMesh::hung_up(int peer) {
  std::atomic<bool>& remembered = hung_up_[checked(peer)];
  if (remembered.load(std::memory_order_relaxed)) return true;
  const int socket = sockets_[static_cast<std::size_t>(peer)].get();
  if (socket < 0 || !is_hung_up(socket)) return false;
  remembered.store(true, std::memory_order_relaxed);
  return true;
}

std::vector<BootstrapMesh::Received> BootstrapMesh::exchange(FramePosition sequence,
                                                             std::span<const std::uint8_t> message,
                                                             int descriptor,
                                                             std::chrono::milliseconds timeout,
                                                             const std::function<bool()>& give_up) {
  check_process();
  check_size(message.size());
  std::string& failure = state(sequence.stream).failure;
  if (!failure.empty()) {
    throw Error(ErrorCode::kAborted, prefix_, "an earlier exchange failed: ", failure);
  }
  try {
    return run_exchange({.prefix = prefix_,
                         .names = names_,
                         .sockets = sockets_,
                         .rank = rank_,
                         .sequence = sequence,
                         .message = message,
                         .descriptor = descriptor},
                        *queues_, Deadline(timeout), give_up);
  } catch (const Error& error) {
    if (breaks_mesh(error.code())) failure = error.what();
    throw;
  }
}

void BootstrapMesh::post(FramePosition topic, std::span<const std::uint8_t> message, int descriptor,
                         std::chrono::milliseconds timeout, const std::function<bool()>& give_up) {
  check_process();
  check_size(message.size());
  {
    const std::lock_guard<std::mutex> lock(posted_mutex_);
    if (!state(topic.stream).posted.insert(topic.number).second) {
      throw Error(ErrorCode::kInvalidArgument, prefix_, "topic ", topic.number,
                  " has been posted already");
    }
  }
  const Deadline deadline(timeout);
  bool sent = false;
  try {
    const std::vector<std::uint8_t> frame =
        encode_exchange(topic, descriptor >= 0, message, FrameKind::kPost);
    for (int peer = 0; peer < world_size(); ++peer) {
      if (peer == rank_) continue;
      send_post(peer, frame, descriptor, deadline, give_up);
      sent = true;
    }
  } catch (...) {
    // Peers that have the post would take another one of this topic for an offence.
    if (!sent) {
      const std::lock_guard<std::mutex> lock(posted_mutex_);
      state(topic.stream).posted.erase(topic.number);
    }
    throw;
  }
}

void BootstrapMesh::send_post(int peer, std::span<const std::uint8_t> frame, int descriptor,
                              const Deadline& deadline, const std::function<bool()>& give_up) {
  const int socket = sockets_[static_cast<std::size_t>(peer)].get();
  for (;;) {
    const SocketStatus status = send_frame(socket, frame, descriptor);
    // A peer that has gone is noticed by those who wait for it.
    if (status == SocketStatus::kDone || status == SocketStatus::kClosed) return;
    const bool full = status == SocketStatus::kWouldBlock;
    if (give_up && give_up()) {
      throw Error(ErrorCode::kAborted, prefix_, "aborted while posting to ", rank_name(peer));
    }
    if (deadline.passed()) {
      throw Error(ErrorCode::kSystem, prefix_, "posting ", frame.size(), " bytes failed: ",
                  full ? "the socket to " + rank_name(peer) + " is full"
                       : "as many descriptors as RLIMIT_NOFILE allows are on sockets, unread");
    }
    queues_->take_in();
    pollfd entry{socket, POLLOUT, 0};
    ::poll(&entry, full ? 1 : 0, deadline.poll_slice(kMeshPollPeriod));
  }
}

void BootstrapMesh::take_in() { queues_->take_in(); }

BootstrapMesh::Received BootstrapMesh::take(int peer, FramePosition topic,
                                            std::chrono::milliseconds timeout,
                                            const std::function<bool()>& give_up) {
  check_process();
  const std::size_t from = checked(peer);
  if (peer == rank_) {
    throw Error(ErrorCode::kInvalidArgument, prefix_, "a rank cannot take its own post");
  }
  const std::string name = rank_name(peer);
  const Deadline deadline(timeout);
  for (;;) {
    if (std::optional<PeerFrame> frame = queues_->next_post(from, topic)) {
      if (frame->problem.empty()) return std::move(frame->content);
      throw Error(frame->problem_code, prefix_, name, " sent ", frame->problem);
    }
    if (give_up && give_up()) {
      throw Error(ErrorCode::kAborted, prefix_, "aborted while waiting for ", name);
    }
    if (deadline.passed()) {
      throw Error(ErrorCode::kTimeout, prefix_, name, " has posted nothing under topic ",
                  topic.number, " in time");
    }
    pollfd entry{sockets_[from].get(), POLLIN, 0};
    if (::poll(&entry, 1, deadline.poll_slice(kMeshPollPeriod)) == 0) queues_->take_in();
  }
}

void BootstrapMesh::leave(const Error& reason) const noexcept {
  say_goodbye(prefix_, rank_, sockets_, reason);
}

void BootstrapMesh::restart(FramePosition first) {
  Stream& stream = state(first.stream);
  stream.failure.clear();
  queues_->drop_before(first);
  const std::lock_guard<std::mutex> lock(posted_mutex_);
  stream.posted.erase(stream.posted.begin(), stream.posted.lower_bound(first.number));
}

void BootstrapMesh::set_given_up(
    std::function<bool(std::size_t peer, FramePosition position)> is_given_up) {
  queues_->set_given_up(std::move(is_given_up));
}

std::size_t BootstrapMesh::checked(int rank) const {
  if (rank < 0 || rank >= world_size()) {
    throw Error(ErrorCode::kInvalidArgument, prefix_, "peer must be in [0, ", world_size(),
                "), got ", rank);
  }
  return static_cast<std::size_t>(rank);
}

void BootstrapMesh::check_process() const {
  if (generation_ == fork_generation()) return;
  throw Error(ErrorCode::kInvalidArgument, prefix_,
              "a forked child cannot use its parent's group; make a new one");
}

void BootstrapMesh::check_size(std::size_t message_bytes) const {
  if (message_bytes <= ExchangeFrame::kMaxMessage) return;
  throw Error(ErrorCode::kInvalidArgument, prefix_, "a message has at most ",
              ExchangeFrame::kMaxMessage, " bytes, got ", message_bytes);
}

}  // namespace symm
