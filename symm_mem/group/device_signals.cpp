#include "symm_mem/group/device_signals.hpp"

#include <string>

#include "kernels/core/error.hpp"
#include "symm_mem/bootstrap/mesh_round.hpp"
#include "symm_mem/process/blocking_section.hpp"
#include "symm_mem/process/environment_flag.hpp"

namespace symm {

bool signal_trap_in_environment() { return flag_in_environment("SYMM_SIGNAL_TRAP", false); }

DeviceSignals::DeviceSignals(GpuRuntime& runtime, LocalGroup& group)
    : group_(group),
      runtime_(runtime),
      kernels_(runtime.make_signal_kernels(
          {.rank = group.rank(),
           .world_size = group.world_size(),
           .traps = signal_trap_in_environment(),
           .rank_name = [&group](int rank) { return group.rank_name(rank); }})) {
  if (group.world_size() == 1) return;
  failure_exit_ = FailureExit::of_environment(group.watchdog(), [this] { return failure(); });
  group_.watchdog().add(*this);
  group_.pending_work().add(this, [this] {
    blocking_section([this] {
      const RelaxedCapture relaxed(runtime_);
      try_step([this] { runtime_.synchronize(); });
    });
  });
}

DeviceSignals::~DeviceSignals() {
  if (group_.in_forked_child()) {
    [[maybe_unused]] const auto* kernels = kernels_.release();
    [[maybe_unused]] const auto* failure_exit = failure_exit_.release();
    return;
  }
  failure_exit_.reset();
  blocking_section([this] { group_.pending_work().remove(this); });
  group_.watchdog().remove(*this);
  blocking_section([this] {
    const RelaxedCapture relaxed(runtime_);
    kernels_.reset();
  });
}

std::optional<Error> DeviceSignals::failure() const {
  if (group_.ended_here() || !(aborted_ || kernels_->gave_up())) return std::nullopt;
  try {
    kernels_->check();
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

void DeviceSignals::look(bool at_connections) {
  if (group_.failed()) {
    kernels_->abort(group_.failure());
    aborted_ = true;
    return;
  }
  if (!at_connections) return;
  std::string names;
  std::uint64_t left = 0;
  bool died = false;
  for (int rank = 0; rank < group_.world_size(); ++rank) {
    if (rank == group_.rank() || !group_.is_gone(rank)) continue;
    names += (names.empty() ? "" : ", ") + group_.rank_name(rank);
    left |= std::uint64_t{1} << rank;
    died = died || !group_.has_left(rank);
  }
  if (names.empty()) return;
  const Error reason(ErrorCode::kPeerLost, group_.memory_prefix(), names,
                     " has ended or left the group");
  // Who waits for a rank that waits for a dead one should not wait for the time-out.
  if (died) {
    kernels_->abort(reason);
    aborted_ = true;
  } else {
    kernels_->lose(left, reason);
  }
}

}  // namespace symm
