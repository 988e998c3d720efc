#include "symm_mem/bootstrap/peer_board.hpp"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "kernels/core/error.hpp"
#include "symm_mem/bootstrap/peer_exchange.hpp"
#include "symm_mem/bootstrap/unix_socket.hpp"
#include "symm_mem/process/fork_guard.hpp"

namespace symm {
namespace {

using std::chrono::milliseconds;

// After the deadline each further rank gets this long, so that the error names all that are
// missing.
constexpr milliseconds kLastLook{10};
constexpr int kMaxLastLooks = 32;

// How long to sleep between two looks at the Store: a part of the time waited so far.
constexpr std::chrono::microseconds kShortestSleep{500};
constexpr std::chrono::microseconds kLongestSleep{50'000};
constexpr int kPartOfWait = 8;

// How long a process that was killed may take to close its connections.
constexpr milliseconds kTimeToEnd{200};

std::string store_key(int rank) { return "symm/peer/" + std::to_string(rank); }

// What this process remembers from one try to the next. A forked child starts afresh.
struct EarlierTries {
  std::uint32_t fork_generation = 0;
  // When its last try, where that failed, ended; by group name and rank.
  std::map<std::pair<std::string, int>, std::chrono::nanoseconds> failed;
  // With whom it has been in a group.
  std::set<ProcessIdentity> colleagues;
};

// Use them under a ForkHold. Never destroyed, for threads that outlive statics.
EarlierTries& earlier_tries() {
  static EarlierTries* const tries = new EarlierTries;
  if (tries->fork_generation != fork_generation()) *tries = {fork_generation(), {}, {}};
  return *tries;
}

// What is no record of this version is of nobody that could be asked for.
std::optional<PeerRecord> parse_if_whole(const std::vector<std::uint8_t>& bytes, int rank) {
  try {
    return parse_peer_record(bytes, rank);
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::uint64_t now_in_nanoseconds() { return static_cast<std::uint64_t>(host_clock().count()); }

}  // namespace

PeerBoard::PeerBoard(KeyValueStore& store, const BootstrapMeshConfig& config)
    : store_(store),
      config_(config),
      prefix_(mesh_prefix(config.group_name, config.names, config.rank)),
      own_{.rank = static_cast<std::uint32_t>(config.rank),
           .world_size = static_cast<std::uint32_t>(config.world_size),
           .process = own_process(),
           .uid = ::geteuid(),
           .mount_namespace = mount_namespace_id(),
           .nonce = random_nonce(),
           .boot_id = host_id(),
           .socket_path = {},
           .payload = config.payload},
      begin_(start_time(own_.process)) {
  const ForkHold hold;
  const auto& failed = earlier_tries().failed;
  const auto found = failed.find({config.group_name, config.rank});
  if (found != failed.end()) begin_ = std::max(begin_, found->second);
}

Error PeerBoard::of_group(const Error& error) const {
  return Error(error.code(), prefix_, error.what());
}

void PeerBoard::put(const PeerRecord& record) {
  try {
    store_.set(store_key(config_.rank), encode_peer_record(record));
  } catch (const Error& error) {
    throw of_group(error);
  }
}

void PeerBoard::publish(const std::string& socket_path) {
  if (const auto bytes = stored(config_.rank)) {
    if (const auto holder = parse_if_whole(*bytes, config_.rank)) check_key_is_free(*holder);
  }
  own_.socket_path = socket_path;
  own_.published = now_in_nanoseconds();
  put(own_);
  published_ = true;
}

void PeerBoard::check_key_is_free(const PeerRecord& holder) const {
  const ProcessIdentity& process = holder.process;
  if (process == own_.process || holder.boot_id != own_.boot_id || !is_running(process)) return;
  {
    const ForkHold hold;
    if (earlier_tries().colleagues.contains(process)) return;
  }
  throw Error(ErrorCode::kSecurity, prefix_,
              "another job uses the Store under this prefix: its key '", store_key(config_.rank),
              "' belongs to process ", process.pid,
              ", which is still running; give each job a Store or a prefix of its own");
}

// A Store fails most often because the process that served it, or was writing to it, has ended:
// then that is the cause.
std::optional<std::vector<std::uint8_t>> PeerBoard::stored(int rank) const {
  try {
    return store_.get(store_key(rank));
  } catch (const Error& error) {
    for (const Deadline end(kTimeToEnd); !end.passed();) {
      look();
      std::this_thread::sleep_for(kShortestSleep);
    }
    throw of_group(error);
  }
}

std::optional<PeerRecord> PeerBoard::read(int rank) {
  const auto bytes = stored(rank);
  if (!bytes) return std::nullopt;
  try {
    PeerRecord record = parse_peer_record(*bytes, rank, names());
    if (record.joining == 0) return std::nullopt;
    const bool fits = record.world_size == own_.world_size;
    if (!fits && is_left_over(record) && is_nobody_there(connect_to(record.socket_path).error)) {
      return std::nullopt;
    }
    check_world_size(record, config_.world_size, names());
    return record;
  } catch (const Error& error) {
    throw of_group(error);
  }
}

bool PeerBoard::is_left_over(const PeerRecord& record) const {
  return record.published <= static_cast<std::uint64_t>(begin_.count());
}

std::optional<PeerRecord> PeerBoard::await(int rank, const Deadline& deadline) {
  const Deadline end(std::max(deadline.remaining(), kLastLook));
  const auto start = Deadline::Clock::now();
  for (;;) {
    if (auto record = read(rank)) return record;
    if (end.passed()) return std::nullopt;
    look();
    const auto waited = Deadline::Clock::now() - start;
    const auto sleep =
        std::clamp<std::chrono::nanoseconds>(waited / kPartOfWait, kShortestSleep, kLongestSleep);
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(sleep, end.remaining()));
  }
}

std::vector<PeerRecord> PeerBoard::collect(const Deadline& deadline) {
  std::vector<PeerRecord> records;
  std::vector<int> missing;
  int last_looks = 0;
  for (int rank = 0; rank < config_.world_size && last_looks < kMaxLastLooks; ++rank) {
    if (deadline.passed()) ++last_looks;
    std::optional<PeerRecord> record = rank == config_.rank ? read(rank) : await(rank, deadline);
    if (rank == config_.rank && !record) throw_overwritten();
    if (!record) {
      missing.push_back(rank);
    } else {
      records.push_back(std::move(*record));
    }
  }
  if (!missing.empty()) {
    throw Error(ErrorCode::kTimeout, prefix_, names().list(missing), " did not join the group of ",
                config_.world_size, " ranks within ", config_.timeout.count(), " ms");
  }
  check_own();
  check_peers(records);
  return records;
}

bool PeerBoard::holds_own() {
  const auto bytes = stored(config_.rank);
  const auto found = bytes ? parse_if_whole(*bytes, config_.rank) : std::nullopt;
  return found && same_nonce(found->nonce, own_.nonce);
}

void PeerBoard::check_own() {
  if (!holds_own()) throw_overwritten();
}

void PeerBoard::throw_overwritten() const {
  throw Error(ErrorCode::kSecurity, prefix_, "the Store no longer holds this rank's record under '",
              store_key(config_.rank),
              "': another job uses the Store under this prefix, or another process joined as the "
              "same rank");
}

void PeerBoard::check_peers(const std::vector<PeerRecord>& records) const {
  const PeerRecord& first = records.front();
  for (const PeerRecord& other : records) {
    // Where a boot id is unknown the connection itself is the proof.
    if (!first.boot_id.empty() && !other.boot_id.empty() && first.boot_id != other.boot_id) {
      std::vector<std::string> hosts;
      hosts.reserve(records.size());
      for (const PeerRecord& record : records) {
        hosts.push_back(record.boot_id.empty() ? first.boot_id : record.boot_id);
      }
      throw SpansHosts(
          text_of(prefix_, names().name(static_cast<int>(other.rank)),
                  " runs on another host than ", names().name(0), " (host ids ", other.boot_id,
                  " and ", first.boot_id, "), and no engine between hosts was chosen (inter_host)"),
          std::move(hosts));
    }
  }
  for (const PeerRecord& other : records) {
    if (other.uid == first.uid) continue;
    throw Error(ErrorCode::kSecurity, prefix_, "all ranks of a host must run as one user; ",
                names().name(static_cast<int>(other.rank)), " runs as user ", other.uid, ", ",
                names().name(0), " as user ", first.uid);
  }
}

void PeerBoard::joined(const std::vector<PeerRecord>& records) {
  end_own();
  const ForkHold hold;
  earlier_tries().failed.erase({config_.group_name, config_.rank});
  for (const PeerRecord& record : records) earlier_tries().colleagues.insert(record.process);
}

void PeerBoard::failed(const Error& error) noexcept {
  try {
    // Those who come late wait for a rank that may try again, but not for one that knows of a
    // failure.
    const bool may_try_again =
        error.code() == ErrorCode::kTimeout || error.code() == ErrorCode::kAborted;
    if (published_ && may_try_again && holds_own()) end_own();
    const ForkHold hold;
    earlier_tries().failed[{config_.group_name, config_.rank}] = host_clock();
  } catch (const std::exception&) {
    // The error at hand is what is thrown.
  }
}

void PeerBoard::end_own() {
  PeerRecord over = own_;
  over.joining = 0;
  over.payload.clear();
  put(over);
}

}  // namespace symm
