// How messages move through the mailboxes (NOTE [Mailboxes]).
#include <algorithm>
#include <cstring>

#include "backend/engine/group/size_mismatch.hpp"
#include "backend/engine/host/mailbox_engine.hpp"
#include "backend/engine/host/mailbox_item.hpp"
#include "kernels/core/atomics.hpp"

namespace symm {

namespace {

// Data is handed over in pieces of this size, so that both sides copy at the same time.
constexpr std::size_t kPiece = 64 * 1024;

void copy_in(std::byte* ring, std::size_t ring_bytes, std::uint64_t position,
             const std::byte* source, std::size_t bytes) {
  const std::size_t start = position % ring_bytes;
  const std::size_t first = std::min(bytes, ring_bytes - start);
  std::memcpy(ring + start, source, first);
  std::memcpy(ring, source + first, bytes - first);
}

void copy_out(const std::byte* ring, std::size_t ring_bytes, std::uint64_t position,
              std::byte* destination, std::size_t bytes) {
  const std::size_t start = position % ring_bytes;
  const std::size_t first = std::min(bytes, ring_bytes - start);
  std::memcpy(destination, ring + start, first);
  std::memcpy(destination + first, ring, bytes - first);
}

}  // namespace

void MailboxEngine::progress() {
  for (Channel& channel : channels_) {
    if (channel.peer != config_.rank) progress_channel(channel);
  }
}

void MailboxEngine::progress_channel(Channel& channel) {
  take_grants(channel);
  stream_out(channel);
  post_envelopes(channel);
  take_envelopes(channel);
  write_grants(channel);
  stream_in(channel);
  if (!channel.rang) return;
  channel.rang = false;
  moved_ = true;
  ring_bell(memory_->control(channel.peer).doorbell);
}

void MailboxEngine::post_envelopes(Channel& channel) {
  const MailboxLayout& layout = memory_->mailbox_layout();
  std::byte* mailboxes = memory_->mailboxes(config_.rank);
  while (!channel.unposted.empty()) {
    const std::uint64_t posted = load_relaxed(&channel.outbox->posted);
    if (posted - load_acquire(&channel.peer_inbox->taken) == layout.envelopes()) return;
    const ItemPtr item = channel.unposted.front();
    channel.unposted.pop_front();
    item->id = channel.next_id++;
    Envelope& envelope = layout.envelope(mailboxes, config_.rank, channel.peer, posted);
    envelope.id = item->id;
    envelope.tag = item->tag;
    envelope.bytes = item->bytes;
    const bool fits = item->bytes <= kInlineBytes;
    if (fits && item->bytes > 0) std::memcpy(envelope.data, item->data, item->bytes);
    store_release(&channel.outbox->posted, posted + 1);
    channel.rang = true;
    if (fits) {
      finish(item, std::nullopt);
    } else {
      channel.posted.push_back(item);
    }
  }
}

void MailboxEngine::take_envelopes(Channel& channel) {
  const MailboxLayout& layout = memory_->mailbox_layout();
  std::byte* mailboxes = memory_->mailboxes(channel.peer);
  std::uint64_t taken = load_relaxed(&channel.inbox->taken);
  while (taken != load_acquire(&channel.peer_outbox->posted)) {
    const Envelope& envelope = layout.envelope(mailboxes, channel.peer, config_.rank, taken);
    const bool fits = envelope.bytes <= kInlineBytes;
    if (!match_arrival(channel, envelope.id, envelope.tag, envelope.bytes, envelope.data)) {
      channel.arrivals.push_back(
          {.id = envelope.id,
           .tag = envelope.tag,
           .bytes = envelope.bytes,
           .data = fits ? std::vector<std::byte>(envelope.data, envelope.data + envelope.bytes)
                        : std::vector<std::byte>()});
    }
    store_release(&channel.inbox->taken, ++taken);
    channel.rang = true;
  }
}

// The first recv that asks for such a message takes it.
bool MailboxEngine::match_arrival(Channel& channel, std::uint64_t id, std::int64_t tag,
                                  std::uint64_t bytes, const std::byte* data) {
  for (auto it = recvs_.begin(); it != recvs_.end(); ++it) {
    const int wanted = (*it)->peer();
    if ((wanted != kAnySource && wanted != channel.peer) || (*it)->tag != tag) continue;
    const ItemPtr recv = *it;
    recvs_.erase(it);
    deliver(channel, id, bytes, data, recv);
    return true;
  }
  return false;
}

// Looks for a message that has arrived before its recv.
bool MailboxEngine::match_recv(const ItemPtr& recv) {
  for (Channel& channel : channels_) {
    if (channel.peer == config_.rank) continue;
    if (recv->peer() != kAnySource && recv->peer() != channel.peer) continue;
    for (auto it = channel.arrivals.begin(); it != channel.arrivals.end(); ++it) {
      if (it->tag != recv->tag) continue;
      const Arrival arrival = std::move(*it);
      channel.arrivals.erase(it);
      deliver(channel, arrival.id, arrival.bytes, arrival.data.data(), recv);
      return true;
    }
  }
  return false;
}

void MailboxEngine::deliver(Channel& channel, std::uint64_t id, std::uint64_t bytes,
                            const std::byte* data, const ItemPtr& recv) {
  recv->set_peer(channel.peer);
  recv->id = id;
  const bool same = bytes == recv->bytes;
  if (bytes > kInlineBytes) {
    channel.ungranted.push_back({.id = id, .capacity = recv->bytes});
    if (same) channel.incoming.push_back(recv);
  }
  if (!same) {
    finish(recv,
           size_mismatch(group_, {channel.peer, bytes}, {config_.rank, recv->bytes}, recv->tag));
  } else if (bytes <= kInlineBytes) {
    if (bytes > 0) std::memcpy(recv->data, data, bytes);
    finish(recv, std::nullopt);
  }
}

void MailboxEngine::write_grants(Channel& channel) {
  while (!channel.ungranted.empty()) {
    const std::uint64_t granted = load_relaxed(&channel.inbox->granted);
    if (granted - load_acquire(&channel.peer_outbox->grants_taken) == kGrants) return;
    channel.inbox->grants[granted % kGrants] = channel.ungranted.front();
    channel.ungranted.pop_front();
    store_release(&channel.inbox->granted, granted + 1);
    channel.rang = true;
  }
}

void MailboxEngine::take_grants(Channel& channel) {
  std::uint64_t taken = load_relaxed(&channel.outbox->grants_taken);
  while (taken != load_acquire(&channel.peer_inbox->granted)) {
    const Grant grant = channel.peer_inbox->grants[taken % kGrants];
    store_release(&channel.outbox->grants_taken, ++taken);
    channel.rang = true;
    const auto it = std::find_if(channel.posted.begin(), channel.posted.end(),
                                 [&](const ItemPtr& item) { return item->id == grant.id; });
    if (it == channel.posted.end()) continue;
    const ItemPtr item = *it;
    channel.posted.erase(it);
    if (grant.capacity == item->bytes) {
      channel.outgoing.push_back(item);
    } else {
      finish(item, size_mismatch(group_, {config_.rank, item->bytes},
                                 {channel.peer, grant.capacity}, item->tag));
    }
  }
}

void MailboxEngine::stream_out(Channel& channel) {
  const std::size_t ring_bytes = memory_->mailbox_layout().ring_bytes();
  while (!channel.outgoing.empty()) {
    const ItemPtr& item = channel.outgoing.front();
    const std::uint64_t written = load_relaxed(&channel.outbox->data_written);
    const std::size_t space = ring_bytes - (written - load_acquire(&channel.peer_inbox->data_read));
    const std::size_t bytes = std::min({kPiece, space, item->bytes - item->moved});
    if (bytes == 0) return;
    copy_in(channel.ring, ring_bytes, written, item->data + item->moved, bytes);
    item->moved += bytes;
    store_release(&channel.outbox->data_written, written + bytes);
    channel.rang = true;
    if (item->moved == item->bytes) {
      finish(item, std::nullopt);
      channel.outgoing.pop_front();
    }
  }
}

void MailboxEngine::stream_in(Channel& channel) {
  const std::size_t ring_bytes = memory_->mailbox_layout().ring_bytes();
  while (!channel.incoming.empty()) {
    const ItemPtr& item = channel.incoming.front();
    const std::uint64_t read = load_relaxed(&channel.inbox->data_read);
    const std::size_t ready = load_acquire(&channel.peer_outbox->data_written) - read;
    const std::size_t bytes = std::min({kPiece, ready, item->bytes - item->moved});
    if (bytes == 0) return;
    copy_out(channel.peer_ring, ring_bytes, read, item->data + item->moved, bytes);
    item->moved += bytes;
    store_release(&channel.inbox->data_read, read + bytes);
    channel.rang = true;
    if (item->moved == item->bytes) {
      finish(item, std::nullopt);
      channel.incoming.pop_front();
    }
  }
}

void MailboxEngine::finish(const ItemPtr& item, std::optional<Error> error) {
  in_flight_[item->slot] = in_flight_.back();
  in_flight_[item->slot]->slot = item->slot;
  in_flight_.pop_back();
  if (item->on_done) callbacks_.push_back(std::move(item->on_done));
  moved_ = true;
  item->complete(std::move(error));
}

}  // namespace symm
