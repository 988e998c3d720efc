#include "backend/engine/device/device_slot.hpp"

#include <algorithm>
#include <utility>

#include "symm_mem/device/device_library.hpp"

namespace symm {

namespace {

DeviceId device_of(const LocalSegment& local) {
  const auto& runtime = static_cast<const GpuRuntime&>(local.runtime());
  return {runtime.kind(), runtime.identity().index};
}

}  // namespace

void DeviceSlot::use(DeviceId device) {
  if (device_.has_value() && *device_ != device) {
    throw Error(ErrorCode::kInvalidArgument,
                context_.health.prefix() + "a group uses one device a rank: it has used " +
                    device_name(*device_) + " and was now given " + device_name(device));
  }
  device_ = device;
}

DeviceEngine& DeviceSlot::engine(DeviceId device) {
  if (DeviceGroup* made = made_.load(std::memory_order_acquire); made != nullptr) {
    if (made->device() == device) [[likely]] {
      return *made;
    }
  }
  const std::lock_guard lock(mutex_);
  GpuRuntime& runtime = device_library(device.kind).runtime(device.index);
  use(device);
  if (problem_) throw Error(*problem_);
  if (group_ != nullptr) return *group_;
  if (context_.config.world_size > kMaxDeviceRanks) {
    throw Error(ErrorCode::kUnsupported, context_.health.prefix() +
                                             "a group on devices has at most " +
                                             std::to_string(kMaxDeviceRanks) + " ranks, got " +
                                             std::to_string(context_.config.world_size));
  }
  make(runtime);
  return *group_;
}

// Peers that cannot be told find out by their time-out; the error itself matters more.
void DeviceSlot::tell_peers(const Error& error) {
  if (context_.config.world_size == 1) return;
  try {
    DevicePeers::offer_failure(context_.mesh, *device_, error);
  } catch (const Error&) {
  }
}

void DeviceSlot::make(GpuRuntime& runtime) {
  try {
    group_ = std::make_unique<DeviceGroup>(context_, runtime, *device_);
  } catch (const Error& error) {
    problem_ =
        Error(error.code(), context_.health.prefix() + device_name(*device_) + ": " + error.what());
    tell_peers(error);
    throw Error(*problem_);
  }
  for (std::size_t number = 0; number < segments_.size(); ++number) {
    group_->set_segment(number, segments_[number].segment, segments_[number].symmetric);
  }
  made_.store(group_.get(), std::memory_order_release);
}

void DeviceSlot::check_segment(const LocalSegment& local) {
  if (local.runtime().kind() == DeviceKind::kHost) return;
  const std::lock_guard lock(mutex_);
  use(device_of(local));
}

void DeviceSlot::set_segment(std::size_t number, KnownSegment segment) {
  if (group_ != nullptr) group_->set_segment(number, segment.segment, segment.symmetric);
  if (number >= segments_.size()) segments_.resize(number + 1);
  segments_[number] = std::move(segment);
}

void DeviceSlot::add_segment(std::shared_ptr<Segment> segment, bool symmetric) {
  if (segment->local()->runtime().kind() == DeviceKind::kHost) return;
  const std::lock_guard lock(mutex_);
  const auto free = std::find_if(segments_.begin(), segments_.end(),
                                 [](const KnownSegment& known) { return !known.segment; });
  set_segment(static_cast<std::size_t>(free - segments_.begin()), {std::move(segment), symmetric});
}

void DeviceSlot::remove_segment(const std::shared_ptr<Segment>& segment) {
  const std::lock_guard lock(mutex_);
  for (std::size_t number = 0; number < segments_.size(); ++number) {
    if (segments_[number].segment == segment) set_segment(number, {});
  }
}

void DeviceSlot::drain() {
  if (DeviceGroup* made = made_.load(std::memory_order_acquire); made != nullptr) made->drain();
}

void DeviceSlot::stop() {
  if (DeviceGroup* made = made_.load(std::memory_order_acquire); made != nullptr) made->stop();
}

}  // namespace symm
