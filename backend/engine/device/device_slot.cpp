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

void set_segment_of(DeviceGroup& group, std::size_t number,
                    const std::shared_ptr<Segment>& segment) {
  if (!segment || segment->local()->runtime().kind() == DeviceKind::kHost) return;
  group.set_segment(number, *segment);
}

}  // namespace

void DeviceSlot::use(DeviceId device) {
  if (device_.has_value() && *device_ != device) {
    throw Error(ErrorCode::kInvalidArgument,
                context_.group.prefix() + "a group uses one device a rank: it has used " +
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
    throw Error(ErrorCode::kUnsupported, context_.group.prefix() +
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
    DevicePeers::offer_failure(context_.group.mesh(), *device_, error);
  } catch (const Error&) {
  }
}

void DeviceSlot::make(GpuRuntime& runtime) {
  try {
    group_ = std::make_unique<DeviceGroup>(context_, runtime, *device_);
  } catch (const Error& error) {
    problem_ =
        Error(error.code(), context_.group.prefix() + device_name(*device_) + ": " + error.what());
    tell_peers(error);
    throw Error(*problem_);
  }
  const auto entries = context_.group.segments().entries();
  for (std::size_t number = 0; number < entries.size(); ++number) {
    set_segment_of(*group_, number, entries[number].segment);
  }
  made_.store(group_.get(), std::memory_order_release);
}

void DeviceSlot::check_segment(const LocalSegment& local) {
  if (local.runtime().kind() == DeviceKind::kHost) return;
  const std::lock_guard lock(mutex_);
  use(device_of(local));
}

void DeviceSlot::set_segment(std::size_t number, const std::shared_ptr<Segment>& segment) {
  const std::lock_guard lock(mutex_);
  if (group_ != nullptr) set_segment_of(*group_, number, segment);
}

void DeviceSlot::drain() {
  if (DeviceGroup* made = made_.load(std::memory_order_acquire); made != nullptr) made->drain();
}

void DeviceSlot::stop() {
  if (DeviceGroup* made = made_.load(std::memory_order_acquire); made != nullptr) made->stop();
}

}  // namespace symm
