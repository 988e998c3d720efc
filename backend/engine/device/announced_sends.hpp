// Which messages the hosts of a group have put on streams for this rank, so that a recv from any
// rank can find one.
//
// NOTE [Recv from any rank]
// A kernel receives from one peer. So the host of a receiver must know who sends before it launches
// one, and a kernel of a sender tells no host what it does. Instead the host of a sender announces
// each message once its kernel is launched: plain stores to the sender's Inbox for the peer
// (AnnouncedSends in mailbox.hpp), one count for each tag channel, since those are what keeps an
// order. The receiver's host compares the count with that of the recvs which it has itself started
// in that channel: the first message beyond is the one that its next recv from that peer would get.
// A recv from any rank is for a peer whose next message has its tag; RecvSearch (recv_search.hpp)
// looks until there is one. A sender pays one store to a line of its own cache for that, or four
// where the tag is another than before.
//
// A channel serves several tags, so the tag of a message that waits must be known. Messages of one
// tag one after the other are a run; the last kAnnouncedRuns runs are kept. What is captured is not
// counted, since replays are nobody's calls: a channel with captured messages has no such recvs.
//
// Thread safety: none; the caller's mutex is held.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "backend/engine/group/group_memory.hpp"
#include "kernels/gpu/interface/group_kernels.hpp"
#include "symm_mem/group/local_group.hpp"

namespace symm {

// A recv that waits for its sender to be known: `op` names it, or is from any rank (kAnySource).
struct AwaitedRecv {
  TransferOp op;
  std::chrono::steady_clock::time_point since;  // the call
  std::chrono::milliseconds timeout;            // 0 and less: the group's
};

class SendAnnouncements {
 public:
  // `memory` is null in a group of one. Both must outlive the object.
  SendAnnouncements(LocalGroup& group, GroupMemory* memory);

  // This rank has put `op`, a message with another rank, on a stream.
  void note(const TransferOp& op, bool captured);

  // The rank whose message the recv `op` gets when it is the next recv from that rank in its tag
  // channel: the first message there that no recv is for was announced, and has the tag. Of several
  // ranks the next behind that of the last recv; nullopt where there is none. Throws
  // Error(kUnsupported) where it cannot be known.
  std::optional<int> find(const TransferOp& op) const;

  // Fails the group where nobody can send to `recv` any more, or `limit` has passed since its call.
  // A system call for each rank.
  void look_for_trouble(const AwaitedRecv& recv, std::chrono::milliseconds limit);

 private:
  struct Received {
    std::uint64_t count = 0;  // recvs that were put on streams
    bool captured = false;
  };

  AnnouncedSends& sends(int owner, int peer, int tag_channel) const;
  // The tag of message `number` of those of `sends`; nullopt where it is not known any more.
  static std::optional<std::int64_t> tag_of(const AnnouncedSends& sends, std::uint64_t number);
  bool is_next(int peer, std::int64_t tag) const;
  [[noreturn]] void refuse(int peer, std::int64_t tag, const char* reason) const;

  LocalGroup& group_;
  GroupMemory* const memory_;
  std::vector<std::array<Received, kTagChannels>> received_;  // by peer
  int last_source_;
};

}  // namespace symm
