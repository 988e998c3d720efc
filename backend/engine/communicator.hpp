// A group of ranks on one host and the collectives it can run: the torch-free half of the backend.
//
// NOTE [Order of calls]
// Collectives of one communicator are numbered by a sequence that every rank counts alike, so
// every rank must make the same calls in the same order. A communicator runs one collective at a
// time (a mutex orders callers on one rank); point-to-point traffic is independent of it.
//
// NOTE [Failure]
// A call succeeds or throws Error. An Error from validation (kInvalidArgument, kUnsupported) is
// raised before anything is sent and leaves the group usable. Any other one makes the group failed
// on this rank: the failure is published to the peers first, and every later call throws at once.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "backend/engine/device/device_group.hpp"
#include "backend/engine/group/communicator_config.hpp"
#include "kernels/core/collective.hpp"
#include "kernels/core/error.hpp"
#include "kernels/plan/plan_request.hpp"
#include "kernels/protocol/control_region.hpp"
#include "symm_mem/bootstrap/store.hpp"
#include "symm_mem/group/local_group.hpp"

namespace symm {

struct Agreement;
struct Plan;
enum class PlanTarget : std::uint8_t;
class GroupMemory;
class HostExecutor;
class HostTrace;
class MailboxEngine;
class MessageComparison;
class PeerMemory;

class Communicator {
 public:
  // Collective over the group. Throws Error as BootstrapMesh::connect does; a group of one needs no
  // peer and touches the store not at all.
  Communicator(KeyValueStore& store, CommunicatorConfig config);
  ~Communicator();

  int rank() const { return config_.rank; }
  int world_size() const { return config_.world_size; }
  const CommunicatorConfig& config() const { return config_; }

  // Carries out one collective and returns when this rank's buffers may be used again.
  // Collective. Not reentrant. timeout <= 0 means the group's default. `request`: a plan of this
  // call's own, the same on every rank. Blocks; throws Error.
  void run(const CollectiveArgs& args, std::chrono::milliseconds timeout = {},
           const PlanRequest& request = {});

  // How `args` would be carried out, on a GPU over `wire`, without regard to symmetric
  // registration, by ranks with a GPU each. Throws Error(kInvalidArgument) as check_request().
  // Local, cheap; counts of `args` must be there.
  Plan plan(const CollectiveArgs& args, const PlanRequest& request, PlanTarget target,
            WireKind wire = WireKind::kLL) const;

  // Throws what run() would throw for `args` without communicating: kInvalidArgument or
  // kUnsupported with the argument's name. Local, cheap.
  void validate(const CollectiveArgs& args) const;

  // The number that the next collective will get, from 1. Local.
  std::uint64_t next_sequence() const;

  // send/recv between two ranks. Lives as long as the communicator.
  MailboxEngine& point_to_point();

  // The group's collectives on `device` of this rank, made by the first call (NOTE [First use on a
  // device]). A group uses one device a rank: kInvalidArgument, naming both, for another one.
  // Throws kUnsupported where the device library cannot be used. Local.
  DeviceGroup& device_group(DeviceId device);
  // The same without making it: null until it was made.
  DeviceGroup* device_group_if_made() const {
    return made_device_group_.load(std::memory_order_acquire);
  }

  // The local group, which the group's symmetric memory uses too.
  const std::shared_ptr<LocalGroup>& local_group() const { return group_; }

  // What the group has allocated on this rank, whether it is in use or not; symmetric memory that
  // has joined it is the program's. Local, any thread.
  struct MemoryUse {
    std::size_t host_bytes = 0;
    std::size_t device_bytes = 0;
    std::size_t suspendable_bytes = 0;  // that suspend() gives back, or has given back
    bool suspended = false;
  };
  MemoryUse memory_use() const;

  // Gives the memory of the workspaces back until resume() (NOTE [Suspended groups] in
  // backend/engine/device/device_segment.hpp): that of the host, and where every rank has run a
  // collective on its GPU, that of the GPUs. Every call of the group throws meanwhile. Collective;
  // waits for what the device does for this group; no call of the group may be queued. Throws
  // Error: kAborted where the group is suspended already, or for resume() is not; kTimeout and
  // kPeerLost naming the ranks that do not come; kSystem where the memory cannot be had again.
  // Whatever resume() throws, the group is suspended still.
  void suspend(std::chrono::milliseconds timeout = {});
  void resume(std::chrono::milliseconds timeout = {});
  // Throws the group's failure, and Error(kAborted) where it is suspended.
  void check_usable() const;
  bool is_suspended() const { return suspended_.load(std::memory_order_acquire); }

  // Throws what add_segment() would throw for a segment of that memory. Local.
  void check_segment(const LocalSegment& local);
  // The same for a segment that ranks may be about to add, before any has: and the device finds
  // nothing in its row. Local; every rank calls it, also one that does not get to add the segment.
  void prepare_segment(const Segment& segment);
  // Makes a segment of the same ranks, in host or device memory, known to the group, so that a
  // tensor inside it is read in place by the peers. Local; every rank that has it does so, before a
  // call that uses it and before the next segment is made, and no call of the group may be queued.
  // On a rank that lacks it a call that reads it in place is an error. `symmetric`: symmetric
  // registration, the same on every rank. Whenever a rank passes a tensor inside this segment to a
  // collective, every rank then passes one at the same offset, and an all_to_all on this memory has
  // equal shares on every rank or on none. Copy engines need it; asymmetric use fails the group.
  void add_segment(const std::shared_ptr<Segment>& segment, bool symmetric);
  // Registers a segment that the group knows for symmetric use.
  void set_symmetric(const std::shared_ptr<Segment>& segment);
  // No rank uses `segment` in a further call. Local; waits for the device, and no
  // call of the group may be queued.
  void remove_segment(const std::shared_ptr<Segment>& segment);

  // Fails the group on this rank and publishes that; calls in progress here and on the peers throw
  // kAborted. Local, any thread, never blocks.
  void abort(const std::string& reason);

  // The same with kTimeout. Returns the group's failure, which may be an earlier one.
  Error time_out(const std::string& reason);

  // Leaves in good order: peers that still need this rank get kPeerLeft rather than kPeerLost.
  // Interrupts calls in progress on this rank. Local, idempotent, any thread.
  void shutdown();

  // The failure that later calls throw; nullopt while the group works.
  std::optional<Error> failure() const;

 private:
  void adopt_agreement();
  // The segment that has all shares of an all_to_all for peers; nullopt where there is none, and
  // where they are so few bytes that they travel with their counts.
  std::optional<SegmentTable::Location> location_of_shares(const CollectiveArgs& args) const;
  void probe_memory(const std::vector<Agreement>& proposals);
  // With device_mutex_ held. Throws kInvalidArgument where the group uses another device.
  void use_device(DeviceId device);
  void make_device_group(GpuRuntime& runtime);
  // Runs `body`, which returns false or throws when it cannot go on, as the call `record`.
  template <class Body>
  void run_call(const CallRecord& record, const CollectiveArgs& args,
                std::chrono::milliseconds timeout, Body&& body);

  CommunicatorConfig config_;
  std::unique_ptr<Agreement> agreement_;
  std::shared_ptr<LocalGroup> group_;
  std::unique_ptr<GroupMemory> memory_;  // null in a group of one
  std::unique_ptr<PeerMemory> peer_memory_;
  std::unique_ptr<HostTrace> trace_;
  std::unique_ptr<HostExecutor> executor_;  // as memory_
  std::unique_ptr<MessageComparison> comparison_;
  std::unique_ptr<MailboxEngine> mailboxes_;
  // NOTE [Order of locks]
  // The group's exchanges (LocalGroup::hold()), call_mutex_, device_mutex_, the DeviceGroup's: who
  // takes several takes them in this order, as a rendezvous does that adds its segment.
  std::mutex call_mutex_;
  std::atomic<bool> suspended_{false};

  mutable std::mutex device_mutex_;  // guards what follows
  std::optional<DeviceId> device_;   // the one that the group uses on this rank
  std::optional<Error> device_problem_;
  std::unique_ptr<DeviceGroup> device_group_;
  std::atomic<DeviceGroup*> made_device_group_{nullptr};  // the same, once it is made
};

}  // namespace symm
