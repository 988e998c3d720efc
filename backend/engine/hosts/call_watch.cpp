#include "backend/engine/hosts/call_watch.hpp"

#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <span>
#include <system_error>
#include <thread>
#include <utility>

namespace symm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// From the first look on intervals double, to this one.
constexpr milliseconds kLongestInterval{2'000};
// Of other hosts, in one look.
constexpr int kMostHosts = 8;
// In so many looks, which take 8 seconds, a rank is seen in a later call by one that waits for it.
constexpr int kLooksGoneOn = 6;

std::vector<std::uint64_t> bytes_of(std::span<const Part> parts, Dtype dtype) {
  std::vector<std::uint64_t> bytes;
  for (const Part& part : parts) bytes.push_back(part.count * dtype_bytes(dtype));
  return bytes;
}

void append(std::vector<std::uint8_t>& value, const void* data, std::size_t bytes) {
  const auto* const begin = static_cast<const std::uint8_t*>(data);
  value.insert(value.end(), begin, begin + bytes);
}

}  // namespace

// What ranks write of late calls, and read.
class CallWatch::Notes {
 public:
  struct Call {
    std::uint64_t number = 0;  // of the watch's; 0: none
    Clock::time_point begin;
    CallNote note;
    // All_to_all: what this rank sends to each rank, and expects of each.
    std::vector<std::uint64_t> bytes_to;
    std::vector<std::uint64_t> bytes_from;
  };

  explicit Notes(Config config) : config_(std::move(config)) {}

  static void clear(KeyValueStore& store, int host, int rank) {
    for (const std::string& key : {key_of_host(host), key_of_rank(rank)}) store.set(key, {0});
  }

  // The look `number` of a call, from 0 on, that waits for `peer`, or for none.
  std::optional<Error> look(const Call& mine, int number, int peer) try {
    const int hosts = config_.layout.host_count();
    if (number == 0) write_own(mine);
    const std::optional<OfHost> here = read(own_host());
    if (auto found = difference_to(mine, here)) return found;
    if (!here || here->call.sequence != mine.note.sequence) write_of_host(mine);
    for (int i = 0; i < std::min(hosts - 1, kMostHosts); ++i) {
      const int step = 1 + (number * kMostHosts + i) % (hosts - 1);
      if (auto found = difference_to(mine, read((own_host() + step) % hosts))) return found;
    }
    return peer < 0 ? std::nullopt : difference_to_peer(mine, number, peer);
  } catch (const Error&) {
    return std::nullopt;  // the store is gone: nothing is known of the others
  }

 private:
  // Of a host the rank that was late there last.
  struct OfHost {
    CallNote call;
    std::uint64_t rank = 0;
  };
  static std::string key_of_host(int host) { return text_of("host/", host); }
  // The note of its call, and of an all_to_all bytes_to and bytes_from.
  static std::string key_of_rank(int rank) { return text_of("rank/", rank); }

  std::size_t world() const { return config_.layout.host_of.size(); }
  int host_of(int rank) const { return config_.layout.host_of[static_cast<std::size_t>(rank)]; }
  int own_host() const { return host_of(config_.rank); }
  std::string text_of_rank(int rank) const {
    const auto host = static_cast<std::size_t>(host_of(rank));
    return text_of(config_.names.name(rank), " on host ", config_.layout.names[host]);
  }

  void write_of_host(const Call& mine) {
    const OfHost of_host{mine.note, static_cast<std::uint64_t>(config_.rank)};
    std::vector<std::uint8_t> value;
    append(value, &of_host, sizeof(of_host));
    config_.store->set(key_of_host(own_host()), value);
  }
  void write_own(const Call& mine) {
    std::vector<std::uint8_t> value;
    append(value, &mine.note, sizeof(mine.note));
    for (const auto* bytes : {&mine.bytes_to, &mine.bytes_from}) {
      append(value, bytes->data(), bytes->size() * sizeof(std::uint64_t));
    }
    config_.store->set(key_of_rank(config_.rank), value);
  }

  std::optional<OfHost> read(int host) const {
    const auto value = config_.store->get(key_of_host(host));
    OfHost of_host;
    if (!value || value->size() != sizeof(of_host)) return std::nullopt;
    std::memcpy(&of_host, value->data(), sizeof(of_host));
    return of_host;
  }
  std::optional<Error> difference_to(const Call& mine, const std::optional<OfHost>& theirs) const {
    if (!theirs || theirs->call.sequence != mine.note.sequence || theirs->rank >= world() ||
        same_note(theirs->call, mine.note)) {
      return std::nullopt;
    }
    return different_notes(text_of_rank(static_cast<int>(theirs->rank)), theirs->call, mine.note);
  }

  std::optional<Error> difference_to_peer(const Call& mine, int number, int peer) {
    const auto value = config_.store->get(key_of_rank(peer));
    CallNote theirs;
    if (!value || value->size() < sizeof(theirs)) return std::nullopt;
    std::memcpy(&theirs, value->data(), sizeof(theirs));
    if (theirs.sequence > mine.note.sequence) return gone_on(mine, number, peer, theirs);
    if (theirs.sequence != mine.note.sequence || mine.bytes_to.empty()) return std::nullopt;
    std::vector<std::uint64_t> bytes(2 * world());
    if (value->size() != sizeof(theirs) + bytes.size() * sizeof(bytes[0])) return std::nullopt;
    std::memcpy(bytes.data(), value->data() + sizeof(theirs), bytes.size() * sizeof(bytes[0]));
    const auto me = static_cast<std::size_t>(config_.rank);
    const auto them = static_cast<std::size_t>(peer);
    const std::uint64_t sent = bytes[me];
    const std::uint64_t expected = bytes[world() + me];
    if (sent == mine.bytes_from[them] && expected == mine.bytes_to[them]) return std::nullopt;
    return Error(ErrorCode::kMismatch, "ranks made different calls: in all_to_all number ",
                 theirs.sequence, " ", text_of_rank(peer), " sends this rank ", sent,
                 " bytes and expects ", expected, ", this one expects ", mine.bytes_from[them],
                 " bytes and sends ", mine.bytes_to[them]);
  }

  // What it sent in this rank's call may be on its way, for some time.
  std::optional<Error> gone_on(const Call& mine, int number, int peer, const CallNote& theirs) {
    if (number == 0 || peer != gone_peer_) looks_gone_ = 0;
    gone_peer_ = peer;
    if (++looks_gone_ < kLooksGoneOn) return std::nullopt;
    return different_notes(text_of_rank(peer) + " has ended that call, without this rank, and",
                           theirs, mine.note);
  }

  const Config config_;
  int gone_peer_ = -1;
  int looks_gone_ = 0;
};

struct CallWatch::State {
  State(Config config, Failed failed_, Found found_)
      : notes(std::move(config)), failed(std::move(failed_)), found(std::move(found_)) {}

  Notes notes;  // the thread's
  const Failed failed;
  const Found found;
  std::atomic<int> awaited{-1};

  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  Notes::Call call;                 // in progress
  std::uint64_t calls = 0;          // so far
  std::uint64_t late = 0;           // the call after which the thread has looked last
  std::uint64_t wanted = 0;         // the call after which it is to look at once,
  std::uint64_t answered = 0;       // and the last for which it has done that
  std::optional<Error> difference;  // of the call in progress, or the failure of this host's ranks
  bool is_running = false;
  bool ends = false;

  void run() {
    ::pthread_setname_np(::pthread_self(), "symm_late_calls");
    std::unique_lock lock(mutex);
    int looks = 0;  // after the call in progress
    Clock::time_point next{};
    while (!ends) {
      changed.wait_for(lock, kLateCall / 2);
      const bool is_wanted = wanted == call.number && answered != wanted;
      if (ends || call.number == 0 || difference) continue;
      difference = failed();
      if (difference) {
        found(*difference);  // with the mutex: the call does not end meanwhile
        continue;
      }
      if (late != call.number) {
        looks = 0;
        next = call.begin + kLateCall;
      }
      if (Clock::now() < next && !is_wanted) continue;
      late = call.number;
      const Notes::Call mine = call;
      lock.unlock();
      auto one = notes.look(mine, looks, awaited.load(std::memory_order_relaxed));
      lock.lock();
      next = Clock::now() +
             std::min<milliseconds>(kLateCall * (1 << std::min(looks, 8)), kLongestInterval);
      looks += 1;
      if (call.number != mine.number) continue;
      difference = std::move(one);
      if (wanted == call.number) {
        answered = wanted;
        changed.notify_all();
      } else if (difference) {
        found(*difference);
      }
    }
  }
};

void CallWatch::clear(KeyValueStore& store, const HostLayout& layout, int rank) {
  Notes::clear(store, layout.host_of[static_cast<std::size_t>(rank)], rank);
}

CallWatch::CallWatch(Config config, Failed failed, Found found)
    : state_(std::make_shared<State>(std::move(config), std::move(failed), std::move(found))) {}

CallWatch::~CallWatch() {
  const std::lock_guard lock(state_->mutex);
  state_->ends = true;
  state_->changed.notify_all();
}

void CallWatch::begin(const CollectiveArgs& args, const CallNote& note) {
  State& state = *state_;
  Notes::Call call;
  call.begin = Clock::now();
  call.note = note;
  if (args.kind == CollectiveKind::kAllToAll) {
    call.bytes_to = bytes_of(args.input_parts, args.dtype);
    call.bytes_from = bytes_of(args.output_parts, args.dtype);
  }
  const std::lock_guard lock(state.mutex);
  call.number = ++state.calls;
  state.call = std::move(call);
  state.difference.reset();
  if (state.is_running) return;
  try {
    std::thread([shared = state_] { shared->run(); }).detach();
    state.is_running = true;
  } catch (const std::system_error&) {
    // Without a thread a difference is not found before the time-out.
  }
}

void CallWatch::end() {
  const std::lock_guard lock(state_->mutex);
  state_->call.number = 0;
}

std::atomic<int>& CallWatch::awaited() { return state_->awaited; }

std::optional<Error> CallWatch::difference() {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  const std::uint64_t number = state.call.number;
  if (state.difference || state.late != number) return state.difference;
  state.wanted = number;
  state.changed.notify_all();
  state.changed.wait_for(lock, kLastLook, [&] { return state.answered == number; });
  return state.difference;
}

}  // namespace symm
