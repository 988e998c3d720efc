// Layout of the point-to-point part of a rank's symmetric memory.
//
// NOTE [Mailboxes]
// Each rank has, behind its ControlRegion, one Outbox for every other rank (what it sends) and one
// Inbox from every rank (what it has read and what it permits). Every word has one writer; counters
// only grow.
//   sender's outbox    posted        envelopes written so far; envelope i is at i % capacity
//                      cts_taken     clear-to-sends of the receiver read so far
//                      data_written  bytes of message data written to the data ring so far
//   receiver's inbox   taken         envelopes read so far
//                      cts_posted    clear-to-sends written so far; the i-th at i % kClearToSends
//                      data_read     bytes of message data read so far
// A message of up to kInlineBytes is copied into its envelope, which completes the send. A larger
// one stays in the sender's own buffer until a recv of that size and tag matches its envelope; the
// receiver then posts a clear-to-send (CTS), and the sender streams the cleared messages, in the
// order of their CTS, through the data ring. No message is buffered before its recv exists, so a
// send of any size needs no memory, and a message without a recv blocks no other. After each change
// a rank rings the other's doorbell.
// The outbox has kTrays trays too. Where one is free when an envelope is posted, the first bytes of
// the message are in that tray already, so that a receiver need not ask for them: it copies them
// before it posts its CTS, which frees the tray, and only what is beyond the tray is streamed. A
// message that is whole in a tray is done by a CTS that says so, as one that was read below.
// The envelope of a message in symmetric memory says where it is there, and neither a tray nor the
// ring is used: the receiver copies from there, and its CTS says that it has. The segment's number
// is the same on every rank that has it, and a receiver that does not know it, or not yet, sends a
// plain CTS. Where the group's ranks can read each other's processes, the envelope
// of a message of up to kMostRead bytes that does not fit a tray has the address of the sender's
// buffer, and the receiver does likewise. One that could not read there sends a plain CTS.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/protocol/control_region.hpp"

namespace symm {

inline constexpr std::size_t kEnvelopeBytes = 512;
inline constexpr std::size_t kInlineBytes = kEnvelopeBytes - 32;

// For a stream of messages of which the receiver copies one while the sender copies the next.
inline constexpr std::uint64_t kTrays = 2;
// docs/benchmarks.md, "Messages on the host".
inline constexpr std::size_t kMostTrayBytes = std::size_t{64} << 10;

// Larger messages stream (docs/benchmarks.md, "One copy by process_vm_readv").
inline constexpr std::uint64_t kMostRead = std::uint64_t{4} << 20;

struct Envelope {
  std::uint64_t id;  // counts the messages of this pair from 1
  std::int64_t tag;
  std::uint64_t bytes;
  std::uint64_t dtype;
  union {
    std::byte data[kInlineBytes];
    struct {                  // of a message that is not here
      std::uint64_t segment;  // number of the segment that it is in; 0: none
      std::uint64_t address;  // from the start of the sender's part of that segment, or in its
                              // process, where 0: it may not be read there
      std::uint64_t tray;     // 1 + the tray that has its first bytes; 0: none has
    } elsewhere;
  };
};
static_assert(sizeof(Envelope) == kEnvelopeBytes);

// The receiver's answer to the envelope of a message that is not inside it.
struct ClearToSend {
  std::uint64_t id;
  std::uint64_t capacity;  // bytes of the recv; other than the message's: refused
  std::uint64_t dtype;     // of the recv; the same
  std::uint64_t has_read;  // 1: the receiver has the whole message
};
inline constexpr std::uint64_t kClearToSends = 16;

// What a rank tells of a message with a peer when it starts it, on the host or on a device, so that
// two ends which do not belong together are noticed where neither engine sees both (NOTE [Message
// notes] in backend/engine/group/message_notes.hpp).
struct MessageNote {
  std::uint64_t stamp;  // 1 + place among the notes of its direction; 0 while it is written
  std::int64_t tag;
  std::uint64_t ordinal;  // among the messages of its direction with this tag, from 0
  std::uint64_t bytes;
  std::uint64_t ends;  // dtype, and the kind of device above it
};
inline constexpr std::uint64_t kMessageNotes = 8;

struct alignas(kCacheLine) MessageNotes {
  std::uint64_t count;  // notes so far; the n-th at n % kMessageNotes
  MessageNote notes[kMessageNotes];
};

// What the host of a rank has put on streams of its GPU for a peer, of one tag channel (NOTE [Recv
// from any rank] in backend/engine/device/announced_sends.hpp). Written by that host alone.
inline constexpr std::uint64_t kAnnouncedRuns = 16;  // a power of two
struct alignas(kCacheLine) AnnouncedSends {
  struct Run {
    std::uint64_t first;  // number of its first message, from 0
    std::int64_t tag;     // of all its messages
  };
  std::uint64_t count;     // messages so far; stored last
  std::uint64_t captured;  // 1: a graph has more, which are not counted
  std::uint64_t runs;      // of one tag each, so far; the n-th at n % kAnnouncedRuns
  Run recent[kAnnouncedRuns];
};
static_assert(sizeof(AnnouncedSends) == 3 * kCacheLine);

struct alignas(kCacheLine) Inbox {
  std::uint64_t taken;
  std::uint64_t cts_posted;
  alignas(kCacheLine) std::uint64_t data_read;
  alignas(kCacheLine) ClearToSend cts[kClearToSends];
  MessageNotes sends;  // of messages to the peer
  MessageNotes recvs;
  AnnouncedSends announced[kTagChannels];  // to the peer
};

struct alignas(kCacheLine) OutboxHeader {
  std::uint64_t posted;
  std::uint64_t cts_taken;
  alignas(kCacheLine) std::uint64_t data_written;
};

// Offsets of one rank's mailboxes from the end of its ControlRegion.
class MailboxLayout {
 public:
  // All outboxes of a rank together.
  static constexpr std::size_t kOutboxesBytes = std::size_t{1} << 20;

  explicit MailboxLayout(int world_size) : world_size_(static_cast<std::size_t>(world_size)) {
    const std::size_t peers = world_size_ > 1 ? world_size_ - 1 : 1;
    outbox_bytes_ = kOutboxesBytes / peers / kCacheLine * kCacheLine;
    envelopes_ = outbox_bytes_ / 8 / kEnvelopeBytes;
    if (envelopes_ < 2) envelopes_ = 2;
    if (envelopes_ > 64) envelopes_ = 64;
    tray_bytes_ = outbox_bytes_ / 4 / kCacheLine * kCacheLine;
    if (tray_bytes_ > kMostTrayBytes) tray_bytes_ = kMostTrayBytes;
    ring_bytes_ =
        outbox_bytes_ - sizeof(OutboxHeader) - envelopes_ * kEnvelopeBytes - kTrays * tray_bytes_;
  }

  std::size_t bytes() const { return world_size_ * sizeof(Inbox) + kOutboxesBytes; }
  std::uint64_t envelopes() const { return envelopes_; }
  std::size_t ring_bytes() const { return ring_bytes_; }
  std::size_t tray_bytes() const { return tray_bytes_; }

  // `mailboxes`: the start of the owner's mailboxes. `peer`: the other rank.
  Inbox& inbox(std::byte* mailboxes, int peer) const {
    return reinterpret_cast<Inbox*>(mailboxes)[peer];
  }
  OutboxHeader& outbox(std::byte* mailboxes, int owner, int peer) const {
    return *reinterpret_cast<OutboxHeader*>(outbox_start(mailboxes, owner, peer));
  }
  Envelope& envelope(std::byte* mailboxes, int owner, int peer, std::uint64_t index) const {
    return reinterpret_cast<Envelope*>(outbox_start(mailboxes, owner, peer) +
                                       sizeof(OutboxHeader))[index % envelopes_];
  }
  std::byte* tray(std::byte* mailboxes, int owner, int peer, std::uint64_t index) const {
    return outbox_start(mailboxes, owner, peer) + sizeof(OutboxHeader) +
           envelopes_ * kEnvelopeBytes + index * tray_bytes_;
  }
  std::byte* ring(std::byte* mailboxes, int owner, int peer) const {
    return tray(mailboxes, owner, peer, kTrays);
  }

 private:
  // A rank has no outbox for itself: those of higher ranks move up by one.
  std::byte* outbox_start(std::byte* mailboxes, int owner, int peer) const {
    const auto index = static_cast<std::size_t>(peer < owner ? peer : peer - 1);
    return mailboxes + world_size_ * sizeof(Inbox) + index * outbox_bytes_;
  }

  std::size_t world_size_;
  std::size_t outbox_bytes_;
  std::uint64_t envelopes_;
  std::size_t tray_bytes_;
  std::size_t ring_bytes_;
};

}  // namespace symm
