#include "symm_mem/group/host_signals.hpp"

#include <optional>
#include <string>
#include <thread>

#include "kernels/core/error.hpp"
#include "symm_mem/process/deadline.hpp"
#include "symm_mem/process/interrupt.hpp"

namespace symm {
namespace {

// Between two looks at the connections and the clock.
constexpr std::chrono::milliseconds kSupervisionPeriod{1};
constexpr std::chrono::microseconds kSleep{50};

}  // namespace

// What the slots say of a rank; withdrawn by it or by this rank.
enum class HostSignals::Standing { kCame, kAwaited, kWithdrawn, kWithdrawnHere };

// How one operation waits. `standing(rank)` tells by the slots whether a rank is still waited for.
class HostSignals::Patience {
 public:
  Patience(LocalGroup& group, std::string operation, const Timeout& timeout)
      : group_(group), operation_(std::move(operation)), timeout_(timeout) {}

  template <typename Attempt, typename StandingOf>
  void until(Attempt&& attempt, StandingOf&& standing) {
    for (int round = 0; !attempt(); ++round) {
      if (spin(round, group_.policy(), nullptr)) continue;
      std::this_thread::sleep_for(kSleep);
      if (Deadline::Clock::now() < next_look_) continue;
      next_look_ = Deadline::Clock::now() + kSupervisionPeriod;
      look(standing);
    }
  }

 private:
  template <typename StandingOf>
  void look(StandingOf&& standing) {
    check_interrupts();
    group_.check_usable();
    if (!deadline_) {
      limit_ = timeout_();
      deadline_.emplace(limit_);
    }
    std::string lost;
    std::string late;
    for (int rank = 0; rank < group_.world_size(); ++rank) {
      // In this order: what a rank did before it ended counts.
      const bool gone = group_.is_gone(rank);
      const Standing found = standing(rank);
      if (found == Standing::kCame) continue;
      if (found != Standing::kAwaited) {
        const int giver = found == Standing::kWithdrawn ? rank : group_.rank();
        throw Error(ErrorCode::kPeerLost, group_.memory_prefix(), operation_, ": ",
                    group_.rank_name(giver),
                    " has given up a barrier on this channel; use another channel or new memory");
      }
      std::string& names = gone ? lost : late;
      names += (names.empty() ? "" : ", ") + group_.rank_report(rank);
    }
    if (!lost.empty()) {
      throw Error(ErrorCode::kPeerLost, group_.memory_prefix(), operation_, ": ", lost,
                  " has ended or left the group");
    }
    if (deadline_->passed() && !late.empty()) {
      throw Error(ErrorCode::kTimeout, group_.memory_prefix(), operation_, ": Timed out after ",
                  limit_.count(), " ms waiting for ", late);
    }
  }

  LocalGroup& group_;
  const std::string operation_;
  const Timeout& timeout_;
  std::optional<Deadline> deadline_;
  std::chrono::milliseconds limit_{0};
  Deadline::Clock::time_point next_look_;
};

HostSignals::Standing HostSignals::before_put(int destination, int channel) const {
  const SignalSlot found = load_relaxed(slot(destination, channel, group_.rank()));
  if (found == kSignalWithdrawn) return Standing::kWithdrawnHere;
  return found == kSignalFull ? Standing::kAwaited : Standing::kCame;
}

HostSignals::Standing HostSignals::before_take(int source, int channel) const {
  const SignalSlot found = load_relaxed(slot(group_.rank(), channel, source));
  if (found == kSignalWithdrawn) return Standing::kWithdrawn;
  return found == kSignalFull ? Standing::kCame : Standing::kAwaited;
}

void HostSignals::barrier(int channel, const Timeout& timeout) {
  check_signal_channel("barrier", pads_.bytes, group_.world_size(), channel);
  Patience patience(group_, text_of("barrier on channel ", channel), timeout);
  try {
    meet(channel, patience);
  } catch (...) {
    for (int peer = 0; peer < group_.world_size(); ++peer) {
      if (peer != group_.rank()) withdraw(slot(peer, channel, group_.rank()));
    }
    fence_before_writes();
    throw;
  }
}

void HostSignals::meet(int channel, Patience& patience) {
  const int me = group_.rank();
  for (int peer = 0; peer < group_.world_size(); ++peer) {
    if (peer == me) continue;
    patience.until(
        [&] { return try_put(slot(peer, channel, me)); },
        [&](int rank) { return rank == peer ? before_put(peer, channel) : Standing::kCame; });
  }
  for (int peer = 0; peer < group_.world_size(); ++peer) {
    if (peer == me) continue;
    patience.until([&] { return try_take(slot(me, channel, peer)); },
                   [&](int rank) {
                     return rank >= peer && rank != me ? before_take(rank, channel)
                                                       : Standing::kCame;
                   });
  }
}

void HostSignals::put(int destination, int channel, const Timeout& timeout) {
  check_signal_rank("put_signal", group_.world_size(), destination);
  check_signal_channel("put_signal", pads_.bytes, group_.world_size(), channel);
  Patience(group_, text_of("put_signal on channel ", channel), timeout)
      .until([&] { return try_put(slot(destination, channel, group_.rank())); },
             [&](int rank) {
               return rank == destination ? before_put(destination, channel) : Standing::kCame;
             });
}

void HostSignals::wait(int source, int channel, const Timeout& timeout) {
  check_signal_rank("wait_signal", group_.world_size(), source);
  check_signal_channel("wait_signal", pads_.bytes, group_.world_size(), channel);
  Patience(group_, text_of("wait_signal on channel ", channel), timeout)
      .until([&] { return try_take(slot(group_.rank(), channel, source)); },
             [&](int rank) {
               return rank == source ? before_take(source, channel) : Standing::kCame;
             });
}

}  // namespace symm
