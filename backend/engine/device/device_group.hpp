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

#include "backend/engine/device/device_calls.hpp"
#include "backend/engine/device/device_engine.hpp"
#include "backend/engine/device/device_messages.hpp"
#include "backend/engine/device/device_peers.hpp"
#include "backend/engine/device/device_watch.hpp"
#include "backend/engine/group/call_record.hpp"
#include "backend/engine/group/self_messages.hpp"
#include "backend/engine/group/settings.hpp"
#include "symm_mem/segment/segment.hpp"

namespace symm {

// The group that a device joins. Everything outlives the engine.
struct DeviceGroupContext {
  const CommunicatorConfig& config;
  const Agreement& agreement;
  PeerMesh& mesh;
  GroupMemory* memory;  // null in a group of one
  GroupHealth& health;
  std::uint32_t fork_generation;
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

  // Segment `number` of the group in device memory, the same on every rank; null where that number
  // is free. Local; the device must have stopped using the one that had the number before.
  void set_segment(std::size_t number, std::shared_ptr<Segment> segment, bool symmetric);

  // Waits until what was put on streams has ended, well or not; does not wait for a failed group.
  // Replays of graphs that were begun before are waited for as well.
  void drain();

  // Ends the watching thread. Idempotent.
  void stop();

 private:
  struct KnownSegment {
    std::shared_ptr<Segment> segment;
    bool symmetric = false;
  };
  // What the device may be using: freed after it has ended, or never.
  struct Resources {
    std::shared_ptr<LocalSegment> segment;
    std::unique_ptr<DevicePeers> peers;
    std::vector<KnownSegment> segments;  // by number; null where it is free
    std::unique_ptr<GroupKernels> kernels;
  };
  // Where [data, data + bytes) stands.
  struct Found {
    int number = 0;
    std::size_t offset = 0;

    BufferLocation location() const;
  };
  // How a call is carried out.
  struct Choice {
    Plan plan{};
    std::optional<Found> input;             // read in place
    std::optional<Found> symmetric_input;   // multimem reads here, of every rank at once
    std::optional<Found> symmetric_output;  // copy engines or multimem write here

    // What the call's record names.
    const std::optional<Found>& location() const {
      if (symmetric_output) return symmetric_output;
      return symmetric_input ? symmetric_input : input;
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
  // The same for a call by an algorithm that needs symmetric tensors: in a segment with symmetric
  // registration, or in any segment where the call itself says that its tensors are symmetric.
  std::optional<Found> find_symmetric(const InputArray& array, bool call_is_symmetric) const;
  std::optional<Found> symmetric_output(const CollectiveArgs& args,
                                        const PlanRequest& request) const;
  Choice by_multimem(const CollectiveArgs& args, const Plan& plan, bool call_is_symmetric) const;
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
  DeviceCallBoard board_;
  DeviceMessages messages_;
  mutable std::mutex mutex_;  // of all that follows but the watch
  std::unique_ptr<Resources> resources_;
  bool connected_ = false;
  // Of the call that is being put on a stream: messages, and where all ranks' tensors stand.
  std::vector<TransferOp> shares_;
  std::vector<std::byte*> peer_inputs_;
  std::vector<std::byte*> peer_outputs_;
  std::unique_ptr<DeviceWatch> watch_;
};

}  // namespace symm
