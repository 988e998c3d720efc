#include "symm_mem/bootstrap/peer_exchange.hpp"

#include <poll.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <optional>
#include <string_view>
#include <utility>

#include "symm_mem/bootstrap/peer_frame.hpp"
#include "symm_mem/bootstrap/unix_socket.hpp"

namespace symm {
namespace {

constexpr std::size_t kMaxGoodbyeText = 1024;

struct PeerProgress {
  bool sent = false;
  bool received = false;
};

class Exchange {
 public:
  Exchange(const ExchangeRound& round, FrameQueues& queues)
      : round_(round),
        queues_(queues),
        frame_(encode_exchange(round.sequence, round.descriptor >= 0, round.message)),
        progress_(round.sockets.size()),
        received_(round.sockets.size()) {
    progress_[static_cast<std::size_t>(round.rank)] = {true, true};
  }

  std::vector<BootstrapMesh::Received> run(const Deadline& deadline,
                                           const std::function<bool()>& give_up) {
    for (;;) {
      for (std::size_t peer = 0; peer < progress_.size(); ++peer) advance(peer);
      const std::vector<int> missing = unfinished();
      if (missing.empty()) break;
      if (give_up && give_up()) {
        throw Error(ErrorCode::kAborted, round_.prefix, "aborted while waiting for ",
                    rank_list(missing));
      }
      if (deadline.passed()) {
        throw Error(ErrorCode::kTimeout, round_.prefix, rank_list(missing),
                    " did not take part in exchange ", round_.sequence.number, " in time");
      }
      wait(deadline.poll_slice(kMeshPollPeriod));
    }
    if (problem_) throw *problem_;
    return std::move(received_);
  }

 private:
  void advance(std::size_t peer) {
    PeerProgress& progress = progress_[peer];
    if (!progress.sent) {
      // To a closed socket counts as sent: what the peer said before it left is still to be read.
      progress.sent = send_frame(round_.sockets[peer].get(), frame_, round_.descriptor) !=
                      SocketStatus::kWouldBlock;
    }
    if (progress.received) return;
    std::optional<PeerFrame> frame = queues_.next_exchange(peer, round_.sequence.stream);
    if (!frame) return;
    progress.received = true;
    take(peer, std::move(*frame));
  }

  void take(std::size_t peer, PeerFrame frame) {
    if (!frame.problem.empty()) {
      note(frame.problem_code, peer, frame.problem);
    } else if (frame.number != round_.sequence.number) {
      note(ErrorCode::kMismatch, peer, "exchange ", frame.number, ", this rank is at exchange ",
           round_.sequence.number);
    } else {
      if (round_.sequence.number == kSetupSequence) {
        throw_if_goodbye(round_.prefix, static_cast<int>(peer), frame.content.message);
      }
      received_[peer] = std::move(frame.content);
    }
  }

  // The first problem is the one that is thrown.
  template <typename... What>
  void note(ErrorCode code, std::size_t peer, const What&... what) {
    if (!problem_) problem_.emplace(code, round_.prefix, "rank ", peer, " sent ", what...);
  }

  std::vector<int> unfinished() const {
    std::vector<int> ranks;
    for (std::size_t peer = 0; peer < progress_.size(); ++peer) {
      if (!progress_[peer].sent || !progress_[peer].received) {
        ranks.push_back(static_cast<int>(peer));
      }
    }
    return ranks;
  }

  void wait(int milliseconds) {
    entries_.clear();
    for (std::size_t peer = 0; peer < progress_.size(); ++peer) {
      const PeerProgress& progress = progress_[peer];
      const int events = (progress.sent ? 0 : POLLOUT) | (progress.received ? 0 : POLLIN);
      // A peer that is done may hang up without disturbing this round.
      if (events != 0) {
        entries_.push_back({round_.sockets[peer].get(), static_cast<short>(events), 0});
      }
    }
    ::poll(entries_.data(), entries_.size(), milliseconds);
  }

  const ExchangeRound& round_;
  FrameQueues& queues_;
  std::vector<std::uint8_t> frame_;
  std::vector<PeerProgress> progress_;
  std::vector<BootstrapMesh::Received> received_;
  std::vector<pollfd> entries_;
  std::optional<Error> problem_;
};

}  // namespace

std::string mesh_prefix(const std::string& group_name, int rank) {
  return text_of("group '", group_name, "', rank ", rank, ": ");
}

std::string rank_list(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (std::size_t i = 0; i < ranks.size(); ++i) text += text_of(i == 0 ? " " : ", ", ranks[i]);
  return text;
}

bool breaks_mesh(ErrorCode code) {
  return code == ErrorCode::kTimeout || code == ErrorCode::kAborted || code == ErrorCode::kPeerLost;
}

std::vector<BootstrapMesh::Received> run_exchange(const ExchangeRound& round, FrameQueues& queues,
                                                  const Deadline& deadline,
                                                  const std::function<bool()>& give_up) {
  return Exchange(round, queues).run(deadline, give_up);
}

void say_goodbye(const std::string& prefix, std::span<const GuardedDescriptor> sockets,
                 const Error& error) noexcept {
  try {
    std::vector<std::uint8_t> message = {0, static_cast<std::uint8_t>(error.code())};
    std::string_view text = error.what();
    if (text.starts_with(prefix)) text.remove_prefix(prefix.size());
    text = text.substr(0, kMaxGoodbyeText);
    message.insert(message.end(), text.begin(), text.end());
    const std::vector<std::uint8_t> frame = encode_exchange(kSetupSequence, false, message);
    for (const GuardedDescriptor& socket : sockets) {
      if (socket.valid()) send_frame(socket.get(), frame);
    }
  } catch (const std::exception&) {
    // The sockets are about to close, which peers notice as well.
  }
}

void throw_if_goodbye(const std::string& prefix, int peer, std::span<const std::uint8_t> message) {
  if (message.size() < 2 || message[0] != 0) return;
  const auto last = static_cast<std::uint8_t>(ErrorCode::kSecurity);
  const auto code = static_cast<ErrorCode>(std::min(message[1], last));
  throw Error(code, prefix, "rank ", peer,
              " failed: ", std::string(message.begin() + 2, message.end()));
}

}  // namespace symm
