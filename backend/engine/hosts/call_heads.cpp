#include "backend/engine/hosts/call_heads.hpp"

#include <cstring>

namespace symm {

CallHeads::CallHeads(HostLegs& legs, const std::vector<int>& peers)
    : legs_(legs),
      note_(legs.note()),
      peers_(peers),
      to_(legs.take(peers.size() * kHeadBytes)),
      from_(legs.take(peers.size() * kHeadBytes)) {}

void CallHeads::start() {
  Messages to;
  Messages from;
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    std::memcpy(to_ + i * kHeadBytes, &note_, sizeof(note_));
    to.push_back({peers_[i], {to_ + i * kHeadBytes, kHeadBytes}});
    from.push_back({peers_[i], {from_ + i * kHeadBytes, kHeadBytes}});
  }
  transfer_ = legs_.start_of_any_call(to, from);
}

void CallHeads::finish() {
  legs_.finish(transfer_);
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    CallNote got;
    std::memcpy(&got, from_ + i * kHeadBytes, sizeof(got));
    if (!same_note(got, note_)) throw different_notes(legs_.text_of_rank(peers_[i]), got, note_);
  }
}

}  // namespace symm
