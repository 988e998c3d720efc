#include "symm_mem/group/local_group.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "kernels/core/atomics.hpp"
#include "symm_mem/group/live_groups.hpp"
#include "symm_mem/process/byte_codec.hpp"
#include "symm_mem/process/deadline.hpp"
#include "symm_mem/process/fork_guard.hpp"
#include "symm_mem/process/interrupt.hpp"
#include "symm_mem/process/process_identity.hpp"
#include "symm_mem/process/process_limits.hpp"

namespace symm {
namespace {

// The sequence, in the collectives' stream, of the exchange that makes the pages.
constexpr std::uint64_t kPagesSequence = 1;

// While memory is shared a rank has descriptors of all of it, of which it keeps none.
constexpr std::size_t kSpareDescriptors = 4;

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
  group->mesh_->set_given_up([of = group.get()](std::size_t peer, FramePosition position) {
    return position.stream == FrameStream::kSymmetricMemory &&
           of->has_given_up(static_cast<int>(peer), position.number);
  });
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

}  // namespace symm
