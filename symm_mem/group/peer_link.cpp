#include "symm_mem/group/peer_link.hpp"

#include <cstdlib>
#include <exception>
#include <utility>

#include "kernels/core/atomics.hpp"
#include "kernels/core/error.hpp"
#include "symm_mem/bootstrap/peer_exchange.hpp"
#include "symm_mem/process/byte_codec.hpp"
#include "symm_mem/process/deadline.hpp"
#include "symm_mem/process/fork_guard.hpp"

namespace symm {
namespace {

using std::chrono::milliseconds;

int ranks_on_host(int world_size) {
  const char* local = std::getenv("LOCAL_WORLD_SIZE");
  return std::max(world_size, local == nullptr ? 0 : std::atoi(local));
}

std::vector<std::uint8_t> encode_global_rank(std::int64_t rank) {
  ByteWriter writer;
  writer.integer(static_cast<std::uint64_t>(rank));
  return writer.take();
}

int parse_global_rank(std::span<const std::uint8_t> bytes, int rank) {
  ByteReader reader(bytes);
  const auto global = reader.integer<std::uint64_t>();
  constexpr std::uint64_t kLimit = std::uint64_t{1} << 30;
  if (!reader.finished() || global >= kLimit) {
    throw Error(ErrorCode::kSecurity,
                "rank " + std::to_string(rank) + " published a malformed global rank");
  }
  return static_cast<int>(global);
}

const char* purpose_name(std::uint64_t purpose) {
  switch (static_cast<PeerLink::Purpose>(purpose)) {
    case PeerLink::Purpose::kRendezvous:
      return "rendezvous";
    case PeerLink::Purpose::kView:
      return "contiguous_view";
  }
  return "an unknown call";
}

}  // namespace

struct PeerLink::Page {
  SignalLine round;  // rounds that this rank has entered
  std::uint64_t purpose[2];
  std::uint64_t words[2][kWords];
};

class PeerLink::RoundSupervisor final : public WaitSupervisor {
 public:
  RoundSupervisor(PeerLink& link, const Deadline& deadline) : link_(link), deadline_(deadline) {}

  bool keep_waiting(int peer) override {
    timed_out_ = deadline_.passed();
    return !timed_out_ && !link_.is_broken_.load(std::memory_order_relaxed) && !link_.hung_up(peer);
  }
  bool timed_out() const { return timed_out_; }

 private:
  PeerLink& link_;
  const Deadline& deadline_;
  bool timed_out_ = false;
};

PeerLink::PeerLink(const PeerLinkConfig& config)
    : config_(config),
      prefix_("symmetric memory of group '" + config.group_name + "', rank " +
              std::to_string(config.rank) + ": "),
      policy_(wait_policy(ranks_on_host(config.world_size))),
      fork_generation_(fork_generation()) {}

std::shared_ptr<PeerLink> PeerLink::connect(KeyValueStore& store, const PeerLinkConfig& config) {
  const Deadline deadline(config.timeout);
  std::shared_ptr<PeerLink> link(new PeerLink(config));
  link->mesh_ = PeerMesh::connect(store, {.group_name = config.group_name,
                                          .rank = config.rank,
                                          .world_size = config.world_size,
                                          .timeout = config.timeout,
                                          .payload = encode_global_rank(config.global_rank),
                                          .may_be_retried = true});
  for (int rank = 0; rank < config.world_size; ++rank) {
    link->global_ranks_.push_back(parse_global_rank(link->mesh_->peer(rank).payload, rank));
  }
  link->pages_ =
      link->share(LocalSegment::allocate(host_runtime(), sizeof(Page)), deadline.remaining());
  return link;
}

PeerLink::Page& PeerLink::page(int rank) const {
  return *reinterpret_cast<Page*>(pages_->base(rank));
}

std::string PeerLink::rank_name(int rank) const {
  std::string name = "rank " + std::to_string(rank);
  const int global = global_ranks_[static_cast<std::size_t>(rank)];
  if (global != rank) name += " (global rank " + std::to_string(global) + ")";
  return name;
}

std::string PeerLink::names(const std::vector<int>& ranks) const {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + rank_name(rank);
  return text;
}

std::shared_ptr<PeerMesh> PeerLink::mesh() const {
  check_usable();
  const std::lock_guard lock(state_mutex_);
  if (!mesh_) throw Error(ErrorCode::kAborted, prefix_ + broken_);
  return mesh_;
}

void PeerLink::check_usable() const {
  if (fork_generation_ != fork_generation()) {
    throw Error(ErrorCode::kAborted,
                prefix_ + "a forked child cannot use its parent's symmetric memory with peers");
  }
  if (!is_broken_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(state_mutex_);
  throw Error(ErrorCode::kAborted, prefix_ + broken_);
}

bool PeerLink::hung_up(int peer) {
  const std::lock_guard lock(state_mutex_);
  return !mesh_ || mesh_->hung_up(peer);
}

void PeerLink::close(const std::string& why) noexcept {
  std::shared_ptr<PeerMesh> gone;  // closed outside the lock
  const std::lock_guard lock(state_mutex_);
  if (is_broken_.load(std::memory_order_relaxed)) return;
  broken_ = why;
  is_broken_.store(true, std::memory_order_release);
  gone = std::move(mesh_);
}

template <typename Step>
auto PeerLink::guarded(Step&& step) {
  try {
    return step();
  } catch (const Error& error) {
    if (breaks_mesh(error.code())) close("an earlier call failed: " + std::string(error.what()));
    throw;
  } catch (const std::exception& error) {
    close("an earlier call failed: " + std::string(error.what()));
    throw;
  }
}

std::vector<int> PeerLink::absent(std::uint32_t round) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < world_size(); ++rank) {
    if (!has_reached(load_acquire(&page(rank).round.value), round)) ranks.push_back(rank);
  }
  return ranks;
}

PeerLink::Round PeerLink::agree(Purpose purpose, const Words& words, milliseconds timeout) {
  const auto lock = hold();
  check_usable();
  const std::uint64_t number = ++round_;
  const auto round = static_cast<std::uint32_t>(number);
  const std::size_t side = round % 2;
  Page& mine = page(rank());
  mine.purpose[side] = static_cast<std::uint64_t>(purpose);
  std::copy(words.begin(), words.end(), mine.words[side]);
  post(mine.round, round);
  Round result{number, std::vector<Words>(static_cast<std::size_t>(world_size()))};
  guarded([&] {
    const Deadline deadline(timeout);
    RoundSupervisor supervisor(*this, deadline);
    for (int peer = 0; peer < world_size(); ++peer) {
      if (wait_for(page(peer).round, round, peer, policy_, supervisor)) continue;
      // What a rank did before it ended counts.
      if (has_reached(load_acquire(&page(peer).round.value), round)) continue;
      if (supervisor.timed_out()) {
        throw Error(ErrorCode::kTimeout, prefix_ +
                                             purpose_name(static_cast<std::uint64_t>(purpose)) +
                                             ": " + names(absent(round)) + " did not come within " +
                                             std::to_string(timeout.count()) + " ms");
      }
      check_usable();
      throw Error(ErrorCode::kPeerLost, prefix_ +
                                            purpose_name(static_cast<std::uint64_t>(purpose)) +
                                            ": " + rank_name(peer) + " has ended or given up");
    }
  });
  for (int peer = 0; peer < world_size(); ++peer) {
    const Page& theirs = page(peer);
    std::copy(theirs.words[side], theirs.words[side] + kWords,
              result.words[static_cast<std::size_t>(peer)].begin());
  }
  check_purposes(result.words, round);
  return result;
}

void PeerLink::check_purposes(const std::vector<Words>& words, std::uint32_t round) const {
  const std::size_t side = round % 2;
  const std::uint64_t first = page(0).purpose[side];
  for (int peer = 1; peer < static_cast<int>(words.size()); ++peer) {
    const std::uint64_t theirs = page(peer).purpose[side];
    if (theirs == first) continue;
    throw Error(ErrorCode::kMismatch, prefix_ + "ranks made different calls: " + rank_name(0) +
                                          " called " + purpose_name(first) + ", " +
                                          rank_name(peer) + " called " + purpose_name(theirs));
  }
}

std::shared_ptr<Segment> PeerLink::share(std::shared_ptr<LocalSegment> local,
                                         milliseconds timeout) {
  const auto lock = hold();
  const std::shared_ptr<PeerMesh> mesh = this->mesh();
  return guarded([&] {
    return Segment::rendezvous(*mesh, std::move(local), ++sequence_, timeout,
                               [this] { return is_broken_.load(std::memory_order_relaxed); });
  });
}

std::vector<std::vector<std::uint8_t>> PeerLink::tell(std::span<const std::uint8_t> message,
                                                      milliseconds timeout) {
  const auto lock = hold();
  const std::shared_ptr<PeerMesh> mesh = this->mesh();
  std::vector<PeerMesh::Received> received = guarded([&] {
    return mesh->exchange(++sequence_, message, -1, timeout,
                          [this] { return is_broken_.load(std::memory_order_relaxed); });
  });
  std::vector<std::vector<std::uint8_t>> messages;
  messages.reserve(received.size());
  for (PeerMesh::Received& one : received) messages.push_back(std::move(one.message));
  messages[static_cast<std::size_t>(rank())].assign(message.begin(), message.end());
  return messages;
}

}  // namespace symm
