#include "symm_mem/bootstrap/peer_connector.hpp"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <utility>

#include "kernels/core/error.hpp"
#include "symm_mem/bootstrap/peer_exchange.hpp"
#include "symm_mem/bootstrap/peer_frame.hpp"
#include "symm_mem/bootstrap/unix_socket.hpp"
#include "symm_mem/process/process_identity.hpp"
#include "symm_mem/process/system_error.hpp"

namespace symm {
namespace {

constexpr std::chrono::milliseconds kProbePeriod{50};
constexpr std::chrono::milliseconds kRetryPeriod{2};  // while a listener's queue is full
constexpr std::chrono::milliseconds kTryPeriod{20};
constexpr std::size_t kSpareStrangers = 32;
constexpr int kMaxRefusalLines = 16;

struct Greeting {
  SocketStatus status;
  std::optional<HelloFrame> hello;  // empty where it is malformed
};

Greeting receive_greeting(const GuardedDescriptor& socket) {
  const ReceivedFrame received = receive_frame(socket.get(), HelloFrame::kBytes);
  if (!received.problem.empty() || received.descriptor.valid()) return {received.status, {}};
  return {received.status, parse_hello(received.bytes)};
}

}  // namespace

PeerConnector::PeerConnector(std::string prefix, int rank, int world_size, PeerBoard& board,
                             GuardedDescriptor listener)
    : prefix_(std::move(prefix)),
      rank_(rank),
      world_size_(world_size),
      board_(board),
      listener_(std::move(listener)),
      next_try_(static_cast<std::size_t>(world_size)),
      sockets_(static_cast<std::size_t>(world_size)),
      stages_(static_cast<std::size_t>(world_size), Stage::kWaiting),
      next_probe_(Deadline::Clock::now() + kProbePeriod) {
  stage(rank) = Stage::kStanding;
}

void PeerConnector::run(std::vector<PeerRecord>& records, const Deadline& deadline) {
  records_ = &records;
  for (;;) {
    connect_lower();
    accept_strangers();
    std::erase_if(strangers_, [this](GuardedDescriptor& s) { return hear_stranger(s); });
    hear_answers();
    const std::vector<int> missing_ranks = missing();
    if (missing_ranks.empty()) break;
    check_standing();
    probe_higher();
    if (deadline.passed()) throw_late(missing_ranks);
    board_.look();
    wait(deadline);
  }
  strangers_.clear();
}

void PeerConnector::connect_lower() {
  for (int peer = 0; peer < rank_; ++peer) {
    if (stage(peer) != Stage::kWaiting) continue;
    if (Deadline::Clock::now() < next_try_[static_cast<std::size_t>(peer)]) continue;
    ConnectResult result = connect_to(record(peer).socket_path);
    if (result.error == EAGAIN) continue;
    if (result.error != 0) {
      look_again(peer, result.error);
      continue;
    }
    if (peer_uid(result.socket.get()) != ::geteuid()) {
      throw Error(ErrorCode::kSecurity, prefix_, "the socket that the Store names for ",
                  name_of(peer), " belongs to another user");
    }
    send_frame(result.socket.get(), encode_hello({static_cast<std::uint32_t>(rank_),
                                                  record(peer).nonce, board_.own_time()}));
    socket(peer) = std::move(result.socket);
    stage(peer) = Stage::kGreeted;
  }
}

void PeerConnector::accept_strangers() {
  for (;;) {
    GuardedDescriptor stranger = accept_waiting(listener_.get());
    if (!stranger.valid()) return;
    if (peer_uid(stranger.get()) != ::geteuid()) {
      refuse_stranger("it comes from another user");
      continue;
    }
    // A rank says who it is at once, so the oldest of too many is not one.
    if (strangers_.size() >= records_->size() + kSpareStrangers) {
      refuse_stranger("it does not say who it is");
      strangers_.erase(strangers_.begin());
    }
    strangers_.push_back(std::move(stranger));
  }
}

// True when it need not be listened to any more: it is a peer now, was refused, or left.
bool PeerConnector::hear_stranger(GuardedDescriptor& stranger) {
  const auto [status, hello] = receive_greeting(stranger);
  if (status == SocketStatus::kWouldBlock) return false;
  if (status == SocketStatus::kClosed) return true;  // a probe
  if (!hello) {
    refuse_stranger("its greeting is malformed");
    return true;
  }
  if (!same_nonce(hello->nonce, record(rank_).nonce)) {
    refuse_stranger("it does not know the nonce that the Store holds");
    return true;
  }
  if (hello->rank <= static_cast<std::uint32_t>(rank_) ||
      hello->rank >= static_cast<std::uint32_t>(world_size_)) {
    refuse_stranger(
        text_of("it names rank ", hello->rank, ", which does not connect to rank ", rank_));
    return true;
  }
  const int peer = static_cast<int>(hello->rank);
  if (stage(peer) != Stage::kWaiting) {
    refuse_stranger(text_of("rank ", peer, " is connected already"));
    return true;
  }
  // It may have published anew since its record was read.
  if (hello->published != record(peer).published) {
    if (const std::optional<PeerRecord> found = board_.read(peer)) take_newer(*found);
  }
  send_frame(stranger.get(), encode_hello({static_cast<std::uint32_t>(rank_), record(peer).nonce,
                                           board_.own_time()}));
  socket(peer) = std::move(stranger);
  stage(peer) = Stage::kStanding;
  return true;
}

void PeerConnector::hear_answers() {
  for (int peer = 0; peer < rank_; ++peer) {
    if (stage(peer) != Stage::kGreeted) continue;
    const auto [status, answer] = receive_greeting(socket(peer));
    if (status == SocketStatus::kWouldBlock) continue;
    if (status == SocketStatus::kClosed) {
      look_again(peer, 0);
      continue;
    }
    if (!answer || answer->rank != static_cast<std::uint32_t>(peer) ||
        !same_nonce(answer->nonce, record(rank_).nonce)) {
      board_.check_own();
      throw Error(ErrorCode::kSecurity, prefix_, "the process that listens for ", name_of(peer),
                  " does not know this rank's nonce");
    }
    stage(peer) = Stage::kStanding;
  }
}

void PeerConnector::check_standing() {
  for (int peer = 0; peer < world_size_; ++peer) {
    if (peer == rank_ || stage(peer) != Stage::kStanding) continue;
    if (!is_hung_up(socket(peer).get())) continue;
    // A goodbye may come after the frame of the closing round.
    for (;;) {
      const ReceivedFrame received = receive_frame(socket(peer).get(), ExchangeFrame::kMaxBytes);
      if (received.status != SocketStatus::kDone) break;
      const std::optional<ExchangeFrame> frame = parse_exchange(received.bytes);
      if (frame) throw_if_goodbye(prefix_, board_.names(), peer, frame->message);
    }
    throw Error(ErrorCode::kPeerLost, prefix_, names_of_the_lost(peer), " ended during set-up");
  }
}

void PeerConnector::probe_higher() {
  if (Deadline::Clock::now() < next_probe_) return;
  next_probe_ = Deadline::Clock::now() + kProbePeriod;
  for (int peer = rank_ + 1; peer < world_size_; ++peer) {
    if (stage(peer) != Stage::kWaiting) continue;
    const int error = connect_to(record(peer).socket_path).error;
    if (error != 0 && error != EAGAIN) look_again(peer, error);
  }
}

void PeerConnector::look_again(int peer, int error) {
  socket(peer).reset();
  stage(peer) = Stage::kWaiting;
  next_try_[static_cast<std::size_t>(peer)] = Deadline::Clock::now() + kTryPeriod;
  const std::optional<PeerRecord> found = board_.read(peer);
  if (!found) return;
  if (!same_nonce(found->nonce, record(peer).nonce)) {
    take_newer(*found);
  } else if (error != 0 && !(is_nobody_there(error) && board_.is_left_over(*found))) {
    throw_unreachable(peer, error);
  }
}

void PeerConnector::take_newer(const PeerRecord& found) {
  (*records_)[found.rank] = found;
  next_try_[found.rank] = {};
  board_.check_peers(*records_);
}

void PeerConnector::wait(const Deadline& deadline) {
  std::vector<pollfd> entries;
  const auto watch = [&entries](const GuardedDescriptor& socket, short events) {
    entries.push_back({socket.get(), events, 0});
  };
  watch(listener_, POLLIN);
  for (const GuardedDescriptor& stranger : strangers_) watch(stranger, POLLIN);
  std::chrono::milliseconds slice = kProbePeriod;
  for (int peer = 0; peer < world_size_; ++peer) {
    if (peer == rank_) continue;
    // A peer that is connected may have begun the closing round already: its frame must not wake
    // us.
    if (stage(peer) == Stage::kStanding) watch(socket(peer), POLLRDHUP);
    if (stage(peer) == Stage::kGreeted) watch(socket(peer), POLLIN);
    if (stage(peer) == Stage::kWaiting && peer < rank_) slice = kRetryPeriod;
  }
  ::poll(entries.data(), entries.size(), deadline.poll_slice(slice));
}

std::string PeerConnector::name_of(int peer) const {
  return board_.names().name(peer, text_of("pid ", record(peer).process.pid));
}

std::vector<int> PeerConnector::missing() const {
  std::vector<int> ranks;
  for (int peer = 0; peer < world_size_; ++peer) {
    if (stages_[static_cast<std::size_t>(peer)] != Stage::kStanding) ranks.push_back(peer);
  }
  return ranks;
}

// A rank that gave up because another one died did so after that death had begun, so whoever is
// gone by now includes the cause. A process that dies closes its sockets one by one. Its record may
// seem left over, as a process knows its own start in whole clock ticks only.
std::string PeerConnector::names_of_the_lost(int seen) const {
  std::string names;
  for (int peer = 0; peer < world_size_; ++peer) {
    if (peer == rank_) continue;
    const GuardedDescriptor& connection = sockets_[static_cast<std::size_t>(peer)];
    bool lost = peer == seen || has_begun_to_end(record(peer).process);
    if (!lost && connection.valid()) {
      lost = is_hung_up(connection.get());
    } else if (!lost && !board_.is_left_over(record(peer))) {
      lost = is_nobody_there(connect_to(record(peer).socket_path).error);
    }
    if (lost) names += (names.empty() ? "" : ", ") + name_of(peer);
  }
  return names;
}

bool PeerConnector::is_elsewhere(int peer, int error) const {
  const PeerRecord& theirs = record(peer);
  const bool same_files =
      theirs.mount_namespace != 0 && theirs.mount_namespace == record(rank_).mount_namespace;
  return error == ENOENT && !same_files;
}

std::string PeerConnector::elsewhere(int peer) const {
  return text_of(name_of(peer), " listens on ", record(peer).socket_path,
                 ", which does not exist here: the ranks do not share a directory for temporary "
                 "files (separate mount namespaces or containers); mount one directory into all of "
                 "them and name it in TMPDIR");
}

void PeerConnector::throw_unreachable(int peer, int error) const {
  if (is_elsewhere(peer, error)) throw Error(ErrorCode::kUnsupported, prefix_, elsewhere(peer));
  if (is_nobody_there(error)) {
    throw Error(ErrorCode::kPeerLost, prefix_, names_of_the_lost(peer),
                " ended or gave up during set-up");
  }
  throw Error(ErrorCode::kSystem, prefix_, "connecting to ", name_of(peer), " at ",
              record(peer).socket_path, " failed: ", describe_system_error(error));
}

void PeerConnector::throw_late(const std::vector<int>& peers) const {
  std::string why;
  for (const int peer : peers) {
    const int error = connect_to(record(peer).socket_path).error;
    if (is_elsewhere(peer, error)) {
      why = "; " + elsewhere(peer);
    } else if (why.empty() && is_nobody_there(error)) {
      why = text_of("; the Store holds what ", name_of(peer), " published in an earlier try");
    }
  }
  throw Error(ErrorCode::kTimeout, prefix_, board_.names().list(peers), " did not connect in time",
              why);
}

void PeerConnector::refuse_stranger(const std::string& why) {
  if (++refusals_ > kMaxRefusalLines) return;
  std::fprintf(stderr, "symm: refused a connection: %s%s\n", prefix_.c_str(), why.c_str());
}

}  // namespace symm
