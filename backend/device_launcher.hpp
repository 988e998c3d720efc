// Puts the operations of one group on its GPU.
//
// NOTE [Order on a device]
// The collectives of a group share counters on the device, so each is ordered after the one before
// it, whatever streams the two are on, by an event; on one stream none is needed (NOTE [Points
// behind operations] in device_streams.hpp). So are messages
// of one direction, peer and tag channel among each other. Collectives and messages do not wait for
// each other, and neither waits for the group's operations on the host. Between a call inside a
// graph capture and one outside of it there is no order but the caller's own (NOTE [Graph captures]
// in device_streams.hpp).
//
// NOTE [Messages and streams]
// A message occupies its stream until the peer has taken part, so a message that must not wait for
// another one is on another stream: one for each direction, peer and tag channel. What a coalescing
// block gathers is one launch, in which all of its messages progress together.
//
// Everything here returns once the work is on its stream; only a cold call waits for peers
// (DeviceGroup). Thread safe; the order of concurrent calls is the caller's care.
#pragma once

#include <c10/core/Stream.h>
#include <c10/util/SmallVector.h>

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "backend/DeviceWork.hpp"
#include "backend/collective_call.hpp"
#include "backend/engine/device/device_group.hpp"
#include "backend/hosts/host_group.hpp"
#include "backend/recv_search.hpp"
#include "backend/streams/device_streams.hpp"

namespace symm {

class DeviceLauncher {
 public:
  // What one coalescing block has begun: used by the thread of the block alone.
  struct Block {
    c10::intrusive_ptr<DeviceWork> work;
    std::optional<c10::Stream> stream;  // of its collectives: that of the first
    c10::SmallVector<TransferOp, 8> messages;
    c10::SmallVector<TransferOp, 4>
        between_hosts;  // by a GPU's engine; peers are ranks of the group
  };

  // Makes the communicator's DeviceGroup on `device`. Local. Throws as
  // Communicator::device_group(), and kUnsupported inside a capture.
  // `hosts`: of a group over several, whose ranks on this host the communicator has; else null.
  DeviceLauncher(std::shared_ptr<Communicator> communicator, std::shared_ptr<HostGroup> hosts,
                 at::Device device);

  at::Device device() const { return streams_->device(); }
  const std::shared_ptr<DeviceStreams>& streams() const { return streams_; }

  void connect_all(std::chrono::milliseconds timeout);

  // The collectives of `calls`, in order, on this thread's current stream. Throws as
  // DeviceGroup::launch.
  void collectives(const CallBatch& calls, std::chrono::milliseconds timeout);
  // The same, where `async_op` on the group's own stream. `work` is launched then, and keeps what
  // has to be kept.
  void collectives(DeviceWork& work, const CallBatch& calls, std::chrono::milliseconds timeout,
                   bool async_op);
  // A message with a stream of its own. A recv from any rank (kAnySource), and one behind such a
  // recv in its tag channel, is put there once its sender is known (recv_search.hpp): then false.
  // Throws as DeviceGroup::transfer, and kUnsupported where that would be part of a graph capture.
  bool message(const c10::intrusive_ptr<DeviceWork>& work, const TransferOp& op,
               std::chrono::milliseconds timeout);
  bool has_searches() const { return !search_->is_empty(); }
  // Blocks until no recv waits for its sender; each is bounded by its time-out.
  void await_searches();

  // The same with a rank of another host: `op.peer` is a rank of the group.
  void message_between_hosts(DeviceWork& work, const TransferOp& op);
  // Of a group over several hosts.
  GpuHosts& gpu_hosts() { return hosts_->gpu(*group_, streams_); }

  // The same inside a block: collectives start at once, messages at its end, which launches the
  // block's Work.
  void collectives(Block& block, const CallBatch& calls, std::chrono::milliseconds timeout,
                   bool async_op);
  void end(Block& block, std::chrono::milliseconds timeout);

  // Where the device counts the last collective, or the last message of the peer and direction of
  // `op`; nowhere once a stream of the group was captured.
  DeviceProgress last_collective() const { return group_->last_collective(); }
  DeviceProgress last_message(const TransferOp& op) const { return group_->last_message(op); }
  bool captured() const { return group_->trace().captured(); }

  // Everything put on the device so far, and on this thread's current stream.
  std::shared_ptr<DevicePoint> mark();

  // Two steps of the group's end; neither throws, and in a forked child both do nothing. finish()
  // waits for operations in flight, at most for `limit`.
  void finish(std::chrono::milliseconds limit) noexcept;
  // Decides the result of Works whose end was not seen, calls `stop`, which ends the kernels, and
  // releases the communicator, whose destructor waits for them before it frees memory.
  template <typename Stop>
  void leave(Stop&& stop) noexcept {
    if (streams_->in_forked_child() || streams_->closed()) return;
    search_->cancel(Error(ErrorCode::kAborted,
                          "the process group was destroyed before the sender of a recv from any "
                          "rank was known"));
    std::optional<Error> unfinished = what_is_unfinished();
    stop();
    streams_->close(std::move(unfinished));
  }

 private:
  // On `stream`, nullopt for the current one. Asks for the capture, once a call.
  DeviceWork::Launch launch_on(const std::optional<c10::Stream>& stream) const;
  // Launch behind this thread's current stream.
  void put(const DeviceWork::Launch& launch, const CallBatch& calls,
           std::chrono::milliseconds timeout);
  // Returns the point behind a batch; null for a single message, which has none.
  std::shared_ptr<StreamPoint> put(const DeviceWork::Launch& launch,
                                   std::span<const TransferOp> ops,
                                   std::chrono::milliseconds timeout);
  // A recv whose sender has been found, behind what was on its issuing stream at the call.
  void put_found(RecvSearch::Recv& recv, const TransferOp& op);
  // Throws kUnsupported where `op` would have to wait for a search.
  void check_no_search(const TransferOp& op, const char* where) const;
  // One call on `launch.stream`.
  void put_one(const DeviceWork::Launch& launch, const CollectiveCall& call,
               const DeviceLaunch& to);
  // Puts a message with a rank of another host on a stream of its own, behind `issuing`, and
  // returns that.
  static GpuLink::Side side_of(const TransferOp& op);
  c10::Stream put_between_hosts(const c10::Stream& issuing, const TransferOp& op);
  static std::size_t p2p_stream_of(const TransferOp& op);
  std::vector<c10::Event> events(bool with_current);
  // The result of the operations in flight: nullopt where all have ended well.
  std::optional<Error> what_is_unfinished() noexcept;

  const std::shared_ptr<HostGroup> hosts_;
  DeviceGroup* const group_;  // the communicator's, which the streams keep until they are closed
  std::shared_ptr<DeviceStreams> streams_;

  std::mutex collectives_mutex_;
  std::mutex messages_mutex_;
  std::vector<StreamChain> last_messages_;            // by p2p_stream_of()
  std::map<std::size_t, StreamChain> between_hosts_;  // by number of a p2p stream
  std::shared_ptr<RecvSearch> search_;                // locks messages_mutex_ inside its own
};

}  // namespace symm
