#include "symm_mem/group/device_signals.hpp"

#include <string>

#include "kernels/core/error.hpp"
#include "symm_mem/process/blocking_section.hpp"

namespace symm {

DeviceSignals::DeviceSignals(GpuRuntime& runtime, LocalGroup& group)
    : group_(group),
      runtime_(runtime),
      kernels_(runtime.make_signal_kernels(
          {.rank = group.rank(), .world_size = group.world_size(), .rank_name = [&group](int rank) {
             return group.rank_name(rank);
           }})) {
  if (group.world_size() == 1) return;
  failure_exit_ = FailureExit::of_environment(group.watchdog(), [this] { return failure(); });
  group_.watchdog().add(*this);
}

DeviceSignals::~DeviceSignals() {
  if (group_.in_forked_child()) {
    [[maybe_unused]] const auto* kernels = kernels_.release();
    [[maybe_unused]] const auto* failure_exit = failure_exit_.release();
    return;
  }
  failure_exit_.reset();
  group_.watchdog().remove(*this);
  blocking_section([this] {
    const RelaxedCapture relaxed(runtime_);
    kernels_.reset();
  });
}

std::optional<Error> DeviceSignals::failure() const {
  if (group_.ended_here()) return std::nullopt;
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
    return;
  }
  if (!at_connections) return;
  std::string lost;
  for (int rank = 0; rank < group_.world_size(); ++rank) {
    if (rank == group_.rank() || !group_.is_gone(rank)) continue;
    lost += (lost.empty() ? "" : ", ") + group_.rank_name(rank);
  }
  if (lost.empty()) return;
  kernels_->abort(
      Error(ErrorCode::kPeerLost, group_.memory_prefix(), lost, " has ended or left the group"));
}

}  // namespace symm
