// DeviceEngine over a device library's kernels: what a group of ranks does with one GPU a rank.
//
// It owns this rank's device segment, the peers' mappings, the group's kernels and the watching
// thread, and it puts in order what a call is: checked, planned, posted to the peers, launched.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "backend/engine/device/device_engine.hpp"
#include "backend/engine/device/device_messages.hpp"
#include "backend/engine/device/device_peers.hpp"
#include "backend/engine/device/device_trace.hpp"
#include "backend/engine/device/device_watchdog.hpp"
#include "backend/engine/group/call_record.hpp"
#include "backend/engine/group/self_messages.hpp"
#include "backend/engine/group/settings.hpp"
#include "symm_mem/segment/segment.hpp"

namespace symm {

// The group that a device joins. Everything outlives the engine.
struct DeviceGroupContext {
  const CommunicatorConfig& config;
  const Agreement& agreement;
  LocalGroup& group;
  GroupMemory* memory;  // null in a group of one
};

class DeviceGroup final : public DeviceEngine {
 public:
  // Allocates and posts the rank's segment and starts watching. Local. Throws Error(kSystem) where
  // the device's memory is exhausted.
  DeviceGroup(const DeviceGroupContext& context, GpuRuntime& runtime, DeviceId device);
  // Makes this rank's kernels leave and waits for the device.
  ~DeviceGroup() override;

  DeviceId device() const override { return device_; }
  GpuRuntime& runtime() const override { return runtime_; }
  using DeviceEngine::launch;
  void launch(const CollectiveArgs& args, StreamHandle stream, std::chrono::milliseconds timeout,
              const PlanRequest& request) override;
  bool knows(const void* data, std::size_t bytes) const override;
  void transfer(std::span<const TransferOp> ops, StreamHandle stream,
                std::chrono::milliseconds timeout) override;
  void check() override;
  bool gave_up() const override;
  void connect_all(std::chrono::milliseconds timeout) override;

  // Tells the kernels of segment `number` of the group, which is in device memory. Local; the
  // device must have stopped using the one that had the number before.
  void set_segment(std::size_t number, const Segment& segment);

  // Waits until what was put on streams has ended, well or not; does not wait for a failed group.
  // Replays of graphs that were begun before are waited for as well.
  void drain();

  // Ends the watching thread. Idempotent.
  void stop();

 private:
  // What the device may be using: freed after it has ended, or never.
  struct Resources {
    std::shared_ptr<LocalSegment> segment;
    std::unique_ptr<DevicePeers> peers;
    std::unique_ptr<GroupKernels> kernels;
  };
  using Found = SegmentTable::Location;
  // How a call is carried out.
  struct Choice {
    Plan plan{};
    std::optional<Found> input;            // read in place
    std::optional<Found> promised_input;   // multimem reads here, of every rank at once
    std::optional<Found> promised_output;  // copy engines or multimem write here

    // What the call's record names.
    const std::optional<Found>& place() const {
      if (promised_output) return promised_output;
      return promised_input ? promised_input : input;
    }
  };

  int rank() const { return context_.config.rank; }
  int world_size() const { return context_.config.world_size; }
  std::chrono::milliseconds limit(std::chrono::milliseconds timeout) const {
    return timeout.count() > 0 ? timeout : context_.config.timeout;
  }

  void check_usable() const;
  void connect(std::chrono::milliseconds timeout, bool capturing, const std::string& call);
  void connect_peer(int peer, std::chrono::milliseconds timeout, bool capturing,
                    const std::string& call);
  // Of a group that has failed or whose kernel gave up, which is put into words first.
  [[noreturn]] void throw_failure() const;
  // Makes the group failed, unless it is, and throws its failure.
  [[noreturn]] void fail_group(ErrorCode code, const std::string& text) const;
  void check_backlog();

  std::optional<Found> find(const void* data, std::size_t bytes) const;
  std::shared_ptr<Segment> segment_of(const Found& found) const;
  static Place place_of(const Found& found);
  // The same for a call by a method that all ranks must find their tensors for: in a segment that
  // was registered with the promise, or in any where the call itself is the promise.
  std::optional<Found> find_promised(const InputArray& array, bool call_promises) const;
  std::optional<Found> promised_output(const CollectiveArgs& args,
                                       const PlanRequest& request) const;
  Choice by_multimem(const CollectiveArgs& args, const Plan& plan, bool call_promises) const;
  Choice choose(const CollectiveArgs& args, const PlanRequest& request) const;
  void put(const CollectiveArgs& args, const Choice& choice, const LaunchOptions& options);
  MulticastMemory multicast_memory(const Found& found, std::vector<std::byte*>& ranks) const;
  void put_multimem(const CollectiveArgs& args, const Choice& choice, const LaunchOptions& options);
  void put_all_to_all(const CollectiveArgs& args, const LaunchOptions& options);
  // The messages of this rank to itself among `ops`.
  SelfMessages check_transfer(std::span<const TransferOp> ops) const;
  std::span<const TransferOp> arranged(std::span<const TransferOp> ops, const SelfMessages& own);

  const DeviceGroupContext context_;
  GpuRuntime& runtime_;
  const DeviceId device_;
  DeviceTrace trace_;
  DeviceMessages messages_;
  mutable std::mutex mutex_;  // of all that follows but the watchdog
  std::unique_ptr<Resources> resources_;
  bool connected_ = false;
  // Of the call that is being put on a stream: messages, and where all ranks' tensors stand.
  std::vector<TransferOp> shares_;
  std::vector<std::byte*> peer_inputs_;
  std::vector<std::byte*> peer_outputs_;
  std::unique_ptr<DeviceWatchdog> watchdog_;
};

}  // namespace symm
