// One group's collectives and messages on one GPU a rank, put on streams.
//
// NOTE [First use on a device]
// The engine is made by the first operation of the group on a device of this rank, which is local:
// it allocates the rank's segment (DeviceLayout) and posts it to the peers. Peers are mapped when
// they are first needed: all of them, with an agreement of all ranks, by the first collective; the
// other rank alone by the first message with it. Either waits for the peers' own first use, at most
// for the time-out. These cold steps are refused while the stream is captured.
//
// NOTE [Failure on a device]
// launch() and transfer() return before anything has happened, so a failure shows later: a watching
// thread learns of it (a dead peer, a failed peer, a kernel that gave up, different calls), sets
// the abort word, upon which every kernel of the group leaves, and fails the group. From then on
// every call throws the failure, and so does the Work of an operation that was not known to be
// complete. What such an operation has written is not to be used.
//
// Thread safety: every member may be called from any thread; the order of calls is the caller's.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "kernels/core/collective.hpp"
#include "kernels/gpu/interface/group_kernels.hpp"
#include "kernels/plan/plan_request.hpp"
#include "symm_mem/device/device_runtime.hpp"

namespace symm {

// A device as this process numbers it.
struct DeviceId {
  DeviceKind kind = DeviceKind::kCuda;
  int index = 0;

  bool operator==(const DeviceId&) const = default;
};

// "cuda:1".
std::string device_name(DeviceId device);

class DeviceEngine {
 public:
  virtual ~DeviceEngine() = default;

  virtual DeviceId device() const = 0;
  virtual GpuRuntime& runtime() const = 0;

  // Puts one collective on `stream`. Collective over the group. Returns once it is launched; a
  // warm call neither allocates nor waits. Calls on different streams must have been ordered by the
  // caller (one group's kernels share counters). Throws Error: kInvalidArgument or kUnsupported
  // before anything is launched; kUnsupported "call once before capture" for a cold call on a
  // captured stream; the group's failure. `request`: a plan of this call's own, the same on every
  // rank; one for copy engines is the promise that every rank's output stands at the same place of
  // one segment of the group.
  virtual void launch(const CollectiveArgs& args, StreamHandle stream,
                      std::chrono::milliseconds timeout, const PlanRequest& request) = 0;
  void launch(const CollectiveArgs& args, StreamHandle stream, std::chrono::milliseconds timeout) {
    launch(args, stream, timeout, {});
  }

  // Whether [data, data + bytes) stands in a segment that the group knows and kernels can find.
  virtual bool knows(const void* data, std::size_t bytes) const = 0;

  // Puts messages on `stream` that progress together. Messages of one peer, direction and tag match
  // in the order in which they were given; those of this rank to itself need both ends among `ops`
  // and are copied. Errors as launch(), and as SelfMessages before anything is launched.
  virtual void transfer(std::span<const TransferOp> ops, StreamHandle stream,
                        std::chrono::milliseconds timeout) = 0;

  // Throws the group's failure, also one that a kernel has reported (DevicePage) but the watching
  // thread has not put into words yet, for which it waits briefly. So work whose stream has passed
  // it went well if check() then returns. Calls no function of the device; a few loads.
  virtual void check() = 0;

  // True once a kernel of this rank has given up; check() then throws. One load.
  virtual bool gave_up() const = 0;

  // The tag channel of a message (1 to kMessageTagChannels): messages of one peer and direction
  // whose tag groups are equal must be put on streams in order.
  static int tag_channel(std::int64_t tag) {
    return 1 + static_cast<int>(static_cast<std::uint64_t>(tag) % kMessageTagChannels);
  }

  // Does now what the first collective would do. Collective; blocks.
  virtual void connect_all(std::chrono::milliseconds timeout) = 0;
};

}  // namespace symm
