// Transfers through the mailboxes of a group (NOTE [Mailboxes], NOTE [Point-to-point progress]).
#pragma once

#include <condition_variable>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "backend/engine/group/communicator_config.hpp"
#include "backend/engine/group/group_memory.hpp"
#include "backend/engine/group/message_notes.hpp"
#include "backend/engine/group/self_messages.hpp"
#include "backend/engine/host/point_to_point.hpp"
#include "kernels/cpu/wait.hpp"
#include "symm_mem/group/local_group.hpp"
#include "symm_mem/group/peer_memory.hpp"
#include "symm_mem/segment/segment.hpp"

namespace symm {

class MailboxEngine {
 public:
  using TransferPtr = std::shared_ptr<Transfer>;

  // `memory` is null in a group of one. All references must outlive the engine.
  MailboxEngine(const CommunicatorConfig& config, GroupMemory* memory, LocalGroup& group,
                MessageComparison& comparison, const PeerMemory& peer_memory);
  ~MailboxEngine();

  // Starts a message whose peer is another rank. timeout <= 0 means the group's default, counted
  // from now. Throws Error(kInvalidArgument), or the group's failure.
  TransferPtr start(Message message, std::chrono::milliseconds timeout);

  // Starts all of `messages`, in order, or none; the result is in their order. Messages to oneself
  // are done on return. Throws as start(), and as SelfMessages.
  std::vector<TransferPtr> start_batch(std::vector<Message> messages,
                                       std::chrono::milliseconds timeout);

  // Makes sure that transfers progress while nobody is in wait(): call it before an asynchronous
  // operation, which cannot be taken back. Starts the background thread on first use. Throws
  // Error(kSystem) where there is no thread to be had.
  void progress_in_background();

  // Makes progress on this thread until `transfer` is done; throws its error, or kTimeout when
  // `limit` (> 0) passes first, in which case the transfer stays in flight.
  void wait(Transfer& transfer, std::chrono::milliseconds limit);

  // Ends every transfer with the group's failure, and the background thread, if any, unless it is
  // the caller. Idempotent.
  void stop();

  bool on_background_thread() const { return background_id_.load() == std::this_thread::get_id(); }

 private:
  using Clock = std::chrono::steady_clock;

  // An envelope that has been taken and that no recv has asked for yet.
  struct Arrival {
    std::uint64_t id;
    std::int64_t tag;
    MessageEnd sender;
    std::uint64_t segment;        // number of the segment that it is in; 0: none
    std::uint64_t address;        // where the sender lets it be read, as in the envelope
    std::uint64_t tray;           // 1 + the sender's tray with its first bytes; 0: none
    std::vector<std::byte> data;  // what travelled inside the envelope
  };

  // A recv whose message is read where the sender has it.
  struct Reading {
    TransferPtr recv;
    std::uint64_t address;             // in the sender's process; 0 in a segment
    std::shared_ptr<Segment> segment;  // null: not in one
    const std::byte* source;           // in that segment
  };

  // A clear-to-send, and the recv that ends when it is posted, if any: while there is something to
  // post, a transfer is in flight.
  struct Answer {
    ClearToSend clear;
    TransferPtr ends;
    std::optional<Error> error;
  };

  // This rank's traffic with one peer.
  struct PeerTraffic {
    int peer = 0;
    // As a sender: envelopes and data go to `outbox` and `ring`, the peer answers in `peer_inbox`.
    OutboxHeader* outbox = nullptr;
    std::byte* ring = nullptr;
    const Inbox* peer_inbox = nullptr;
    std::uint64_t next_id = 1;
    std::deque<TransferPtr> unposted;  // sends without an envelope
    std::deque<TransferPtr> posted;    // large sends without a clear-to-send
    std::deque<TransferPtr> outgoing;  // cleared sends, in the order of their clear-to-sends
    bool tray_in_use[kTrays] = {};

    // As a receiver: the same with the roles changed.
    const OutboxHeader* peer_outbox = nullptr;
    const std::byte* peer_ring = nullptr;
    Inbox* inbox = nullptr;
    std::deque<Arrival> arrivals;     // envelopes without a recv
    std::deque<Answer> unposted_cts;  // clear-to-sends that found no free place
    std::deque<TransferPtr>
        incoming;  // recvs whose data is to come, in the order of clear-to-sends
    std::deque<Reading> reading;

    bool rang = false;  // something was changed: the peer's doorbell must ring
  };

  void check_peer(const TransferOp& op) const;
  TransferPtr make_transfer(Message message, std::chrono::milliseconds timeout) const;
  void begin(const TransferPtr& item);  // with mutex_ held

  // mailbox_progress.cpp. All with mutex_ held; they note in `moved_` that something moved.
  void progress();
  void progress_peer(PeerTraffic& traffic);
  void post_envelopes(PeerTraffic& traffic);
  void post_outside(PeerTraffic& traffic, Transfer& send, Envelope& envelope);
  bool may_be_read(const Transfer& send) const;
  // The message in symmetric memory, in this process; nullopt where it is not there, or where this
  // rank does not know the segment.
  std::optional<Reading> in_segment(const PeerTraffic& traffic, const Arrival& arrival,
                                    const TransferPtr& recv) const;
  // After a read: whether it gave what the sender had published.
  bool still_holds(int peer, const Reading& reading) const;
  void take_envelopes(PeerTraffic& traffic);
  void post_cts(PeerTraffic& traffic);
  void take_cts(PeerTraffic& traffic);
  void stream_out(PeerTraffic& traffic);
  void stream_in(PeerTraffic& traffic);
  void read_in(PeerTraffic& traffic);
  bool match_arrival(PeerTraffic& traffic, const Arrival& arrival, const std::byte* data);
  bool match_recv(const TransferPtr& recv);
  void deliver(PeerTraffic& traffic, const Arrival& arrival, const std::byte* data,
               const TransferPtr& recv);
  bool take_tray(const PeerTraffic& traffic, std::uint64_t tray, Transfer& recv) const;
  void finish(const TransferPtr& item, std::optional<Error> error);

  // With mutex_ held.
  void fail_all(const Error& error);
  void look_for_trouble();
  bool look_at_item(const Transfer& item, Clock::time_point now);

  void run_callbacks(std::unique_lock<std::mutex>& lock);
  // One round of progress; true when something moved.
  bool turn();
  void background();

  const CommunicatorConfig config_;
  GroupMemory* memory_;
  LocalGroup& group_;
  MessageComparison& comparison_;
  const PeerMemory& peer_memory_;
  WaitPolicy policy_;
  SignalLine* doorbell_ = nullptr;

  std::mutex mutex_;
  std::vector<PeerTraffic> traffic_;  // by peer
  std::list<TransferPtr> recvs_;      // not matched yet, in the order of their start
  std::vector<TransferPtr> in_flight_;
  std::uint64_t started_ = 0;  // numbers transfers, for messages
  bool moved_ = false;
  std::vector<std::function<void()>> callbacks_;  // to run without the lock
  Clock::time_point next_look_;
  Clock::time_point last_wait_;  // when a wait() last ended

  std::atomic<int> waiters_{0};  // threads inside wait(): the background thread keeps out
  std::condition_variable wake_;
  std::thread thread_;
  std::atomic<bool> has_thread_{false};  // has had one
  std::atomic<std::thread::id> background_id_{};
  bool stopping_ = false;
  bool asleep_ = false;  // the background thread waits without a limit
};

}  // namespace symm
