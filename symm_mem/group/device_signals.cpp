#include "symm_mem/group/device_signals.hpp"

#include <pthread.h>

#include <chrono>
#include <string>
#include <utility>

#include "kernels/core/error.hpp"
#include "symm_mem/device/relaxed_capture.hpp"
#include "symm_mem/process/blocking_section.hpp"
#include "symm_mem/process/fork_guard.hpp"

namespace symm {
namespace {

constexpr std::chrono::milliseconds kWatchPeriod{16};

}  // namespace

DeviceSignals::DeviceSignals(GpuRuntime& runtime, PeerLink& link)
    : link_(link),
      runtime_(runtime),
      fork_generation_(fork_generation()),
      kernels_(
          runtime.make_signal_kernels({.rank = link.rank(), .world_size = link.world_size()})) {
  if (link.world_size() > 1) thread_ = std::make_unique<std::thread>([this] { watch(); });
}

DeviceSignals::~DeviceSignals() {
  if (fork_generation() != fork_generation_) {
    [[maybe_unused]] const auto* kernels = kernels_.release();
    [[maybe_unused]] const auto* thread = thread_.release();
    return;
  }
  blocking_section([this] {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    if (thread_) thread_->join();
    const RelaxedCapture relaxed(runtime_);
    kernels_.reset();
  });
}

void DeviceSignals::watch() {
  ::pthread_setname_np(::pthread_self(), "symm_signals");
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, kWatchPeriod, [this] { return stopping_; })) look();
}

void DeviceSignals::look() {
  try {
    link_.check_usable();
  } catch (const Error& error) {
    kernels_->abort(error);
    return;
  }
  std::string lost;
  for (int rank = 0; rank < link_.world_size(); ++rank) {
    if (rank == link_.rank() || !link_.hung_up(rank)) continue;
    lost += (lost.empty() ? "" : ", ") + link_.rank_name(rank);
  }
  if (lost.empty()) return;
  kernels_->abort(
      Error(ErrorCode::kPeerLost, link_.prefix() + lost + " has ended or left the group"));
}

}  // namespace symm
