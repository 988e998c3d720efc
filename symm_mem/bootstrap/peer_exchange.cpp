#include "symm_mem/bootstrap/peer_exchange.hpp"

#include <poll.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <optional>
#include <string_view>
#include <utility>

#include "kernels/core/platform.hpp"
#include "symm_mem/bootstrap/peer_frame.hpp"
#include "symm_mem/bootstrap/unix_socket.hpp"

namespace symm {
namespace {

constexpr std::size_t kGoodbyeHead = 3;
static_assert(kMaxRanks <= 256, "a goodbye has one byte for a rank");

// What a peer's goodbye said.
class HeardGoodbye final : public Error {
 public:
  HeardGoodbye(ErrorCode code, const std::string& prefix, const std::string& name, int from,
               const std::string& said)
      : Error(code, prefix, name, " failed: ", said), origin(from), text(said) {}
  const int origin;
  const std::string text;
};

struct PeerProgress {
  bool sent = false;
  bool full = false;  // the socket
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
    PeerProgress& own = progress_[static_cast<std::size_t>(round.rank)];
    own.sent = own.received = true;
  }

  std::vector<BootstrapMesh::Received> run(const Deadline& deadline,
                                           const std::function<bool()>& give_up) {
    for (;;) {
      // To all before any is heard: what one peer has done ends the round, and the others are to
      // learn what this rank had to say.
      for (std::size_t peer = 0; peer < progress_.size(); ++peer) offer(peer);
      for (std::size_t peer = 0; peer < progress_.size(); ++peer) hear(peer);
      const std::vector<int> missing = unfinished();
      if (missing.empty()) break;
      if (give_up && give_up()) {
        throw Error(ErrorCode::kAborted, round_.prefix, "aborted while waiting for ",
                    round_.names.list(missing));
      }
      if (deadline.passed()) {
        throw Error(ErrorCode::kTimeout, round_.prefix, round_.names.list(missing),
                    " did not take part in exchange ", round_.sequence.number, " in time");
      }
      wait(deadline.poll_slice(kMeshPollPeriod));
    }
    if (problem_) throw *problem_;
    return std::move(received_);
  }

 private:
  void offer(std::size_t peer) {
    PeerProgress& progress = progress_[peer];
    if (progress.sent) return;
    // To a closed socket counts as sent: what the peer said before it left is still to be read.
    const SocketStatus status = send_frame(round_.sockets[peer].get(), frame_, round_.descriptor);
    progress.full = status == SocketStatus::kWouldBlock;
    progress.sent = !progress.full && status != SocketStatus::kTooManyUnderWay;
  }

  void hear(std::size_t peer) {
    PeerProgress& progress = progress_[peer];
    if (progress.received) return;
    std::optional<PeerFrame> frame = queues_.next_exchange(peer, round_.sequence.stream);
    if (!frame) return;
    progress.received = true;
    take(peer, std::move(*frame));
  }

  void take(std::size_t peer, PeerFrame frame) {
    if (!frame.problem.empty()) {
      note(frame.problem_code, peer, frame.problem);
      return;
    }
    if (frame.number == kSetupSequence) {
      throw_if_goodbye(round_.prefix, round_.names, static_cast<int>(peer), frame.content.message);
    }
    if (frame.number != round_.sequence.number) {
      note(ErrorCode::kMismatch, peer, "exchange ", frame.number, ", this rank is at exchange ",
           round_.sequence.number);
      return;
    }
    received_[peer] = std::move(frame.content);
  }

  // The first problem is the one that is thrown.
  template <typename... What>
  void note(ErrorCode code, std::size_t peer, const What&... what) {
    if (problem_) return;
    problem_.emplace(code, round_.prefix, round_.names.name(static_cast<int>(peer)), " sent ",
                     what...);
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
      const int events = (progress.full ? POLLOUT : 0) | (progress.received ? 0 : POLLIN);
      // A peer that is done may hang up without disturbing this round.
      if (events != 0) {
        entries_.push_back({round_.sockets[peer].get(), static_cast<short>(events), 0});
      }
    }
    if (::poll(entries_.data(), entries_.size(), milliseconds) == 0) queues_.take_in();
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

std::string mesh_prefix(const std::string& group_name, const RankNames& names, int rank) {
  return text_of("group '", group_name, "', ", names.name(rank), ": ");
}

bool breaks_mesh(ErrorCode code) {
  return code == ErrorCode::kTimeout || code == ErrorCode::kAborted || code == ErrorCode::kPeerLost;
}

std::vector<BootstrapMesh::Received> run_exchange(const ExchangeRound& round, FrameQueues& queues,
                                                  const Deadline& deadline,
                                                  const std::function<bool()>& give_up) {
  return Exchange(round, queues).run(deadline, give_up);
}

void say_goodbye(const std::string& prefix, int rank, std::span<const GuardedDescriptor> sockets,
                 const Error& error) noexcept {
  try {
    const auto* const heard = dynamic_cast<const HeardGoodbye*>(&error);
    std::vector<std::uint8_t> message = {
        0, static_cast<std::uint8_t>(error.code()),
        static_cast<std::uint8_t>(heard == nullptr ? rank : heard->origin)};
    std::string_view text = heard == nullptr ? error.what() : std::string_view(heard->text);
    if (heard == nullptr && text.starts_with(prefix)) text.remove_prefix(prefix.size());
    text = text.substr(0, ExchangeFrame::kMaxMessage - kGoodbyeHead);
    message.insert(message.end(), text.begin(), text.end());
    const std::vector<std::uint8_t> frame = encode_exchange(kSetupSequence, false, message);
    for (const GuardedDescriptor& socket : sockets) {
      if (socket.valid()) send_frame(socket.get(), frame);
    }
  } catch (const std::exception&) {
    // The sockets are about to close, which peers notice as well.
  }
}

void throw_if_goodbye(const std::string& prefix, const RankNames& names, int peer,
                      std::span<const std::uint8_t> message) {
  if (message.size() < kGoodbyeHead || message[0] != 0) return;
  const auto last = static_cast<std::uint8_t>(ErrorCode::kSecurity);
  const auto code = static_cast<ErrorCode>(std::min(message[1], last));
  const int origin = message[2] < kMaxRanks ? message[2] : peer;
  throw HeardGoodbye(code, prefix, names.name(origin), origin,
                     std::string(message.begin() + kGoodbyeHead, message.end()));
}

}  // namespace symm
