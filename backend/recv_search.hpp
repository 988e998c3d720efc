// The recvs of a group on a GPU that wait for their sender to be known: those from any rank, and
// those behind them.
//
// A recv from any rank is no kernel until the host knows who sends (NOTE [Recv from any rank] in
// backend/engine/device/announced_sends.hpp). Until then it is here, with an event of the stream
// that was current at the call. Whoever waits for its Work looks, and so does a thread of this
// object while there is one, so that the sender is answered although nobody waits.
//
// Recvs of a tag channel match in the order in which they were called. So one that names its rank,
// called while one from any rank waits in the same channel, waits as well, until its rank has sent
// what none of those before it takes.
//
// Thread safety: every member may be called from any thread. In a forked child none may.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>

#include "backend/DeviceWork.hpp"
#include "backend/engine/async_queue.hpp"
#include "backend/engine/device/device_group.hpp"
#include "backend/streams/device_streams.hpp"

namespace symm {

class RecvSearch : public std::enable_shared_from_this<RecvSearch> {
 public:
  struct Recv {
    AwaitedRecv awaited;
    c10::intrusive_ptr<DeviceWork> work;
    c10::Stream issuing;
    c10::Event issued;  // what was on it at the call
  };
  // Puts the recv on a stream, `op` naming its sender, and launches the Work. Throws Error. Called
  // with nothing of this object to be called.
  using Put = std::function<void(Recv& recv, const TransferOp& op)>;

  // `group` stays until cancel().
  RecvSearch(DeviceGroup& group, std::shared_ptr<DeviceStreams> streams, Put put);
  ~RecvSearch();
  RecvSearch(const RecvSearch&) = delete;
  RecvSearch& operator=(const RecvSearch&) = delete;

  // Whether a recv waits in the tag channel of `tag`, or in any.
  bool has_in_channel_of(std::int64_t tag) const;
  bool is_empty() const { return waiting_.load(std::memory_order_acquire) == 0; }

  // Takes `recv`, whose Work asks this object from now on, and looks. Throws as
  // DeviceGroup::find_sender().
  void add(Recv recv);
  // Puts on streams whatever has a sender by now; ends what has failed. Never waits for a peer.
  void look();
  // Ends all with `reason`, and what comes later too. Waits for the thread.
  void cancel(const Error& reason) noexcept;

 private:
  using Clock = std::chrono::steady_clock;
  struct Ended {
    c10::intrusive_ptr<DeviceWork> work;
    std::optional<Error> error;
  };

  // All with the mutex held. settle() returns false while there is no sender whose message is for
  // this recv.
  bool settle(std::list<Recv>::iterator recv, std::optional<Error>& error, bool looks_for_trouble);
  bool takes_from(std::list<Recv>::iterator recv, int sender) const;
  std::list<Recv>::iterator remove(std::list<Recv>::iterator recv);
  void start_thread();
  void run() noexcept;

  DeviceGroup& group_;
  const std::shared_ptr<DeviceStreams> streams_;
  const Put put_;
  mutable std::mutex mutex_;             // guards what follows
  std::list<Recv> recvs_;                // in the order of the calls
  std::atomic<std::size_t> waiting_{0};  // their number
  Clock::time_point next_trouble_{};
  bool running_ = false;
  std::optional<Error> cancelled_;
  AsyncQueue thread_;
};

}  // namespace symm
