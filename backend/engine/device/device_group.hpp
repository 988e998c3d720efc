// What a group of ranks does with one GPU a rank: its collectives and messages, put on streams.
//
// A DeviceGroup owns this rank's device segment, the peers' mappings and the group's kernels, and
// it puts in order what a call is: checked, planned, posted to the peers, launched.
//
// NOTE [First use on a device]
// A DeviceGroup is made by the first operation of the group on a device of this rank, which is
// local: it allocates the rank's segment (DeviceLayout) and posts it to the peers. Peers are mapped
// when they are first needed: all of them, with a status exchange of all ranks, by the first
// collective; the other rank alone by the first message with it. Either waits for the peers' own
// first use, at most for the time-out. These cold steps are refused while the stream is captured.
//
// NOTE [Failure on a device]
// launch() and transfer() return before anything has happened, so a failure shows later: the
// watchdog learns of it (a dead peer, a failed peer, a kernel that gave up, different calls), sets
// the abort word, upon which every kernel of the group leaves, and fails the group. From then on
// every call throws the failure, and so does the Work of an operation that was not known to be
// complete. What such an operation has written is not to be used: its kernels fill it with NaN, or
// what the dtype has in its place, unless SYMM_POISON=0 (NOTE [Poison] in poison.cuh). With
// SYMM_ON_FAILURE=abort the process ends soon after (failure_exit.hpp).
//
// Thread safety: every member may be called from any thread; the order of calls is the caller's.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/engine/device/announced_sends.hpp"
#include "backend/engine/device/device_messages.hpp"
#include "backend/engine/device/device_peers.hpp"
#include "backend/engine/device/device_segment.hpp"
#include "backend/engine/device/device_trace.hpp"
#include "backend/engine/device/device_watchdog.hpp"
#include "backend/engine/group/communicator_config.hpp"
#include "backend/engine/group/message_notes.hpp"
#include "backend/engine/group/self_messages.hpp"
#include "kernels/core/collective.hpp"
#include "kernels/gpu/interface/group_kernels.hpp"
#include "kernels/plan/plan_request.hpp"
#include "symm_mem/device/device_runtime.hpp"
#include "symm_mem/group/failure_exit.hpp"
#include "symm_mem/group/local_group.hpp"
#include "symm_mem/process/deadline.hpp"

namespace symm {

struct Agreement;
struct InputArray;
struct Plan;

// A device as this process numbers it.
struct DeviceId {
  DeviceKind kind = DeviceKind::kCuda;
  int index = 0;

  bool operator==(const DeviceId&) const = default;
};

// "cuda:1".
std::string device_name(DeviceId device);

// The group that a device joins. Everything outlives the DeviceGroup.
struct DeviceGroupContext {
  const CommunicatorConfig& config;
  const Agreement& agreement;
  LocalGroup& group;
  GroupMemory* memory;  // null in a group of one
  MessageComparison& comparison;
};

// Where a call goes.
struct DeviceLaunch {
  StreamHandle stream = nullptr;
  std::chrono::milliseconds timeout{0};  // 0 and less: the group's
  bool captured = false;                 // the stream is being captured into a graph
};

class DeviceGroup {
 public:
  // Allocates and posts the rank's segment and adds the watchdog's task. Local. Throws
  // Error(kSystem) where the device's memory is exhausted.
  DeviceGroup(const DeviceGroupContext& context, GpuRuntime& runtime);
  // Makes this rank's kernels leave and waits for the device.
  ~DeviceGroup();
  DeviceGroup(const DeviceGroup&) = delete;
  DeviceGroup& operator=(const DeviceGroup&) = delete;

  DeviceId device() const { return {runtime_.kind(), runtime_.identity().index}; }
  GpuRuntime& runtime() const { return runtime_; }

  // Puts one collective on `to.stream`. Collective over the group. Returns once it is launched; a
  // warm call neither allocates nor waits. Calls on different streams must have been ordered by the
  // caller (one group's kernels share counters). Throws Error: kInvalidArgument or kUnsupported
  // before anything is launched; kUnsupported "call once before capture" for a cold call that is
  // captured; the group's failure. `request`: a plan of this call's own, the same on every rank;
  // with one for copy engines every rank's output must be at the same offset of one segment of the
  // group.
  void launch(const CollectiveArgs& args, const DeviceLaunch& to, const PlanRequest& request = {});

  // Puts messages on `to.stream` that progress together. Messages of one peer, direction and tag
  // match in the order in which they were given; those of this rank to itself need both ends among
  // `ops` and are copied. Errors as launch(), and as SelfMessages before anything is launched.
  void transfer(std::span<const TransferOp> ops, const DeviceLaunch& to);

  // NOTE [Recv from any rank] in announced_sends.hpp. The rank whose message `recv` gets when it is
  // the next recv from that rank in its tag channel; nullopt: nobody has sent one yet. Never waits.
  // Throws the group's failure, Error(kUnsupported) where it cannot be known.
  std::optional<int> find_sender(const AwaitedRecv& recv);
  // As SendAnnouncements::look_for_trouble().
  void look_for_trouble(const AwaitedRecv& recv);
  // The notes of messages cannot count those with the tag of `op` any more.
  void expect_any(const TransferOp& op) { context_.comparison.lose_count(op); }

  // GroupKernels' fold and copy. Local. Throw the group's failure, and Error(kSystem).
  void fold(const FoldCall& call, StreamHandle stream);
  void copy(void* to, const void* from, std::size_t bytes, StreamHandle stream);

  // Whether [data, data + bytes) is in a segment that the group knows and kernels can find.
  bool knows(const void* data, std::size_t bytes) const { return find(data, bytes).has_value(); }

  // Throws the group's failure, also one that a kernel has reported (DevicePage) but the watchdog
  // has not turned into an error yet, for which it waits briefly. So work whose stream has passed
  // it went well if check() then returns. Calls no function of the device; a few loads.
  void check();
  // True once a kernel of this rank has given up; check() then throws. One load.
  bool gave_up() const;

  // Does now what the first collective would do. Collective; blocks.
  void connect_all(std::chrono::milliseconds timeout);

  // Sets the addresses of a segment of the group for kernels; nothing for one without a row.
  // Local; the device must have stopped using the one that had the row before.
  void set_segment(const Segment& segment);
  // From now on kernels find nothing in the row of `segment`. The same.
  void clear_row_of(const Segment& segment);

  // Waits until what was put on streams has ended, well or not; each operation is bounded by its
  // own time-out. Does not wait for a failed group. Any thread.
  // Replays of graphs that were begun before are waited for as well.
  void drain();

  // Where the device counts the last collective that was put on a stream, and the last message of
  // the peer and direction of `op`; nowhere once a stream was captured, and for a rank's messages
  // to itself. The counters stay as long as the communicator.
  DeviceProgress last_collective() const;
  DeviceProgress last_message(const TransferOp& op) const { return messages_.progress(op); }

  // Of this rank's device segment: its addresses, and the memory that is there. Any thread.
  std::size_t segment_bytes() const { return resources_->segment->mapped_bytes(); }
  bool has_memory() const { return has_memory_.load(std::memory_order_relaxed); }

  // NOTE [Suspended groups] in device_segment.hpp. All ranks' segments are mapped: only such a
  // group can be suspended. Any thread.
  bool can_be_suspended() const { return connected_.load(std::memory_order_relaxed); }
  // The steps of suspend(). Local. settle() is drain(), and the device does nothing afterwards; the
  // others come once all ranks have settled. settle() and save() throw Error(kSystem).
  void settle();
  void save();
  void discard_copy();
  void release();
  // Collective. Throws on every rank or on none, which is then as it was.
  void resume(const Deadline& deadline);

  // What the ranks have called, for reports.
  const DeviceTrace& trace() const { return trace_; }

  // Removes the watchdog's task. Idempotent.
  void stop();

 private:
  // What the device may be using: freed after it has ended, or never.
  struct Resources {
    std::unique_ptr<DeviceSegment> segment;
    std::unique_ptr<DevicePeers> peers;
    std::unique_ptr<GroupKernels> kernels;
  };
  using Found = SegmentTable::Location;
  // How a call is carried out.
  struct Choice;

  int rank() const { return context_.config.rank; }
  int world_size() const { return context_.config.world_size; }
  std::chrono::milliseconds limit(std::chrono::milliseconds timeout) const {
    return timeout.count() > 0 ? within_longest(timeout) : context_.config.timeout;
  }

  void check_usable() const;
  // Waits for all that is on the device. False where it cannot be waited for: then nothing of this
  // group runs there.
  bool synchronize() noexcept;
  void connect(std::chrono::milliseconds timeout, bool captured, const std::string& call);
  // Tells the kernels of a peer that was mapped.
  void set_peer(int peer);
  void connect_peer(int peer, std::chrono::milliseconds timeout, bool captured,
                    const std::string& call);
  // Of a group that has failed or whose kernel gave up, once the watchdog has made its error.
  [[noreturn]] void throw_failure() const;
  // Makes the group failed, unless it is, and throws its failure.
  [[noreturn]] void fail_group(ErrorCode code, const std::string& text) const;

  std::optional<Found> find(const void* data, std::size_t bytes) const;
  static BufferLocation location_of(const Found& found);
  // The same for a call by an algorithm that needs symmetric tensors: in a segment with symmetric
  // registration, or in any segment where the call itself says that its tensors are symmetric.
  std::optional<Found> find_symmetric(const InputArray& array, bool call_is_symmetric) const;
  std::optional<Found> symmetric_output(const CollectiveArgs& args,
                                        const PlanRequest& request) const;
  SymmetricRange output_range(const CollectiveArgs& args) const;
  Choice by_multimem(const CollectiveArgs& args, const Plan& plan, bool call_is_symmetric) const;
  Choice choose(const CollectiveArgs& args, const PlanRequest& request) const;
  void put(const CollectiveArgs& args, const Choice& choice, const LaunchOptions& options);
  MulticastMemory multicast_memory(const Found& found, std::vector<std::byte*>& ranks) const;
  void put_multimem(const CollectiveArgs& args, const Choice& choice, const LaunchOptions& options);
  // The messages of this rank to itself among `ops`.
  SelfMessages check_transfer(std::span<const TransferOp> ops) const;
  std::span<const TransferOp> arranged(std::span<const TransferOp> ops, const SelfMessages& own);

  const DeviceGroupContext context_;
  GpuRuntime& runtime_;
  DeviceTrace trace_;
  DeviceMessages messages_;
  SendAnnouncements announcements_;  // under mutex_
  mutable std::mutex mutex_;         // of all that follows but the watchdog
  std::unique_ptr<Resources> resources_;
  std::atomic<bool> connected_{false};
  std::atomic<bool> has_memory_{true};
  WireKind wire_ = WireKind::kLL;  // once connected
  int ranks_of_gpu_ = 1;           // of the one with most, once connected
  // Of the call that is being put on a stream: messages, and all ranks' tensors.
  std::vector<TransferOp> messages_in_order_;
  std::vector<std::byte*> peer_inputs_;
  std::vector<std::byte*> peer_outputs_;
  TableRows clear_rows_ = TableRows::all();  // of the kernels' table: null there
  std::unique_ptr<DeviceWatchdog> watchdog_;
  std::unique_ptr<FailureExit> failure_exit_;
};

}  // namespace symm
