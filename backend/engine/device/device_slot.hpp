// The one device that a group uses on this rank: its engine, made by the first call that needs it,
// and the segments in device memory that the group knows, with or without an engine.
//
// Thread safety: every member may be called from any thread.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "backend/engine/device/device_group.hpp"

namespace symm {

class DeviceSlot {
 public:
  explicit DeviceSlot(const DeviceGroupContext& context) : context_(context) {}

  // As Communicator::device_engine(). A failure to make the engine is told to the peers and thrown
  // by every later call.
  DeviceEngine& engine(DeviceId device);
  DeviceEngine* engine_if_made() const { return made_.load(std::memory_order_acquire); }

  // Throws kInvalidArgument where `local` is in memory of another device than the group's. From
  // then on the group uses the device of `local`. Host memory is always fine.
  void check_segment(const LocalSegment& local);
  // Tells the kernels, once there are any, of segment `number` of the group; nothing for one in
  // host memory.
  void set_segment(std::size_t number, const std::shared_ptr<Segment>& segment);

  // DeviceGroup::drain() and stop(), where there is an engine.
  void drain();
  void stop();

 private:
  void use(DeviceId device);
  void make(GpuRuntime& runtime);
  void tell_peers(const Error& error);

  const DeviceGroupContext context_;
  mutable std::mutex mutex_;
  std::optional<DeviceId> device_;
  std::optional<Error> problem_;
  std::unique_ptr<DeviceGroup> group_;
  std::atomic<DeviceGroup*> made_{nullptr};
};

}  // namespace symm
