// Metadata exchanges and rendezvous of a group (NOTE [Metadata exchange] in local_group.hpp).
#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <utility>

#include "kernels/core/atomics.hpp"
#include "kernels/cpu/wait.hpp"
#include "symm_mem/bootstrap/peer_exchange.hpp"
#include "symm_mem/group/local_group.hpp"
#include "symm_mem/process/interrupt.hpp"
#include "symm_mem/segment/segment_rendezvous.hpp"

namespace symm {
namespace {

const char* purpose_name(std::uint64_t purpose) {
  constexpr std::array kNames{"an unknown call",
                              "rendezvous",
                              "contiguous_view",
                              "an exchange of messages",
                              "a rendezvous of signal pads",
                              "suspend()",
                              "resume()"};
  return kNames[purpose < kNames.size() ? purpose : 0];
}

}  // namespace

class LocalGroup::ExchangeSupervisor final : public WaitSupervisor {
 public:
  ExchangeSupervisor(const LocalGroup& group, std::uint64_t number, const Deadline& deadline)
      : group_(group), number_(number), deadline_(deadline) {}

  bool keep_waiting(int peer) override {
    check_interrupts();
    group_.mesh().take_in();
    timed_out_ = deadline_.passed();
    if (timed_out_ || group_.failed() || group_.is_gone(peer)) return false;
    for (int other = 0; other < group_.world_size(); ++other) {
      if (group_.has_given_up(other, number_)) return false;
    }
    return true;
  }
  bool timed_out() const { return timed_out_; }

 private:
  const LocalGroup& group_;
  const std::uint64_t number_;
  const Deadline deadline_;
  bool timed_out_ = false;
};

bool LocalGroup::has_given_up(int peer, std::uint64_t number) const {
  return has_reached(load_acquire(&page(peer).gave_up), number);
}

void LocalGroup::enter(std::uint64_t number) {
  number_ = number;
  post(page(rank_).exchange, number);
}

LocalGroup::RankMask LocalGroup::missed(std::uint64_t number) const {
  RankMask mask{};
  bool given_up = false;
  for (int peer = 0; peer < world_size_; ++peer) {
    if (!has_given_up(peer, number)) continue;
    given_up = true;
    for (std::size_t word = 0; word < mask.size(); ++word) {
      mask[word] |= load_relaxed(&page(peer).missed[word]);
    }
  }
  if (given_up) return mask;
  std::vector<int> late = absent(number);
  const auto is_lost = [this](int rank) { return is_gone(rank); };
  // Where one of them is gone, that is why: the others would have come.
  if (std::ranges::any_of(late, is_lost)) std::erase_if(late, std::not_fn(is_lost));
  for (const int rank : late) {
    mask[static_cast<std::size_t>(rank / GroupPage::kMaskBits)] |= std::uint64_t{1}
                                                                   << (rank % GroupPage::kMaskBits);
  }
  return mask;
}

// The numbers that peers have given up meanwhile are over too.
void LocalGroup::give_up(std::uint64_t number, const RankMask& missed) noexcept {
  if (!has_given_up(rank_, number)) {
    for (std::size_t word = 0; word < missed.size(); ++word) {
      store_relaxed(&page(rank_).missed[word], missed[word]);
    }
  }
  for (int peer = 0; peer < world_size_; ++peer) {
    if (has_given_up(peer, number)) number = load_acquire(&page(peer).gave_up);
  }
  store_release(&page(rank_).gave_up, number);
  fence_before_writes();
  // A rendezvous may have made further exchanges since.
  enter(has_reached(number_, number) ? number_ : number);
}

void LocalGroup::check_given_up(std::uint64_t number, const char* call) const {
  for (int peer = 0; peer < world_size_; ++peer) {
    if (!has_given_up(peer, number)) continue;
    const std::vector<int> missed = missed_by(peer);
    throw Error(ErrorCode::kPeerLost, memory_prefix_, call, ": ", rank_name(peer), " has given up",
                missed.empty() ? "" : " waiting for " + names_.list(missed));
  }
}

std::vector<int> LocalGroup::missed_by(int peer) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < world_size_; ++rank) {
    const std::uint64_t word = load_relaxed(&page(peer).missed[rank / GroupPage::kMaskBits]);
    if ((word >> (rank % GroupPage::kMaskBits) & 1) != 0) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<int> LocalGroup::absent(std::uint64_t number) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < world_size_; ++rank) {
    if (!has_reached(load_acquire(&page(rank).exchange.value), number)) ranks.push_back(rank);
  }
  return ranks;
}

void LocalGroup::await_all(std::uint64_t number, const char* call, const Deadline& deadline) {
  ExchangeSupervisor supervisor(*this, number, deadline);
  int late = 0;
  // What a rank did before it ended counts.
  while (late < world_size_ && (wait_for(page(late).exchange, number, late, policy_, supervisor) ||
                                has_reached(load_acquire(&page(late).exchange.value), number))) {
    ++late;
  }
  check_given_up(number, call);
  if (late == world_size_) return;
  if (supervisor.timed_out()) {
    std::string names;
    for (const int rank : absent(number)) names += (names.empty() ? "" : ", ") + rank_report(rank);
    if (names.empty()) names = rank_report(late);
    throw Error(ErrorCode::kTimeout, memory_prefix_, call, ": ", names, " did not come within ",
                deadline.timeout().count(), " ms");
  }
  check_usable();
  throw Error(ErrorCode::kPeerLost, memory_prefix_, call, ": ", rank_name(late),
              " has ended or left the group");
}

void LocalGroup::check_purposes(const std::vector<std::uint64_t>& purposes) const {
  const auto other =
      std::ranges::find_if(purposes, [&](std::uint64_t one) { return one != purposes[0]; });
  if (other == purposes.end()) return;
  throw Error(ErrorCode::kMismatch, memory_prefix_, "ranks made different calls: ", rank_name(0),
              " called ", purpose_name(purposes[0]), ", ",
              rank_name(static_cast<int>(other - purposes.begin())), " called ",
              purpose_name(*other));
}

template <typename Element>
LocalGroup::Metadata<Element> LocalGroup::exchange(Purpose purpose,
                                                   std::span<const Element> message,
                                                   const Deadline& deadline) {
  if (message.size_bytes() > GroupPage::kMessageBytes) {
    throw Error(ErrorCode::kInvalidArgument, memory_prefix_, "a message has at most ",
                GroupPage::kMessageBytes, " bytes, got ", message.size_bytes());
  }
  const auto lock = hold();
  check_usable();
  const std::uint64_t number = number_ + 1;
  GroupPage::Message& mine = page(rank_).messages[number % 2];
  mine.purpose = static_cast<std::uint64_t>(purpose);
  mine.bytes = message.size_bytes();
  std::ranges::copy(std::as_bytes(message), reinterpret_cast<std::byte*>(mine.data));
  enter(number);
  std::vector<std::uint64_t> purposes;
  Metadata<Element> result{number, std::vector<std::vector<Element>>(global_ranks_.size())};
  try {
    await_all(number, purpose_name(mine.purpose), deadline);
    for (int peer = 0; peer < world_size_; ++peer) {
      const GroupPage::Message& theirs = page(peer).messages[number % 2];
      purposes.push_back(theirs.purpose);
      const std::size_t bytes = std::min<std::size_t>(theirs.bytes, GroupPage::kMessageBytes);
      std::vector<Element>& copy = result.messages[static_cast<std::size_t>(peer)];
      copy.resize(bytes / sizeof(Element));
      if (!copy.empty()) std::memcpy(copy.data(), theirs.data, copy.size() * sizeof(Element));
    }
    fence_after_reads();
    check_given_up(number, purpose_name(mine.purpose));
  } catch (...) {
    give_up(number, missed(number));
    throw;
  }
  check_purposes(purposes);
  return result;
}

LocalGroup::Metadata<std::uint8_t> LocalGroup::exchange_metadata(
    Purpose purpose, std::span<const std::uint8_t> message, const Deadline& deadline) {
  return exchange(purpose, message, deadline);
}

LocalGroup::Metadata<std::uint64_t> LocalGroup::exchange_words(Purpose purpose,
                                                               std::span<const std::uint64_t> words,
                                                               std::size_t least,
                                                               const Deadline& deadline) {
  Metadata<std::uint64_t> result = exchange(purpose, words, deadline);
  for (std::vector<std::uint64_t>& theirs : result.messages) {
    if (theirs.size() < least) theirs.resize(least);
  }
  return result;
}

void LocalGroup::run_rendezvous(const Deadline& deadline,
                                const std::function<bool(const MeshRound& round)>& step) {
  const auto lock = hold();
  check_usable();
  const std::uint64_t number = number_ + 1;
  const std::function<bool()> is_over = [this, number] {
    check_interrupts();
    if (failed()) return true;
    for (int peer = 0; peer < world_size_; ++peer) {
      if (has_given_up(peer, number)) return true;
    }
    return false;
  };
  // What peers have sent and this rank has not taken is of no use afterwards.
  const auto end = [this] {
    mesh_->restart({FrameStream::kSymmetricMemory, std::uint64_t{number_} + 1});
  };
  const MeshRound round{*mesh_, {FrameStream::kSymmetricMemory, number}, deadline, is_over};
  try {
    if (step(round)) end();
  } catch (const Error& error) {
    // Peers wait for a rank that fails before it has entered the exchange.
    if (breaks_mesh(error.code()) || !has_reached(number_, number)) give_up(number, {});
    end();
    throw;
  } catch (...) {
    give_up(number, {});
    end();
    throw;
  }
}

std::shared_ptr<Segment> LocalGroup::share(std::shared_ptr<LocalSegment> local,
                                           const Deadline& deadline) {
  std::shared_ptr<Segment> segment;
  run_rendezvous(deadline, [&](const MeshRound& round) {
    SegmentRendezvous rendezvous(round, std::move(local), segments_.free_rows());
    rendezvous.post();
    exchange_metadata(Purpose::kShare, {}, round.deadline);
    segment = rendezvous.run();
    return true;
  });
  return segment;
}

}  // namespace symm
