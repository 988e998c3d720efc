#include "symm_mem/group/local_group.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "kernels/core/atomics.hpp"
#include "symm_mem/bootstrap/peer_exchange.hpp"
#include "symm_mem/group/live_groups.hpp"
#include "symm_mem/process/byte_codec.hpp"
#include "symm_mem/process/deadline.hpp"
#include "symm_mem/process/fork_guard.hpp"
#include "symm_mem/process/interrupt.hpp"
#include "symm_mem/process/process_identity.hpp"
#include "symm_mem/process/process_limits.hpp"
#include "symm_mem/segment/segment_rendezvous.hpp"

namespace symm {
namespace {

// The sequence, in the collectives' stream, of the exchange that makes the pages.
constexpr std::uint64_t kPagesSequence = 1;

// While memory is shared a rank has descriptors of all of it, of which it keeps none.
constexpr std::size_t kSpareDescriptors = 4;

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

// What the group takes now and later: the first large call should not be the one that finds a
// limit.
void check_needs(const LocalGroupConfig& config) {
  const auto ranks = static_cast<std::size_t>(config.world_size);
  const std::size_t bytes = sizeof(GroupPage) + config.region_bytes + config.later_bytes;
  check_process_limits(
      text_of("a group of ", ranks, " ranks"),
      {.descriptors = ranks + kSpareDescriptors, .address_space = ranks * bytes, .memory = bytes});
}

}  // namespace

int ranks_on_host(int world_size) {
  const char* local = std::getenv("LOCAL_WORLD_SIZE");
  return std::max(world_size, local == nullptr ? 0 : std::atoi(local));
}

class LocalGroup::ExchangeSupervisor final : public WaitSupervisor {
 public:
  ExchangeSupervisor(const LocalGroup& group, std::uint64_t number, const Deadline& deadline)
      : group_(group), number_(number), deadline_(deadline) {}

  bool keep_waiting(int peer) override {
    check_interrupts();
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

LocalGroup::LocalGroup(const LocalGroupConfig& config)
    : group_name_(config.group_name),
      rank_(config.rank),
      world_size_(config.world_size),
      policy_(wait_policy(ranks_on_host(config.world_size), config.busy_threads)),
      fork_generation_(fork_generation()) {}

std::shared_ptr<LocalGroup> LocalGroup::connect(KeyValueStore& store,
                                                const LocalGroupConfig& config) {
  const Deadline deadline(config.timeout);
  std::shared_ptr<LocalGroup> group(new LocalGroup(config));
  const std::vector<std::int64_t>& global = config.global_ranks;
  const auto index = static_cast<std::size_t>(config.rank);
  ByteWriter payload;
  payload.field(index < global.size() ? global[index] : std::int64_t{config.rank});
  payload.raw(config.payload);
  const RankNames names(global);
  const SetUpWatch watch(mesh_prefix(config.group_name, names, config.rank), config.rank, global);
  group->mesh_ = BootstrapMesh::connect(store, {.group_name = config.group_name,
                                                .rank = config.rank,
                                                .world_size = config.world_size,
                                                .names = names,
                                                .timeout = config.timeout,
                                                .payload = payload.take(),
                                                .look =
                                                    [&watch] {
                                                      check_interrupts_of_setup();
                                                      watch.look();
                                                    },
                                                .check = [&config] { check_needs(config); }});
  group->learn_ranks();
  if (config.world_size == 1) {
    group->own_page_ = std::make_unique<GroupPage>();
  } else {
    try {
      group->pages_ = Segment::rendezvous(
          *group->mesh_,
          LocalSegment::allocate(host_runtime(), sizeof(GroupPage) + config.region_bytes),
          kPagesSequence, deadline.remaining(), {});
      group->pages_->close_handles();
    } catch (const Error& error) {
      group->mesh_->leave(error);
      const std::string prefix = mesh_prefix(config.group_name, names, config.rank);
      const bool named = std::string_view(error.what()).starts_with(prefix);
      throw Error(error.code(), named ? "" : prefix, error.what());
    }
  }
  group->number_ = config.first_exchange;
  store_release(&group->page(config.rank).lifecycle,
                static_cast<std::uint32_t>(Lifecycle::kMember));
  if (config.world_size > 1) add_to_live_groups(group);
  return group;
}

void LocalGroup::learn_ranks() {
  constexpr std::uint64_t kLimit = std::uint64_t{1} << 30;
  for (int rank = 0; rank < world_size_; ++rank) {
    ByteReader reader(mesh_->peer(rank).payload);
    const auto global = reader.integer<std::uint64_t>();
    if (mesh_->peer(rank).payload.size() < sizeof(global) || global >= kLimit) {
      throw Error(ErrorCode::kSecurity, mesh_->rank_name(rank),
                  " published a malformed global rank");
    }
    global_ranks_.push_back(static_cast<int>(global));
  }
  names_ = RankNames({global_ranks_.begin(), global_ranks_.end()});
  prefix_ = "group \"" + group_name_ + "\": " + rank_name(rank_) + ": ";
  memory_prefix_ =
      text_of("symmetric memory of group '", group_name_, "', ", rank_name(rank_), ": ");
}

std::span<const std::uint8_t> LocalGroup::payload(int rank) const {
  return std::span(mesh_->peer(rank).payload).subspan(sizeof(std::uint64_t));
}

GroupPage& LocalGroup::page(int rank) const {
  if (own_page_) return *own_page_;
  return *reinterpret_cast<GroupPage*>(pages_->base(rank));
}

std::byte* LocalGroup::region(int rank) const {
  return pages_ ? pages_->base(rank) + sizeof(GroupPage) : nullptr;
}

std::string LocalGroup::process_note(int peer) const {
  const ProcessIdentity& process = mesh_->peer(peer).process;
  if (!is_stopped(process)) return "";
  return text_of("its process, pid ", process.pid, ", is stopped");
}

std::string LocalGroup::rank_report(int peer) const {
  const std::string note = process_note(peer);
  return note.empty() ? rank_name(peer) : text_of(rank_name(peer), " (", note, ")");
}

bool LocalGroup::in_forked_child() const { return fork_generation_ != fork_generation(); }

Error LocalGroup::failure() const {
  const std::lock_guard lock(failure_mutex_);
  fence_before_writes();
  return *failure_;
}

void LocalGroup::fail(const Error& error) {
  std::string text = error.what();
  if (text.starts_with(prefix_)) text.erase(0, prefix_.size());
  fail(error, {error.code(), rank_, std::move(text)});
}

void LocalGroup::fail(const Error& error, const Cause& cause) {
  if (in_forked_child()) return;
  std::unique_lock lock(failure_mutex_);
  if (failure_.has_value()) return;
  if (abort_word_ != nullptr) store_release(abort_word_, std::uint32_t{1});
  failure_ = error;
  FailureRecord& record = page(rank_).failure;
  record.code = static_cast<std::uint32_t>(cause.code);
  record.origin = static_cast<std::uint32_t>(cause.origin);
  record.text[cause.text.copy(record.text, FailureRecord::kTextBytes - 1)] = '\0';
  store_release(&record.state, std::uint32_t{1});
  fence_before_writes();
  failed_.store(true, std::memory_order_release);
  const std::function<void()> hook = std::exchange(failure_hook_, nullptr);
  lock.unlock();
  if (hook) hook();
}

void LocalGroup::on_failure(std::function<void()> hook) {
  {
    const std::lock_guard lock(failure_mutex_);
    if (!failure_.has_value()) {
      failure_hook_ = std::move(hook);
      return;
    }
  }
  hook();
}

void LocalGroup::set_abort_word(std::uint32_t* word) {
  const std::lock_guard lock(failure_mutex_);
  abort_word_ = word;
  if (word != nullptr && failure_.has_value()) store_release(word, std::uint32_t{1});
}

void LocalGroup::leave() {
  if (in_forked_child()) return;
  const std::lock_guard lock(failure_mutex_);
  if (abort_word_ != nullptr) store_release(abort_word_, std::uint32_t{1});
  store_release(&page(rank_).lifecycle, static_cast<std::uint32_t>(Lifecycle::kLeft));
  fence_before_writes();
  if (!failure_.has_value()) {
    failure_ = Error(ErrorCode::kAborted, prefix_, "the group was destroyed on this rank");
  }
  failed_.store(true, std::memory_order_release);
}

bool LocalGroup::has_left(int peer) const {
  return load_acquire(&page(peer).lifecycle) == static_cast<std::uint32_t>(Lifecycle::kLeft);
}

bool LocalGroup::ended_here() const {
  const FailureRecord& record = page(rank_).failure;
  return has_left() || (load_acquire(&record.state) == 1 &&
                        record.code == static_cast<std::uint32_t>(ErrorCode::kAborted) &&
                        record.origin == static_cast<std::uint32_t>(rank_));
}

// A peer leaves before it closes its connections, so the page is read after them.
bool LocalGroup::has_ended(int peer) const {
  return peer != rank_ && mesh_->hung_up(peer) && !has_left(peer) &&
         !is_running(mesh_->peer(peer).process);
}

bool LocalGroup::is_gone(int peer, Error* reason) const {
  const bool hung_up = mesh_->hung_up(peer);
  const bool left = has_left(peer);
  if (reason == nullptr || !(hung_up || left)) return hung_up || left;
  *reason = left ? Error(ErrorCode::kPeerLeft, rank_name(peer), " has left the group")
                 : Error(ErrorCode::kPeerLost, rank_name(peer), " died (its process, pid ",
                         mesh_->peer(peer).process.pid, ", has ended or closed its connection)");
  return true;
}

bool LocalGroup::hear(int peer, const CallName& call) {
  const FailureRecord& record = page(peer).failure;
  if (load_acquire(&record.state) != 1) return true;
  // A rank that makes one up stands for it itself.
  const bool known = record.origin < static_cast<std::uint32_t>(world_size_);
  const Cause cause{static_cast<ErrorCode>(record.code),
                    known ? static_cast<int>(record.origin) : peer,
                    std::string(record.text, ::strnlen(record.text, FailureRecord::kTextBytes))};
  fail(Error(cause.code, prefix_, call(), ": ", rank_name(cause.origin), " gave up: ", cause.text),
       cause);
  return false;
}

bool LocalGroup::poll(const CallName& call) {
  if (failed()) return false;
  for (int peer = 0; peer < world_size_; ++peer) {
    if (peer != rank_ && !hear(peer, call)) return false;
  }
  return true;
}

void LocalGroup::check_usable() const {
  if (in_forked_child()) {
    throw Error(ErrorCode::kAborted, prefix_,
                "the group belongs to the parent process; a forked child must make its own");
  }
  if (failed()) [[unlikely]] {
    throw Error(failure());
  }
}

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
  enter(number);
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
    if (breaks_mesh(error.code())) give_up(number, {});
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
    SegmentRendezvous rendezvous(round, std::move(local));
    rendezvous.post();
    exchange_metadata(Purpose::kShare, {}, round.deadline);
    segment = rendezvous.run();
    return true;
  });
  return segment;
}

}  // namespace symm
