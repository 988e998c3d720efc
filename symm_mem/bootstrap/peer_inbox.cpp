#include "symm_mem/bootstrap/peer_inbox.hpp"

#include <algorithm>
#include <utility>

#include "symm_mem/bootstrap/peer_frame.hpp"

namespace symm {

PeerInbox::PeerInbox(std::string prefix, std::span<const int> sockets,
                     std::span<const std::int64_t> pids)
    : prefix_(std::move(prefix)), sockets_(sockets), pids_(pids), peers_(sockets.size()) {}

std::optional<PeerPacket> PeerInbox::next_exchange(std::size_t peer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::deque<PeerPacket>& queue = peers_[peer].exchanges;
  if (queue.empty()) read(peer, queue);
  if (queue.empty()) {
    throw_if_over(peer);
    return std::nullopt;
  }
  PeerPacket packet = std::move(queue.front());
  queue.pop_front();
  return packet;
}

std::optional<PeerPacket> PeerInbox::next_post(std::size_t peer, std::uint64_t topic) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Peer& from = peers_[peer];
  if (from.taken.contains(topic)) {
    throw Error(ErrorCode::kInvalidArgument, prefix_ + "what rank " + std::to_string(peer) +
                                                 " posted under topic " + std::to_string(topic) +
                                                 " has been taken already");
  }
  for (;;) {
    const auto found = std::find_if(from.posts.begin(), from.posts.end(),
                                    [&](const PeerPacket& post) { return post.number == topic; });
    if (found != from.posts.end()) {
      PeerPacket packet = std::move(*found);
      from.posts.erase(found);
      from.taken.insert(topic);
      return packet;
    }
    const std::size_t before = from.posts.size();
    read(peer, from.posts);
    if (from.posts.size() == before) break;
  }
  throw_if_over(peer);
  return std::nullopt;
}

void PeerInbox::read(std::size_t peer, const std::deque<PeerPacket>& queue) {
  Peer& from = peers_[peer];
  const std::size_t before = queue.size();
  while (queue.size() == before && !from.closed && from.offence.empty()) {
    ReceivedPacket packet = receive_packet(sockets_[peer], ExchangeFrame::kMaxBytes);
    if (packet.status == SocketStatus::kWouldBlock) return;
    if (packet.status == SocketStatus::kClosed) {
      from.closed = true;
    } else {
      sort(from, std::move(packet));
    }
  }
}

void PeerInbox::sort(Peer& from, ReceivedPacket packet) {
  std::optional<ExchangeFrame> frame;
  if (packet.problem.empty() || packet.out_of_descriptors) frame = parse_exchange(packet.bytes);
  PeerPacket sorted;
  if (!packet.problem.empty()) {
    sorted.problem = packet.problem;
    if (packet.out_of_descriptors) sorted.problem_code = ErrorCode::kSystem;
  } else if (!frame || frame->has_descriptor != packet.descriptor.valid()) {
    sorted.problem = "a malformed packet";
  }
  const bool is_post = frame && frame->kind == FrameKind::kPost;
  if (frame) {
    sorted.number = frame->sequence;
    sorted.content = {std::move(frame->message), std::move(packet.descriptor)};
  }
  std::deque<PeerPacket>& queue = is_post ? from.posts : from.exchanges;
  const auto same_topic = [&](const PeerPacket& post) { return post.number == sorted.number; };
  if (queue.size() == kMaxKept) {
    from.offence = "more than " + std::to_string(kMaxKept) + " packets that nobody asked for";
  } else if (is_post && (from.taken.contains(sorted.number) ||
                         std::any_of(queue.begin(), queue.end(), same_topic))) {
    from.offence = "two posts under topic " + std::to_string(sorted.number);
  } else {
    queue.push_back(std::move(sorted));
  }
}

void PeerInbox::throw_if_over(std::size_t peer) const {
  const Peer& from = peers_[peer];
  const std::string name = prefix_ + "rank " + std::to_string(peer);
  if (!from.offence.empty()) throw Error(ErrorCode::kSecurity, name + " sent " + from.offence);
  if (from.closed) {
    throw Error(ErrorCode::kPeerLost,
                name + " (pid " + std::to_string(pids_[peer]) + ") ended or closed its group");
  }
}

}  // namespace symm
