#include "symm_mem/bootstrap/frame_queues.hpp"

#include <algorithm>
#include <utility>

#include "symm_mem/bootstrap/peer_frame.hpp"
#include "symm_mem/process/process_identity.hpp"

namespace symm {

FrameQueues::FrameQueues(std::string prefix, const RankNames& names,
                         std::span<const GuardedDescriptor> sockets,
                         std::span<const PeerRecord> records)
    : prefix_(std::move(prefix)),
      names_(names),
      sockets_(sockets),
      records_(records),
      peers_(sockets.size()) {}

std::optional<PeerFrame> FrameQueues::next_exchange(std::size_t peer, FrameStream stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::deque<PeerFrame>& waiting = queue(peer, stream).exchanges;
  if (waiting.empty()) read(peer, &waiting);
  if (waiting.empty()) {
    throw_if_over(peer);
    return std::nullopt;
  }
  PeerFrame frame = std::move(waiting.front());
  waiting.pop_front();
  return frame;
}

std::optional<PeerFrame> FrameQueues::next_post(std::size_t peer, FramePosition topic) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Queue& from = queue(peer, topic.stream);
  if (from.taken.contains(topic.number)) {
    throw Error(ErrorCode::kInvalidArgument, prefix_, "what ", names_.name(static_cast<int>(peer)),
                " posted under topic ", topic.number, " has been taken already");
  }
  for (;;) {
    const auto found = std::ranges::find(from.posts, topic.number, &PeerFrame::number);
    if (found != from.posts.end()) {
      PeerFrame frame = std::move(*found);
      from.posts.erase(found);
      from.taken.insert(topic.number);
      return frame;
    }
    const std::size_t before = from.posts.size();
    read(peer, &from.posts);
    if (from.posts.size() == before) break;
  }
  throw_if_over(peer);
  return std::nullopt;
}

void FrameQueues::drop_before(FramePosition first) {
  const std::lock_guard<std::mutex> lock(mutex_);
  first_[static_cast<std::size_t>(first.stream)] = first.number;
  const auto is_over = [&](const PeerFrame& frame) { return frame.number < first.number; };
  for (std::size_t peer = 0; peer < peers_.size(); ++peer) {
    Queue& from = queue(peer, first.stream);
    std::erase_if(from.exchanges, is_over);
    std::erase_if(from.posts, is_over);
    from.taken.erase(from.taken.begin(), from.taken.lower_bound(first.number));
  }
  read_all();
}

void FrameQueues::take_in() {
  const std::lock_guard<std::mutex> lock(mutex_);
  read_all();
}

void FrameQueues::read_all() {
  for (std::size_t peer = 0; peer < peers_.size(); ++peer) {
    if (!sockets_[peer].valid()) continue;
    try {
      read(peer, nullptr);
    } catch (const Error&) {
      // Whoever reads next meets it again.
    }
  }
}

void FrameQueues::read(std::size_t peer, const std::deque<PeerFrame>* waiting) {
  Peer& from = peers_[peer];
  const std::size_t before = waiting == nullptr ? 0 : waiting->size();
  while ((waiting == nullptr || waiting->size() == before) && !from.closed &&
         from.offence.empty()) {
    ReceivedFrame received = receive_frame(sockets_[peer].get(), ExchangeFrame::kMaxBytes);
    if (received.status == SocketStatus::kWouldBlock) return;
    if (received.status == SocketStatus::kClosed) {
      from.closed = true;
    } else {
      sort(peer, std::move(received));
    }
  }
}

void FrameQueues::sort(std::size_t peer, ReceivedFrame received) {
  std::optional<ExchangeFrame> frame;
  if (received.problem.empty() || received.out_of_descriptors) {
    frame = parse_exchange(received.bytes);
  }
  PeerFrame sorted;
  sorted.problem = received.problem;
  if (received.out_of_descriptors) sorted.problem_code = ErrorCode::kSystem;
  if (sorted.problem.empty() && (!frame || frame->has_descriptor != received.descriptor.valid())) {
    sorted.problem = "a malformed frame";
  }
  const FramePosition position = frame ? frame->position : FramePosition(0);
  const bool is_post = frame && frame->kind == FrameKind::kPost;
  if (frame) {
    if (position.number < first_[static_cast<std::size_t>(position.stream)]) return;
    sorted.number = position.number;
    sorted.content = {std::move(frame->message), std::move(received.descriptor)};
  }
  Queue& to = queue(peer, position.stream);
  std::deque<PeerFrame>& waiting = is_post ? to.posts : to.exchanges;
  const bool is_repeated =
      is_post && (to.taken.contains(sorted.number) ||
                  std::ranges::find(waiting, sorted.number, &PeerFrame::number) != waiting.end());
  if (waiting.size() == kMaxKept && is_given_up_) {
    std::erase_if(waiting, [&](const PeerFrame& kept) {
      return is_given_up_(peer, {position.stream, kept.number});
    });
  }
  std::string& offence = peers_[peer].offence;
  if (waiting.size() == kMaxKept) {
    offence = text_of("more than ", kMaxKept, " frames that nobody asked for");
  } else if (is_repeated) {
    offence = text_of("two posts under topic ", sorted.number);
  } else {
    waiting.push_back(std::move(sorted));
  }
}

void FrameQueues::throw_if_over(std::size_t peer) const {
  const Peer& from = peers_[peer];
  const int rank = static_cast<int>(peer);
  if (!from.offence.empty()) {
    throw Error(ErrorCode::kSecurity, prefix_, names_.name(rank), " sent ", from.offence);
  }
  if (from.closed) {
    throw Error(ErrorCode::kPeerLost, prefix_, names_of_the_gone(peer),
                " ended or closed its group");
  }
}

// A rank that gave up because of another one closes after that one, so whoever is gone by now
// includes the cause. A process that dies closes its sockets one by one.
std::string FrameQueues::names_of_the_gone(std::size_t seen) const {
  std::string text;
  for (std::size_t peer = 0; peer < sockets_.size(); ++peer) {
    const GuardedDescriptor& socket = sockets_[peer];
    if (peer != seen && (!socket.valid() ||
                         !(is_hung_up(socket.get()) || has_begun_to_end(records_[peer].process)))) {
      continue;
    }
    text += text.empty() ? "" : ", ";
    text += names_.name(static_cast<int>(peer), text_of("pid ", records_[peer].process.pid));
  }
  return text;
}

}  // namespace symm
