// How messages move through the mailboxes (NOTE [Mailboxes]).
#include <algorithm>
#include <cstring>

#include "backend/engine/host/mailbox_engine.hpp"
#include "kernels/core/atomics.hpp"
#include "kernels/cpu/streaming.hpp"

namespace symm {

namespace {

// Data is handed over in parts of this size, so that both sides copy at the same time.
constexpr std::size_t kPiece = 64 * 1024;

// Likewise where the sender's buffer is read. The call costs as much as copying a few KiB.
constexpr std::size_t kReadPiece = 1024 * 1024;

ClearToSend clear_to_send(const Transfer& recv) {
  return {.id = recv.id,
          .capacity = recv.bytes,
          .dtype = static_cast<std::uint64_t>(recv.dtype),
          .has_read = 0};
}

void plain_copy(void* destination, const void* source, std::size_t bytes) {
  std::memcpy(destination, source, bytes);
}

void copy_in(std::byte* ring, std::size_t ring_bytes, std::uint64_t position,
             const std::byte* source, std::size_t bytes) {
  const std::size_t start = position % ring_bytes;
  const std::size_t first = std::min(bytes, ring_bytes - start);
  std::memcpy(ring + start, source, first);
  std::memcpy(ring, source + first, bytes - first);
}

using Copy = void(void* destination, const void* source, std::size_t bytes);

// For what is received of a message.
Copy& copy_of(std::size_t message_bytes) {
  return message_bytes >= kStreamingBytes ? streaming_copy : plain_copy;
}

void copy_out(Copy& copy, const std::byte* ring, std::size_t ring_bytes, std::uint64_t position,
              std::byte* destination, std::size_t bytes) {
  const std::size_t start = position % ring_bytes;
  const std::size_t first = std::min(bytes, ring_bytes - start);
  copy(destination, ring + start, first);
  copy(destination + first, ring, bytes - first);
}

}  // namespace

void MailboxEngine::progress() {
  for (PeerTraffic& traffic : traffic_) {
    if (traffic.peer != config_.rank) progress_peer(traffic);
  }
}

void MailboxEngine::progress_peer(PeerTraffic& traffic) {
  take_cts(traffic);
  stream_out(traffic);
  post_envelopes(traffic);
  take_envelopes(traffic);
  post_cts(traffic);
  read_in(traffic);
  stream_in(traffic);
  if (!traffic.rang) return;
  traffic.rang = false;
  moved_ = true;
  ring_bell(memory_->control(traffic.peer).doorbell);
}

bool MailboxEngine::may_be_read(const Transfer& send) const {
  return peer_memory_.is_used() && send.bytes <= kMostRead &&
         is_readable_by_peers(send.data, send.bytes);
}

void MailboxEngine::post_envelopes(PeerTraffic& traffic) {
  const MailboxLayout& layout = memory_->mailbox_layout();
  std::byte* mailboxes = memory_->mailboxes(config_.rank);
  while (!traffic.unposted.empty()) {
    const std::uint64_t posted = load_relaxed(&traffic.outbox->posted);
    if (posted - load_acquire(&traffic.peer_inbox->taken) == layout.envelopes()) return;
    const TransferPtr item = traffic.unposted.front();
    traffic.unposted.pop_front();
    item->id = traffic.next_id++;
    Envelope& envelope = layout.envelope(mailboxes, config_.rank, traffic.peer, posted);
    envelope.id = item->id;
    envelope.tag = item->tag;
    envelope.bytes = item->bytes;
    envelope.dtype = static_cast<std::uint64_t>(item->dtype);
    const bool fits = item->bytes <= kInlineBytes;
    if (!fits) {
      post_outside(traffic, *item, envelope);
    } else if (item->bytes > 0) {
      std::memcpy(envelope.data, item->data, item->bytes);
    }
    store_release(&traffic.outbox->posted, posted + 1);
    traffic.rang = true;
    if (fits) {
      finish(item, std::nullopt);
    } else {
      traffic.posted.push_back(item);
    }
  }
}

// Where the message is that does not fit its envelope.
void MailboxEngine::post_outside(PeerTraffic& traffic, Transfer& send, Envelope& envelope) {
  const MailboxLayout& layout = memory_->mailbox_layout();
  envelope.elsewhere = {.segment = 0, .address = 0, .tray = 0};
  if (const auto found = group_.segments().find(send.data, send.bytes)) {
    envelope.elsewhere.segment = found->segment->number();
    envelope.elsewhere.address = found->offset;
    return;
  }
  if (send.bytes > layout.tray_bytes() && may_be_read(send)) {
    envelope.elsewhere.address = reinterpret_cast<std::uintptr_t>(send.data);
    return;
  }
  for (std::uint64_t index = 0; index < kTrays; ++index) {
    if (traffic.tray_in_use[index]) continue;
    traffic.tray_in_use[index] = true;
    send.tray = envelope.elsewhere.tray = index + 1;
    send.moved = std::min(send.bytes, layout.tray_bytes());
    std::byte* own = memory_->mailboxes(config_.rank);
    std::memcpy(layout.tray(own, config_.rank, traffic.peer, index), send.data, send.moved);
    return;
  }
}

void MailboxEngine::take_envelopes(PeerTraffic& traffic) {
  const MailboxLayout& layout = memory_->mailbox_layout();
  std::byte* mailboxes = memory_->mailboxes(traffic.peer);
  std::uint64_t taken = load_relaxed(&traffic.inbox->taken);
  // Those that are there now: a sender that posts as fast as this takes must not keep the caller.
  const std::uint64_t posted = load_acquire(&traffic.peer_outbox->posted);
  while (taken != posted) {
    const Envelope& envelope = layout.envelope(mailboxes, traffic.peer, config_.rank, taken);
    const bool fits = envelope.bytes <= kInlineBytes;
    Arrival arrival{
        .id = envelope.id,
        .tag = envelope.tag,
        .sender = {traffic.peer, envelope.bytes, static_cast<Dtype>(envelope.dtype)},
        .segment = fits ? 0 : envelope.elsewhere.segment,
        .address = fits ? 0 : envelope.elsewhere.address,
        .tray = fits ? 0 : envelope.elsewhere.tray,
        .data = {},
    };
    if (!match_arrival(traffic, arrival, envelope.data)) {
      if (fits) arrival.data.assign(envelope.data, envelope.data + envelope.bytes);
      traffic.arrivals.push_back(std::move(arrival));
    }
    store_release(&traffic.inbox->taken, ++taken);
    traffic.rang = true;
  }
}

// The first recv that asks for such a message takes it.
bool MailboxEngine::match_arrival(PeerTraffic& traffic, const Arrival& arrival,
                                  const std::byte* data) {
  for (auto it = recvs_.begin(); it != recvs_.end(); ++it) {
    const int wanted = (*it)->peer();
    if ((wanted != kAnySource && wanted != traffic.peer) || (*it)->tag != arrival.tag) continue;
    const TransferPtr recv = *it;
    recvs_.erase(it);
    deliver(traffic, arrival, data, recv);
    return true;
  }
  return false;
}

// Looks for a message that has arrived before its recv.
bool MailboxEngine::match_recv(const TransferPtr& recv) {
  for (PeerTraffic& traffic : traffic_) {
    if (traffic.peer == config_.rank) continue;
    if (recv->peer() != kAnySource && recv->peer() != traffic.peer) continue;
    for (auto it = traffic.arrivals.begin(); it != traffic.arrivals.end(); ++it) {
      if (it->tag != recv->tag) continue;
      const Arrival arrival = std::move(*it);
      traffic.arrivals.erase(it);
      deliver(traffic, arrival, arrival.data.data(), recv);
      return true;
    }
  }
  return false;
}

void MailboxEngine::deliver(PeerTraffic& traffic, const Arrival& arrival, const std::byte* data,
                            const TransferPtr& recv) {
  const MessageEnd& sender = arrival.sender;
  recv->set_peer(traffic.peer);
  recv->id = arrival.id;
  const MessageEnd receiver{config_.rank, recv->bytes, recv->dtype};
  const bool same = sender.fits(receiver);
  if (sender.bytes > kInlineBytes) {
    if (same && arrival.segment != 0) {
      if (auto reading = in_segment(traffic, arrival, recv)) {
        traffic.reading.push_back(std::move(*reading));
        return;
      }
    } else if (same && arrival.address != 0 && peer_memory_.is_used()) {
      traffic.reading.push_back({recv, arrival.address, nullptr, nullptr});
      return;
    }
    Answer answer{clear_to_send(*recv), nullptr, std::nullopt};
    if (!same) {
      answer.ends = recv;
      answer.error = end_mismatch(group_, sender, receiver, recv->tag);
    } else if (take_tray(traffic, arrival.tray, *recv)) {
      answer.clear.has_read = 1;
      answer.ends = recv;
    } else {
      traffic.incoming.push_back(recv);
    }
    traffic.unposted_cts.push_back(std::move(answer));
  } else if (!same) {
    finish(recv, end_mismatch(group_, sender, receiver, recv->tag));
  } else {
    if (sender.bytes > 0) std::memcpy(recv->data, data, sender.bytes);
    finish(recv, std::nullopt);
  }
}

std::optional<MailboxEngine::Reading> MailboxEngine::in_segment(const PeerTraffic& traffic,
                                                                const Arrival& arrival,
                                                                const TransferPtr& recv) const {
  std::shared_ptr<Segment> segment = group_.segments().with_number(arrival.segment);
  if (segment == nullptr || !segment->is_on_host() || recv->bytes > segment->bytes() ||
      arrival.address > segment->bytes() - recv->bytes) {
    return std::nullopt;
  }
  const std::byte* const source = segment->base(traffic.peer) + arrival.address;
  return Reading{recv, 0, std::move(segment), source};
}

bool MailboxEngine::still_holds(int peer, const Reading& reading) const {
  return reading.source != nullptr ? group_.stands(peer) : peer_memory_.holds(peer);
}

// Copies what of the message is in the sender's tray; true where that is all of it.
bool MailboxEngine::take_tray(const PeerTraffic& traffic, std::uint64_t tray,
                              Transfer& recv) const {
  if (tray == 0 || tray > kTrays) return false;
  const MailboxLayout& layout = memory_->mailbox_layout();
  std::byte* theirs = memory_->mailboxes(traffic.peer);
  recv.moved = std::min(recv.bytes, layout.tray_bytes());
  std::memcpy(recv.data, layout.tray(theirs, traffic.peer, config_.rank, tray - 1), recv.moved);
  return recv.moved == recv.bytes;
}

void MailboxEngine::post_cts(PeerTraffic& traffic) {
  while (!traffic.unposted_cts.empty()) {
    const std::uint64_t cts_posted = load_relaxed(&traffic.inbox->cts_posted);
    if (cts_posted - load_acquire(&traffic.peer_outbox->cts_taken) == kClearToSends) return;
    Answer answer = std::move(traffic.unposted_cts.front());
    traffic.unposted_cts.pop_front();
    traffic.inbox->cts[cts_posted % kClearToSends] = answer.clear;
    store_release(&traffic.inbox->cts_posted, cts_posted + 1);
    traffic.rang = true;
    if (answer.ends) finish(answer.ends, std::move(answer.error));
  }
}

void MailboxEngine::take_cts(PeerTraffic& traffic) {
  std::uint64_t taken = load_relaxed(&traffic.outbox->cts_taken);
  while (taken != load_acquire(&traffic.peer_inbox->cts_posted)) {
    const ClearToSend clear = traffic.peer_inbox->cts[taken % kClearToSends];
    store_release(&traffic.outbox->cts_taken, ++taken);
    traffic.rang = true;
    const auto it = std::find_if(traffic.posted.begin(), traffic.posted.end(),
                                 [&](const TransferPtr& item) { return item->id == clear.id; });
    if (it == traffic.posted.end()) continue;
    const TransferPtr item = *it;
    traffic.posted.erase(it);
    if (item->tray > 0) traffic.tray_in_use[item->tray - 1] = false;
    const MessageEnd sender{config_.rank, item->bytes, item->dtype};
    const MessageEnd receiver{traffic.peer, clear.capacity, static_cast<Dtype>(clear.dtype)};
    if (clear.has_read != 0) {
      finish(item, std::nullopt);
    } else if (sender.fits(receiver)) {
      traffic.outgoing.push_back(item);
    } else {
      finish(item, end_mismatch(group_, sender, receiver, item->tag));
    }
  }
}

void MailboxEngine::stream_out(PeerTraffic& traffic) {
  const std::size_t ring_bytes = memory_->mailbox_layout().ring_bytes();
  while (!traffic.outgoing.empty()) {
    const TransferPtr& item = traffic.outgoing.front();
    const std::uint64_t written = load_relaxed(&traffic.outbox->data_written);
    const std::size_t space = ring_bytes - (written - load_acquire(&traffic.peer_inbox->data_read));
    const std::size_t bytes = std::min({kPiece, space, item->bytes - item->moved});
    if (bytes == 0) return;
    copy_in(traffic.ring, ring_bytes, written, item->data + item->moved, bytes);
    item->moved += bytes;
    store_release(&traffic.outbox->data_written, written + bytes);
    traffic.rang = true;
    if (item->moved == item->bytes) {
      finish(item, std::nullopt);
      traffic.outgoing.pop_front();
    } else {
      return;  // one piece a turn: the other direction has its turn while this one is in the cache
    }
  }
}

void MailboxEngine::stream_in(PeerTraffic& traffic) {
  const std::size_t ring_bytes = memory_->mailbox_layout().ring_bytes();
  while (!traffic.incoming.empty()) {
    const TransferPtr& item = traffic.incoming.front();
    const std::uint64_t read = load_relaxed(&traffic.inbox->data_read);
    const std::size_t ready = load_acquire(&traffic.peer_outbox->data_written) - read;
    const std::size_t bytes = std::min({kPiece, ready, item->bytes - item->moved});
    if (bytes == 0) return;
    copy_out(copy_of(item->bytes), traffic.peer_ring, ring_bytes, read, item->data + item->moved,
             bytes);
    item->moved += bytes;
    store_release(&traffic.inbox->data_read, read + bytes);
    traffic.rang = true;
    if (item->moved == item->bytes) {
      finish(item, std::nullopt);
      traffic.incoming.pop_front();
    } else {
      return;
    }
  }
}

// What the look finds out about the sender, look_for_trouble() does too.
void MailboxEngine::read_in(PeerTraffic& traffic) {
  while (!traffic.reading.empty()) {
    const Reading& reading = traffic.reading.front();
    const TransferPtr item = reading.recv;
    const std::uint64_t cts_posted = load_relaxed(&traffic.inbox->cts_posted);
    if (cts_posted - load_acquire(&traffic.peer_outbox->cts_taken) == kClearToSends) return;
    const std::size_t bytes = std::min(kReadPiece, item->bytes - item->moved);
    int error = 0;
    if (reading.source != nullptr) {
      copy_of(item->bytes)(item->data + item->moved, reading.source + item->moved, bytes);
    } else {
      error = peer_memory_.read(traffic.peer, reading.address + item->moved,
                                item->data + item->moved, bytes);
    }
    const bool is_last = item->moved + bytes == item->bytes;
    if ((error != 0 || is_last) && !still_holds(traffic.peer, reading)) return;
    moved_ = true;
    if (error != 0) {
      traffic.reading.pop_front();
      item->moved = 0;
      traffic.unposted_cts.push_back({clear_to_send(*item), nullptr, std::nullopt});
      traffic.incoming.push_back(item);
      continue;
    }
    item->moved += bytes;
    if (!is_last) return;
    ClearToSend done = clear_to_send(*item);
    done.has_read = 1;
    traffic.inbox->cts[cts_posted % kClearToSends] = done;
    store_release(&traffic.inbox->cts_posted, cts_posted + 1);
    traffic.rang = true;
    traffic.reading.pop_front();
    finish(item, std::nullopt);
  }
}

void MailboxEngine::finish(const TransferPtr& item, std::optional<Error> error) {
  in_flight_[item->slot] = in_flight_.back();
  in_flight_[item->slot]->slot = item->slot;
  in_flight_.pop_back();
  if (item->on_done) callbacks_.push_back(std::move(item->on_done));
  moved_ = true;
  item->complete(std::move(error));
}

}  // namespace symm
