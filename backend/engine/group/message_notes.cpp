#include "backend/engine/group/message_notes.hpp"

#include <string>

#include "backend/engine/group/self_messages.hpp"
#include "kernels/core/atomics.hpp"

namespace symm {
namespace {

constexpr int kDeviceShift = 8;

std::string device_of(const MessageNote& note) {
  const std::uint64_t kind = note.ends >> kDeviceShift;
  if (kind > static_cast<std::uint64_t>(DeviceKind::kHip)) return "an unknown device";
  return std::string(device_kind_name(static_cast<DeviceKind>(kind)));
}

Dtype dtype_of(const MessageNote& note) {
  return static_cast<Dtype>(note.ends & ((1u << kDeviceShift) - 1));
}

// nullopt where it is being written, or there is none.
std::optional<MessageNote> read(const MessageNote& place) {
  MessageNote copy{};
  copy.stamp = load_acquire(&place.stamp);
  copy.tag = load_acquire(&place.tag);
  copy.ordinal = load_acquire(&place.ordinal);
  copy.bytes = load_acquire(&place.bytes);
  copy.ends = load_acquire(&place.ends);
  if (copy.stamp == 0 || load_acquire(&place.stamp) != copy.stamp) return std::nullopt;
  return copy;
}

// A reader that sees one of the new words sees that the stamp is not the old one.
void write(MessageNote& place, const MessageNote& note) {
  exchange_seq_cst(&place.stamp, std::uint64_t{0});
  store_release(&place.tag, note.tag);
  store_release(&place.ordinal, note.ordinal);
  store_release(&place.bytes, note.bytes);
  store_release(&place.ends, note.ends);
  store_release(&place.stamp, note.stamp);
}

}  // namespace

MessageComparison::MessageComparison(const LocalGroup& group, GroupMemory* memory)
    : group_(group), memory_(memory), peers_(static_cast<std::size_t>(group.world_size())) {}

MessageNotes& MessageComparison::notes(int owner, int peer, bool of_sends) const {
  Inbox& inbox = memory_->mailbox_layout().inbox(memory_->mailboxes(owner), peer);
  return of_sends ? inbox.sends : inbox.recvs;
}

void MessageComparison::note(const TransferOp& op, DeviceKind device) {
  if (memory_ == nullptr) return;
  const std::lock_guard lock(mutex_);
  auto& tags = peers_[static_cast<std::size_t>(op.peer)][op.is_send ? 1 : 0].tags;
  if (tags.size() >= kMostTags && !tags.contains(op.tag)) return;
  Tag& tag = tags[op.tag];
  if (!tag.known) return;
  MessageNotes& mine = notes(group_.rank(), op.peer, op.is_send);
  const std::uint64_t number = mine.count;
  write(mine.notes[number % kMessageNotes],
        {.stamp = number + 1,
         .tag = op.tag,
         .ordinal = tag.count++,
         .bytes = op.bytes,
         .ends = static_cast<std::uint64_t>(device) << kDeviceShift |
                 static_cast<std::uint64_t>(op.dtype)});
  store_release(&mine.count, number + 1);
}

void MessageComparison::lose_count(const TransferOp& op) {
  if (memory_ == nullptr) return;
  const std::lock_guard lock(mutex_);
  for (int peer = 0; peer < group_.world_size(); ++peer) {
    if (peer == group_.rank() || (op.peer >= 0 && op.peer != peer)) continue;
    peers_[static_cast<std::size_t>(peer)][op.is_send ? 1 : 0].tags[op.tag].known = false;
    for (MessageNote& place : notes(group_.rank(), peer, op.is_send).notes) {
      if (place.tag == op.tag) store_release(&place.stamp, std::uint64_t{0});
    }
  }
}

std::optional<Error> MessageComparison::difference() {
  if (memory_ == nullptr) return std::nullopt;
  const std::lock_guard lock(mutex_);
  for (int peer = 0; peer < group_.world_size(); ++peer) {
    if (peer == group_.rank()) continue;
    for (const bool is_send : {false, true}) {
      if (std::optional<Error> error = compare(peer, is_send)) return error;
    }
  }
  return std::nullopt;
}

std::optional<Error> MessageComparison::compare(int peer, bool is_send) {
  Direction& direction = peers_[static_cast<std::size_t>(peer)][is_send ? 1 : 0];
  const MessageNotes& mine = notes(group_.rank(), peer, is_send);
  const MessageNotes& theirs = notes(peer, group_.rank(), !is_send);
  const std::uint64_t count = load_acquire(&theirs.count);
  if (mine.count == direction.compared_mine && count == direction.compared_theirs) {
    return std::nullopt;
  }
  direction.compared_mine = mine.count;
  direction.compared_theirs = count;
  for (const MessageNote& own : mine.notes) {
    for (const MessageNote& place : theirs.notes) {
      const std::optional<MessageNote> other = own.stamp == 0 ? std::nullopt : read(place);
      if (!other || other->tag != own.tag || other->ordinal != own.ordinal) continue;
      const MessageNote& sent = is_send ? own : *other;
      const MessageNote& received = is_send ? *other : own;
      const int sender = is_send ? group_.rank() : peer;
      const int receiver = is_send ? peer : group_.rank();
      if (device_of(sent) != device_of(received)) {
        return Error(ErrorCode::kMismatch, group_.prefix(), "send and recv with tag ", own.tag,
                     " differ in device: ", group_.rank_name(sender), " sends from ",
                     device_of(sent), ", ", group_.rank_name(receiver), " receives on ",
                     device_of(received));
      }
      // Those on the host, and sizes, are compared by whoever moves the data.
      const bool on_host = own.ends >> kDeviceShift == 0;
      if (on_host || sent.bytes != received.bytes || dtype_of(sent) == dtype_of(received)) continue;
      return end_mismatch(group_, {sender, sent.bytes, dtype_of(sent)},
                          {receiver, received.bytes, dtype_of(received)}, own.tag);
    }
  }
  return std::nullopt;
}

}  // namespace symm
