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
#include <optional>
#include <string>
#include <vector>

#include "backend/engine/device/device_engine.hpp"
#include "backend/engine/group/communicator_config.hpp"
#include "kernels/core/collective.hpp"
#include "kernels/core/error.hpp"
#include "kernels/plan/plan_request.hpp"
#include "symm_mem/bootstrap/store.hpp"
#include "symm_mem/segment/segment.hpp"

namespace symm {

class PointToPoint;
struct Plan;

class Communicator {
 public:
  // Collective over the group. Throws Error as PeerMesh::connect does; a group of one needs no
  // peer and touches the store not at all.
  static std::unique_ptr<Communicator> create(KeyValueStore& store, CommunicatorConfig config);
  ~Communicator();

  int rank() const;
  int world_size() const;
  const CommunicatorConfig& config() const;

  // Carries out one collective and returns when this rank's buffers may be used again.
  // Collective. Not reentrant. timeout <= 0 means the group's default. `request`: a plan of this
  // call's own, the same on every rank. Blocks; throws Error.
  void run(const CollectiveArgs& args, std::chrono::milliseconds timeout = {},
           const PlanRequest& request = {});

  // How `args` would be carried out, copy engines of promised memory left out. Throws
  // Error(kInvalidArgument) as check_request(). Local, cheap; counts of `args` must be there.
  Plan plan(const CollectiveArgs& args, const PlanRequest& request, PlanTarget target) const;

  // Throws what run() would throw for `args` without communicating: kInvalidArgument or
  // kUnsupported with the argument's name. Local, cheap.
  void validate(const CollectiveArgs& args) const;

  // The number that the next collective will get, from 1. Local.
  std::uint64_t next_sequence() const;

  // send/recv between two ranks. Lives as long as the communicator.
  PointToPoint& point_to_point();

  // The group's collectives on `device` of this rank, made by the first call (NOTE [First use on a
  // device]). A group uses one device a rank: kInvalidArgument, naming both, for another one.
  // Throws kUnsupported where the device library cannot be used. Local.
  DeviceEngine& device_engine(DeviceId device);
  // The same without making it: null until it was made.
  DeviceEngine* device_engine_if_made() const;

  // Waits until what was put on streams of the device has ended, well or not; each operation is
  // bounded by its own time-out. Returns at once without a device, and once the group has failed.
  // Local, any thread.
  void drain_device();

  // Makes `local`, in host or device memory, known to the group, so that a tensor inside it is read
  // in place by the peers. Collective (counts as one call in the order of collectives on the host).
  // `symmetric`: the promise that whenever a rank passes a tensor inside this segment to a
  // collective, every rank passes one at the same offset; copy engines need it, and a broken
  // promise fails the group. It includes that an all_to_all on this memory has equal shares on
  // every rank or on none. All ranks must give the same.
  std::shared_ptr<Segment> rendezvous(std::shared_ptr<LocalSegment> local,
                                      std::chrono::milliseconds timeout = {},
                                      bool symmetric = false);

  // Makes a segment of the same ranks, which somebody else has made, known as rendezvous() does.
  // Collective in the same way.
  void add_segment(std::shared_ptr<Segment> segment, std::chrono::milliseconds timeout = {});
  // Every rank has agreed to use `segment` in no further call. Local; waits for the device, and no
  // call of the group may be queued. Not counted.
  void remove_segment(const std::shared_ptr<Segment>& segment);

  // Fails the group on this rank and tells the peers; calls in progress here and there throw
  // kAborted. Local, any thread, never blocks.
  void abort(const std::string& reason);

  // Leaves in good order: peers that still need this rank get kPeerLeft rather than kPeerLost.
  // Interrupts calls in progress on this rank. Local, idempotent, any thread.
  void shutdown();

  // The failure that later calls throw; nullopt while the group works.
  std::optional<Error> failure() const;

 private:
  Communicator();
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace symm
