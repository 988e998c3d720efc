#include "backend/engine/device/device_watchdog.hpp"

#include <cstdio>
#include <utility>

#include "kernels/core/atomics.hpp"

namespace symm {

DeviceWatchdog::DeviceWatchdog(LocalGroup& group, DeviceTrace& trace,
                               const DeviceMessages& messages, MessageComparison& comparison)
    : group_(group), trace_(trace), messages_(messages), comparison_(comparison) {
  group_.watchdog().add(*this);
}

// What a peer has said of itself, and what it has called, comes before what its silence has led to
// here: the cause before the effect.
void DeviceWatchdog::look(bool at_connections) {
  if (group_.failed()) return;
  if (const std::optional<Error> error = trace_.difference()) {
    group_.fail(*error);
    return;
  }
  if (const std::optional<Error> error = comparison_.difference()) {
    group_.fail(*error);
    return;
  }
  const DevicePage::Report& report = trace_.own_page().report;
  const bool gave_up =
      load_acquire(&report.fault) != static_cast<std::uint32_t>(DeviceFault::kNone);
  if (!hear_peers()) return;
  if ((at_connections || gave_up) && !check_connections()) return;
  if (gave_up) group_.fail(error_of(report));
}

bool DeviceWatchdog::hear_peers() {
  return group_.poll([this] { return trace_.current_call(); });
}

// The pages are read after the hang-up was seen: what a peer's GPU has done for this rank it did
// before its process ended.
bool DeviceWatchdog::check_connections() {
  for (int peer = 0; peer < group_.world_size(); ++peer) {
    Error reason(ErrorCode::kPeerLost, "");
    if (peer == group_.rank() || !group_.is_gone(peer, &reason)) continue;
    if (!hear_peers()) return false;
    const std::string loss = loss_without(peer, reason);
    if (loss.empty()) continue;
    group_.fail(Error(reason.code(), group_.prefix() + loss));
    return false;
  }
  return true;
}

// Names the operation of this rank that cannot end because `peer` is gone for `reason`; "" where
// there is none. Only a collective has an arrival report.
std::string DeviceWatchdog::loss_without(int peer, const Error& reason) const {
  const std::string gone = std::string(": ") + reason.what() + " before it was completed";
  const std::uint64_t completed = load_acquire(&trace_.own_page().completed);
  const std::uint64_t entered = load_acquire(&trace_.own_page().entered);
  if (entered > completed && load_acquire(&trace_.page(peer).completed) < entered) {
    return trace_.call_name(entered) + gone + "; " + trace_.arrival_report(entered);
  }
  const std::string message = messages_.needing(peer);
  return message.empty() ? "" : message + gone;
}

Error DeviceWatchdog::error_of(const DevicePage::Report& report) const {
  const bool known_peer = report.peer >= 0 && report.peer < group_.world_size();
  const std::string peer = known_peer ? group_.rank_name(report.peer) : "a rank";
  const std::string self = group_.rank_name(group_.rank());
  const std::string call = !known_peer            ? "a call"
                           : report.transfer != 0 ? messages_.name(report.peer, report.sequence)
                                                  : trace_.call_name(report.sequence);
  const std::string name = group_.prefix() + call + ": ";
  const std::string theirs = std::to_string(report.theirs);
  const std::string mine = std::to_string(report.mine);
  switch (static_cast<DeviceFault>(report.fault)) {
    case DeviceFault::kTimeout: {
      std::string text = name + "Timed out";
      const auto limit = report.transfer != 0 ? std::nullopt : trace_.timeout_of(report.sequence);
      if (limit) {
        char seconds[32];
        std::snprintf(seconds, sizeof(seconds), " after %.3f s",
                      std::chrono::duration<double>(*limit).count());
        text += seconds;
      }
      text += " on the device, waiting for ";
      text += report.transfer != 0 && known_peer ? group_.rank_report(report.peer) : peer;
      if (report.transfer == 0) text += "; " + trace_.arrival_report(report.sequence);
      return Error(ErrorCode::kTimeout, text);
    }
    case DeviceFault::kCountMismatch:
      return Error(ErrorCode::kMismatch, name + peer + " sends " + theirs + " bytes to " + self +
                                             ", which expects " + mine);
    case DeviceFault::kTagMismatch:
      return Error(ErrorCode::kMismatch,
                   name + peer + " sent a message of tag " +
                       std::to_string(static_cast<std::int64_t>(report.theirs)) + " where " + self +
                       " expects tag " + std::to_string(static_cast<std::int64_t>(report.mine)) +
                       "; messages of two ranks whose tags are equal modulo " +
                       std::to_string(kTagChannels) +
                       " must be received in the order of the sends");
    case DeviceFault::kAsymmetricUse: {
      const bool same_segment = report.theirs >> kLocationShift == report.mine >> kLocationShift;
      return Error(ErrorCode::kMismatch, name, self, " and ", peer, " passed tensors ",
                   same_segment ? "at different offsets of memory" : "of different segments",
                   " with symmetric registration");
    }
    case DeviceFault::kPeerGaveUp:
      return Error(ErrorCode::kPeerLost,
                   name + peer + " gave up while " + self +
                       " read its tensor in place, so the result is not to be used");
    default:
      return Error(ErrorCode::kAborted, name + "the kernels of the group were told to leave");
  }
}

}  // namespace symm
