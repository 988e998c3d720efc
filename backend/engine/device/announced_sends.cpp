#include "backend/engine/device/announced_sends.hpp"

#include <string>

#include "backend/engine/host/point_to_point.hpp"
#include "kernels/core/atomics.hpp"

namespace symm {
namespace {

bool may_send(const TransferOp& recv, int peer) {
  return recv.peer == kAnySource || recv.peer == peer;
}

}  // namespace

SendAnnouncements::SendAnnouncements(LocalGroup& group, GroupMemory* memory)
    : group_(group),
      memory_(memory),
      received_(static_cast<std::size_t>(group.world_size())),
      last_source_(group.rank()) {}

AnnouncedSends& SendAnnouncements::sends(int owner, int peer, int tag_channel) const {
  Inbox& inbox = memory_->mailbox_layout().inbox(memory_->mailboxes(owner), peer);
  return inbox.announced[tag_channel];
}

void SendAnnouncements::note(const TransferOp& op, bool captured) {
  const int channel = tag_channel_of(op.tag);
  if (!op.is_send) {
    Received& received =
        received_[static_cast<std::size_t>(op.peer)][static_cast<std::size_t>(channel)];
    ++received.count;
    received.captured = received.captured || captured;
    last_source_ = op.peer;
    return;
  }
  AnnouncedSends& mine = sends(group_.rank(), op.peer, channel);
  if (captured) {
    store_release(&mine.captured, std::uint64_t{1});
    return;
  }
  const std::uint64_t runs = mine.runs;
  if (runs == 0 || mine.recent[(runs - 1) % kAnnouncedRuns].tag != op.tag) {
    AnnouncedSends::Run& run = mine.recent[runs % kAnnouncedRuns];
    store_release(&run.first, mine.count);
    store_release(&run.tag, op.tag);
    store_release(&mine.runs, runs + 1);
  }
  store_release(&mine.count, mine.count + 1);
}

// The place of run `runs - kAnnouncedRuns` may be being written for the next one.
std::optional<std::int64_t> SendAnnouncements::tag_of(const AnnouncedSends& sends,
                                                      std::uint64_t number) {
  const std::uint64_t runs = load_acquire(&sends.runs);
  for (std::uint64_t back = 1; back < kAnnouncedRuns && back <= runs; ++back) {
    const AnnouncedSends::Run& run = sends.recent[(runs - back) % kAnnouncedRuns];
    const std::uint64_t first = load_acquire(&run.first);
    const std::int64_t tag = load_acquire(&run.tag);
    const std::uint64_t since = load_acquire(&sends.runs) - runs;
    if (back + since >= kAnnouncedRuns) return std::nullopt;
    if (first <= number) return tag;
  }
  return std::nullopt;
}

void SendAnnouncements::refuse(int peer, std::int64_t tag, const char* reason) const {
  throw Error(ErrorCode::kUnsupported, group_.prefix(), "recv from any rank with tag ", tag, ": ",
              group_.rank_name(peer), reason, "; name the rank that sends");
}

bool SendAnnouncements::is_next(int peer, std::int64_t tag) const {
  const int channel = tag_channel_of(tag);
  const AnnouncedSends& theirs = sends(peer, group_.rank(), channel);
  const Received& received =
      received_[static_cast<std::size_t>(peer)][static_cast<std::size_t>(channel)];
  const std::uint64_t count = load_acquire(&theirs.count);
  if (received.captured || load_acquire(&theirs.captured) != 0) {
    refuse(peer, tag,
           " and this one have captured a message of such a tag, modulo 4, into a graph, and "
           "nobody counts replays");
  }
  if (count <= received.count) return false;
  const std::optional<std::int64_t> next = tag_of(theirs, received.count);
  if (!next) {
    refuse(peer, tag,
           " has sent so many messages of different tags that are equal modulo 4 that the tag of "
           "the first that waits is not known any more");
  }
  return *next == tag;
}

std::optional<int> SendAnnouncements::find(const TransferOp& op) const {
  std::optional<Error> unknown;
  for (int step = 1; step <= group_.world_size(); ++step) {
    const int peer = (last_source_ + step) % group_.world_size();
    if (peer == group_.rank() || !may_send(op, peer)) continue;
    try {
      if (is_next(peer, op.tag)) return peer;
    } catch (const Error& error) {
      unknown = error;
    }
  }
  if (unknown) throw Error(*unknown);
  return std::nullopt;
}

void SendAnnouncements::look_for_trouble(const AwaitedRecv& recv, std::chrono::milliseconds limit) {
  const TransferOp& op = recv.op;
  const std::string call =
      text_of("recv from ", op.peer == kAnySource ? "any rank" : group_.rank_name(op.peer),
              " (tag ", op.tag, ", ", op.bytes, " bytes)");
  if (!group_.poll(call)) return;
  Error reason(ErrorCode::kPeerLost, "");
  std::string gone;
  bool may_come = false;
  for (int peer = 0; peer < group_.world_size(); ++peer) {
    if (peer == group_.rank() || !may_send(op, peer)) continue;
    if (group_.is_gone(peer, &reason)) {
      gone += text_of("; ", reason.what());
    } else {
      may_come = true;
    }
  }
  const auto waited = std::chrono::steady_clock::now() - recv.since;
  if (may_come) {
    if (waited < limit) return;
    const std::chrono::duration<double> seconds = waited;
    reason = Error(ErrorCode::kTimeout, "Timed out after ", std::to_string(seconds.count()),
                   " s: nobody has sent such a message on a device", gone);
  }
  // It may have come before.
  if (find(op)) return;
  group_.fail(Error(reason.code(), group_.prefix(), call, ": ", reason.what()));
}

}  // namespace symm
