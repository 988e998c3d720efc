#include "backend/engine/group/group_health.hpp"

#include <cstring>

#include "backend/engine/group/call_record.hpp"
#include "kernels/core/atomics.hpp"

namespace symm {

GroupHealth::GroupHealth(const std::string& group_name, int rank,
                         std::vector<std::int64_t> global_ranks, PeerMesh* mesh,
                         GroupMemory* memory)
    : global_ranks_(std::move(global_ranks)), rank_(rank), mesh_(mesh), memory_(memory) {
  prefix_ = "group \"" + group_name + "\": " + rank_name(rank) + ": ";
}

std::string GroupHealth::rank_name(int rank) const {
  std::string name = "rank " + std::to_string(rank);
  const std::int64_t global = global_ranks_[static_cast<std::size_t>(rank)];
  if (global != rank) name += " (global rank " + std::to_string(global) + ")";
  return name;
}

Error GroupHealth::failure() const {
  const std::lock_guard lock(mutex_);
  return *failure_;
}

void GroupHealth::fail(const Error& error) {
  const std::lock_guard lock(mutex_);
  if (failure_.has_value()) return;
  if (abort_word_ != nullptr) store_release(abort_word_, std::uint32_t{1});
  failure_ = error;
  if (memory_ != nullptr) {
    FailureRecord& record = memory_->control(rank_).failure;
    record.code = static_cast<std::uint32_t>(error.code());
    std::strncpy(record.text, error.what(), FailureRecord::kTextBytes - 1);
    store_release(&record.state, std::uint32_t{1});
  }
  failed_.store(true, std::memory_order_release);
}

void GroupHealth::set_abort_word(std::uint32_t* word) {
  const std::lock_guard lock(mutex_);
  abort_word_ = word;
  if (word != nullptr && failure_.has_value()) store_release(word, std::uint32_t{1});
}

void GroupHealth::leave() {
  const std::lock_guard lock(mutex_);
  if (abort_word_ != nullptr) store_release(abort_word_, std::uint32_t{1});
  if (memory_ != nullptr) {
    store_release(&memory_->control(rank_).progress.lifecycle,
                  static_cast<std::uint32_t>(Lifecycle::kLeft));
  }
  if (!failure_.has_value()) {
    failure_ = Error(ErrorCode::kAborted, prefix_ + "the group was destroyed on this rank");
  }
  failed_.store(true, std::memory_order_release);
}

bool GroupHealth::is_gone(int peer, Error* reason) {
  const auto& progress = memory_->control(peer).progress;
  const bool hung_up = mesh_->hung_up(peer);
  if (load_acquire(&progress.lifecycle) == static_cast<std::uint32_t>(Lifecycle::kLeft)) {
    *reason = Error(ErrorCode::kPeerLeft, rank_name(peer) + " has left the group");
    return true;
  }
  if (!hung_up) return false;
  *reason = Error(ErrorCode::kPeerLost, rank_name(peer) + " died (its process, pid " +
                                            std::to_string(mesh_->peer(peer).pid) +
                                            ", has ended or closed its connection)");
  return true;
}

bool GroupHealth::hear_peer(int peer, const std::string& call) {
  const FailureRecord& record = memory_->control(peer).failure;
  if (load_acquire(&record.state) != 1) return true;
  const std::string text(record.text, ::strnlen(record.text, FailureRecord::kTextBytes));
  fail(Error(static_cast<ErrorCode>(record.code),
             prefix_ + call + ": " + rank_name(peer) + " gave up: " + text));
  return false;
}

bool GroupHealth::hear_peers(const std::string& call) {
  if (failed()) return false;
  for (int peer = 0; mesh_ != nullptr && peer < mesh_->world_size(); ++peer) {
    if (peer != rank_ && !hear_peer(peer, call)) return false;
  }
  return true;
}

bool GroupHealth::check_peer(int peer, std::uint64_t sequence, const std::string& call) {
  Error reason(ErrorCode::kPeerLost, "");
  const bool gone = is_gone(peer, &reason);
  // Looked at after the connection: whatever a peer had to say it said before it went.
  if (!hear_peer(peer, call)) return false;
  if (!gone || load_acquire(&memory_->control(peer).progress.completed) >= sequence) return true;
  fail(Error(reason.code(), prefix_ + call + ": " + reason.what() + " before it was completed; " +
                                attendance(sequence)));
  return false;
}

bool GroupHealth::check_peers(std::uint64_t sequence, const std::string& call) {
  if (failed()) return false;
  for (int peer = 0; mesh_ != nullptr && peer < mesh_->world_size(); ++peer) {
    if (peer != rank_ && !check_peer(peer, sequence, call)) return false;
  }
  return true;
}

std::string GroupHealth::attendance(std::uint64_t sequence) const {
  std::string arrived;
  std::string missing;
  for (int peer = 0; peer < mesh_->world_size(); ++peer) {
    if (peer == rank_) continue;
    const ControlRegion& control = memory_->control(peer);
    const std::uint64_t entered = load_acquire(&control.progress.entered);
    if (entered >= sequence) {
      arrived += (arrived.empty() ? "" : ", ") + rank_name(peer);
      continue;
    }
    missing += (missing.empty() ? "" : ", ") + rank_name(peer);
    if (entered == 0) {
      missing += " (no call yet)";
    } else {
      const CallRecord& last = control.calls[entered % kCallRing];
      const bool complete = load_acquire(&control.progress.completed) >= entered;
      missing += " (last: " + describe_call(last) + " seq " + std::to_string(entered) +
                 (complete ? ", completed)" : ", not completed)");
    }
  }
  return "arrived: " + (arrived.empty() ? "no other rank" : arrived) +
         "; not arrived: " + (missing.empty() ? "none" : missing);
}

}  // namespace symm
