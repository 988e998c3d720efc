#include "backend/engine/hosts/call_heads.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "backend/engine/hosts/host_algorithms.hpp"

namespace symm {

bool leaders_compare(const HostLegs& legs, const CollectiveArgs& args) {
  return moves_to_or_from_root(args.kind) && legs.is_on_cpu();
}

std::vector<int> head_peers(const HostLegs& legs, const CollectiveArgs& args) {
  if (goes_by_leaders(legs, args)) return legs.leaders();
  if (!moves_to_or_from_root(args.kind) && args.kind != CollectiveKind::kAllToAll) {
    return legs.rail_peers();
  }
  if (leaders_compare(legs, args)) return legs.leaders();
  std::vector<int> peers;
  for (int rank = 0; rank < legs.layout().world_size(); ++rank) {
    if (legs.is_here(rank)) continue;
    const bool moves =
        args.kind == CollectiveKind::kAllToAll || rank == args.root || legs.rank() == args.root;
    if (moves || std::ranges::find(legs.leaders(), rank) != legs.leaders().end()) {
      peers.push_back(rank);
    }
  }
  return peers;
}

CallHeads::CallHeads(HostLegs& legs, const CollectiveArgs& args, std::uint64_t sequence,
                     std::vector<int> peers)
    : legs_(legs), args_(args), sequence_(sequence), peers_(std::move(peers)) {
  if (peers_.empty() || !legs.has_heads()) return;
  to_ = legs.take_for_heads(peers_.size() * kHeadBytes);
  from_ = legs.take_for_heads(peers_.size() * kHeadBytes);
}

void CallHeads::start() {
  if (to_ == nullptr) return;
  Messages to;
  Messages from;
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    const CallNote note = note_to(args_, sequence_, peers_[i]);
    std::memcpy(to_ + i * kHeadBytes, &note, sizeof(note));
    to.push_back({peers_[i], {to_ + i * kHeadBytes, kHeadBytes}});
    from.push_back({peers_[i], {from_ + i * kHeadBytes, kHeadBytes}});
  }
  transfer_ = legs_.start_heads(to, from);
}

HostExchange CallHeads::exchange(Messages to, Messages from,
                                 const std::function<void()>& meanwhile) {
  HostExchange exchange;
  if (!legs_.has_heads()) {
    exchange.received = legs_.start(std::move(to), std::move(from));
    meanwhile();
    return exchange;
  }
  if (legs_.is_on_cpu()) exchange.sent = legs_.start(std::exchange(to, {}), {});
  meanwhile();
  finish();
  exchange.received = legs_.start(std::move(to), std::move(from));
  return exchange;
}

void CallHeads::finish() {
  if (to_ == nullptr || std::exchange(finished_, true)) return;
  legs_.finish(transfer_);
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    CallNote got;
    std::memcpy(&got, from_ + i * kHeadBytes, sizeof(got));
    const CallNote expected = note_expected_from(args_, sequence_, peers_[i]);
    if (same_note(got, expected)) continue;
    const auto host = static_cast<std::size_t>(legs_.host_of(peers_[i]));
    throw different_notes(
        text_of(legs_.names().name(peers_[i]), " on host ", legs_.layout().names[host]), got,
        expected);
  }
}

}  // namespace symm
