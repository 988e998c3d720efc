#include "backend/engine/device/device_watch.hpp"

#include <cstdio>
#include <utility>

#include "kernels/core/atomics.hpp"

namespace symm {

namespace {

constexpr std::chrono::milliseconds kLookPeriod{4};
// Looking at connections takes a system call a peer, so it is done less often.
constexpr int kLooksBetweenConnections = 4;

// Of a tag, which travels as bits.
std::string signed_text(std::uint64_t bits) {
  return std::to_string(static_cast<std::int64_t>(bits));
}

}  // namespace

DeviceWatch::DeviceWatch(int rank, int world_size, DeviceCallBoard& board,
                         const DeviceMessages& messages, GroupHealth& health)
    : rank_(rank),
      world_size_(world_size),
      board_(board),
      messages_(messages),
      health_(health),
      thread_([this] { run(); }) {}

DeviceWatch::~DeviceWatch() { stop(); }

void DeviceWatch::stop() {
  std::thread thread;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    thread.swap(thread_);
    wake_.notify_all();
  }
  if (thread.joinable()) thread.join();
}

void DeviceWatch::run() {
  for (int round = 0;; ++round) {
    if (!look(round % kLooksBetweenConnections == 0)) return;
    std::unique_lock lock(mutex_);
    if (wake_.wait_for(lock, kLookPeriod, [this] { return stopping_; })) return;
  }
}

// What a peer has said of itself, and what it has called, comes before what its silence has led to
// here: the cause before the effect.
bool DeviceWatch::look(bool at_connections) {
  if (health_.failed()) return false;
  if (const std::optional<Error> error = board_.difference()) {
    health_.fail(*error);
    return false;
  }
  const DevicePage::Report& report = board_.own_page().report;
  const bool gave_up =
      load_acquire(&report.fault) != static_cast<std::uint32_t>(DeviceFault::kNone);
  const std::string call = board_.current_call();
  if (!health_.hear_peers(call)) return false;
  if ((at_connections || gave_up) && !check_connections(call)) return false;
  if (!gave_up) return true;
  health_.fail(error_of(report));
  return false;
}

// The pages are read after the hang-up was seen: what a peer's GPU has done for this rank it did
// before its process ended.
bool DeviceWatch::check_connections(const std::string& call) {
  for (int peer = 0; peer < world_size_; ++peer) {
    Error reason(ErrorCode::kPeerLost, "");
    if (peer == rank_ || !health_.is_gone(peer, &reason)) continue;
    if (!health_.hear_peers(call)) return false;
    const std::string loss = loss_without(peer, reason);
    if (loss.empty()) continue;
    health_.fail(Error(reason.code(), health_.prefix() + loss));
    return false;
  }
  return true;
}

// What of this rank is under way and cannot end as `peer` is gone, for which there is `reason`; ""
// where nothing is. Who else has arrived is a question that only a collective has an answer to.
std::string DeviceWatch::loss_without(int peer, const Error& reason) const {
  const std::string gone = std::string(": ") + reason.what() + " before it was completed";
  const std::uint64_t completed = load_acquire(&board_.own_page().completed);
  const std::uint64_t entered = load_acquire(&board_.own_page().entered);
  if (entered > completed && load_acquire(&board_.page(peer).completed) < entered) {
    return board_.call_name(entered) + gone + "; " + board_.attendance(entered);
  }
  const std::string message = messages_.needing(peer);
  return message.empty() ? "" : message + gone;
}

std::string DeviceWatch::name_of(const DevicePage::Report& report) const {
  return report.transfer != 0 ? messages_.name(report.peer, report.sequence)
                              : board_.call_name(report.sequence);
}

Error DeviceWatch::error_of(const DevicePage::Report& report) const {
  const bool known_peer = report.peer >= 0 && report.peer < world_size_;
  const std::string peer = known_peer ? health_.rank_name(report.peer) : "a rank";
  const std::string self = health_.rank_name(rank_);
  const std::string name = health_.prefix() + (known_peer ? name_of(report) : "a call") + ": ";
  const std::string theirs = std::to_string(report.theirs);
  const std::string mine = std::to_string(report.mine);
  switch (static_cast<DeviceFault>(report.fault)) {
    case DeviceFault::kTimeout: {
      std::string text = name + "Timed out";
      const auto limit = report.transfer != 0 ? std::nullopt : board_.timeout_of(report.sequence);
      if (limit) {
        char seconds[32];
        std::snprintf(seconds, sizeof(seconds), " after %.3f s",
                      std::chrono::duration<double>(*limit).count());
        text += seconds;
      }
      text += " on the device, waiting for " + peer;
      if (report.transfer == 0) text += "; " + board_.attendance(report.sequence);
      return Error(ErrorCode::kTimeout, text);
    }
    case DeviceFault::kCountMismatch:
      return Error(ErrorCode::kMismatch, name + peer + " sends " + theirs + " bytes to " + self +
                                             ", which expects " + mine);
    case DeviceFault::kTagMismatch:
      return Error(ErrorCode::kMismatch,
                   name + peer + " sent a message of tag " + signed_text(report.theirs) +
                       " where " + self + " expects tag " + signed_text(report.mine) +
                       "; messages of two ranks whose tags are equal modulo " +
                       std::to_string(kMessageTagChannels) +
                       " must be received in the order of the sends");
    case DeviceFault::kAsymmetricUse:
      return Error(
          ErrorCode::kMismatch,
          name + self + " and " + peer +
              " passed tensors at different offsets of memory with symmetric registration");
    default:
      return Error(ErrorCode::kAborted, name + "the kernels of the group were told to leave");
  }
}

}  // namespace symm
