#include "backend/engine/host/mailbox_engine.hpp"

#include <pthread.h>

#include <cstring>

#include "kernels/core/atomics.hpp"
#include "symm_mem/process/deadline.hpp"
#include "symm_mem/process/interrupt.hpp"
#include "symm_mem/process/system_error.hpp"

namespace symm {

namespace {

using std::chrono::milliseconds;

// How often a waiter polls for what rings no doorbell.
constexpr milliseconds kLookPeriod{2};
// How long the background thread keeps looking for work before it needs to be woken: waking it for
// each of many short transfers would cost more than the transfers.
constexpr int kLingerRounds = 50;
constexpr milliseconds kLingerRound{1};
// A program that has just waited will probably wait for its next transfer too. For this long the
// background thread only looks in now and then, and does not sleep on the doorbell: it would be
// woken by every message, beside the waiter.
constexpr milliseconds kStandBy{5};

std::string describe(const Transfer& item, const std::string& peer_name) {
  return std::string(item.is_send ? "send to " : "recv from ") + peer_name + " (" +
         std::to_string(item.bytes) + " bytes, tag " + std::to_string(item.tag) + ", seq " +
         std::to_string(item.number) + ")";
}

// The two ends of one message. Neither is known to anybody else yet.
void copy_to_self(Transfer& send, Transfer& recv) {
  if (send.bytes > 0) std::memmove(recv.data, send.data, send.bytes);
  for (Transfer* const item : {&send, &recv}) {
    item->complete(std::nullopt);
    if (const std::function<void()> on_done = std::move(item->on_done)) on_done();
  }
}

}  // namespace

MailboxEngine::MailboxEngine(const CommunicatorConfig& config, GroupMemory* memory,
                             LocalGroup& group, MessageComparison& comparison,
                             const PeerMemory& peer_memory)
    : config_(config),
      memory_(memory),
      group_(group),
      comparison_(comparison),
      peer_memory_(peer_memory),
      policy_(group.policy()) {
  policy_.pauses /= 10;  // a round here looks at every peer, which takes as long as ten pauses
  if (memory == nullptr) return;
  doorbell_ = &memory->control(config.rank).doorbell;
  const MailboxLayout& layout = memory->mailbox_layout();
  traffic_.resize(static_cast<std::size_t>(config.world_size));
  std::byte* own = memory->mailboxes(config.rank);
  for (int peer = 0; peer < config.world_size; ++peer) {
    PeerTraffic& traffic = traffic_[static_cast<std::size_t>(peer)];
    traffic.peer = peer;
    if (peer == config.rank) continue;
    std::byte* theirs = memory->mailboxes(peer);
    traffic.outbox = &layout.outbox(own, config.rank, peer);
    traffic.ring = layout.ring(own, config.rank, peer);
    traffic.inbox = &layout.inbox(own, peer);
    traffic.peer_outbox = &layout.outbox(theirs, peer, config.rank);
    traffic.peer_ring = layout.ring(theirs, peer, config.rank);
    traffic.peer_inbox = &layout.inbox(theirs, config.rank);
  }
}

MailboxEngine::~MailboxEngine() { stop(); }

void MailboxEngine::check_peer(const TransferOp& op) const {
  const int peer = op.peer;
  if (peer == kAnySource && !op.is_send && config_.world_size > 1) return;
  if (peer < 0 || peer >= config_.world_size || peer == config_.rank) {
    throw Error(ErrorCode::kInvalidArgument,
                group_.prefix() + "peer: expected another group rank from 0 to " +
                    std::to_string(config_.world_size - 1) + ", got " + std::to_string(peer));
  }
}

MailboxEngine::TransferPtr MailboxEngine::make_transfer(Message message,
                                                        milliseconds timeout) const {
  auto item = std::make_shared<Transfer>(std::move(message));
  item->started = Clock::now();
  item->deadline = item->started + within_longest(timeout.count() > 0 ? timeout : config_.timeout);
  return item;
}

MailboxEngine::TransferPtr MailboxEngine::start(Message message, milliseconds timeout) {
  check_peer(message.op);
  if (group_.failed()) throw group_.failure();
  TransferPtr item = make_transfer(std::move(message), timeout);
  std::unique_lock lock(mutex_);
  if (stopping_) throw group_.failure();
  begin(item);
  run_callbacks(lock);
  return item;
}

std::vector<MailboxEngine::TransferPtr> MailboxEngine::start_batch(std::vector<Message> messages,
                                                                   milliseconds timeout) {
  SelfMessages own(group_);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const TransferOp& op = messages[i].op;
    if (op.peer == config_.rank) {
      own.add(i, op);
    } else {
      check_peer(op);
    }
  }
  own.check_all_met();
  if (group_.failed()) throw group_.failure();
  std::vector<TransferPtr> items;
  items.reserve(messages.size());
  for (Message& message : messages) items.push_back(make_transfer(std::move(message), timeout));
  {
    std::unique_lock lock(mutex_);
    if (stopping_) throw group_.failure();
    for (const TransferPtr& item : items) {
      if (item->peer() != config_.rank) begin(item);
    }
    run_callbacks(lock);
  }
  for (const SelfMessages::Pair& pair : own.pairs()) {
    copy_to_self(*items[pair.send], *items[pair.recv]);
  }
  return items;
}

void MailboxEngine::begin(const TransferPtr& item) {
  item->number = ++started_;
  item->slot = in_flight_.size();
  in_flight_.push_back(item);
  const TransferOp op{.bytes = item->bytes,
                      .tag = item->tag,
                      .peer = item->peer(),
                      .is_send = item->is_send,
                      .dtype = item->dtype};
  if (op.peer == kAnySource) {
    comparison_.lose_count(op);
  } else {
    comparison_.note(op, DeviceKind::kHost);
  }
  if (item->is_send) {
    PeerTraffic& traffic = traffic_[static_cast<std::size_t>(item->peer())];
    traffic.unposted.push_back(item);
    progress_peer(traffic);
  } else {
    if (!match_recv(item)) recvs_.push_back(item);
    if (item->peer() == kAnySource) {
      progress();
    } else {
      progress_peer(traffic_[static_cast<std::size_t>(item->peer())]);
    }
  }
  if (asleep_ && !in_flight_.empty()) wake_.notify_one();
}

void MailboxEngine::progress_in_background() {
  if (memory_ == nullptr) return;  // a group of one only copies
  if (has_thread_.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(mutex_);
  if (stopping_ || thread_.joinable()) return;
  try {
    thread_ = std::thread([this] { background(); });
    has_thread_.store(true, std::memory_order_relaxed);
    pthread_setname_np(thread_.native_handle(), "symm_transfers");
  } catch (const std::system_error& error) {
    throw_no_thread("messages", error);
  }
}

void MailboxEngine::run_callbacks(std::unique_lock<std::mutex>& lock) {
  if (callbacks_.empty()) return;
  std::vector<std::function<void()>> callbacks;
  callbacks.swap(callbacks_);
  lock.unlock();
  for (const auto& callback : callbacks) callback();
  callbacks.clear();
  lock.lock();
  if (callbacks_.empty()) callbacks_.swap(callbacks);  // for its memory
}

bool MailboxEngine::turn() {
  std::unique_lock lock(mutex_);
  moved_ = false;
  progress();
  const bool moved = moved_;
  if (!moved) {
    const Clock::time_point now = Clock::now();
    if (now >= next_look_) {
      next_look_ = now + kLookPeriod;
      look_for_trouble();
    }
  }
  run_callbacks(lock);
  return moved;
}

void MailboxEngine::wait(Transfer& transfer, milliseconds limit) {
  const bool has_limit = limit.count() > 0;
  const Clock::time_point end =
      has_limit ? Clock::now() + within_longest(limit) : Clock::time_point{};
  waiters_.fetch_add(1);
  std::exception_ptr interruption;
  int round = 0;
  while (!transfer.done()) {
    const std::uint64_t bell = load_acquire(&doorbell_->value);
    if (turn()) {
      round = 0;
      continue;
    }
    if (transfer.done() || (has_limit && Clock::now() >= end)) break;
    note_cpu(*doorbell_);
    const int peer = transfer.peer();
    const SignalLine* awaited = peer == kAnySource ? nullptr : &memory_->control(peer).doorbell;
    if (spin(round++, policy_, awaited)) continue;
    sleep_on(*doorbell_, bell, kLookPeriod);
    try {
      check_interrupts();
    } catch (const Interrupted&) {
      interruption = std::current_exception();
      break;
    }
  }
  {
    const std::lock_guard lock(mutex_);
    waiters_.fetch_sub(1);
    last_wait_ = Clock::now();
  }
  if (interruption) std::rethrow_exception(interruption);
  if (!transfer.done()) {
    throw Error(ErrorCode::kTimeout, group_.prefix() + "a transfer is not done after " +
                                         std::to_string(limit.count()) + " ms");
  }
  if (transfer.error()) throw *transfer.error();
}

void MailboxEngine::background() {
  background_id_.store(std::this_thread::get_id());
  int idle_rounds = 0;
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (in_flight_.empty() && ++idle_rounds > kLingerRounds) {
      asleep_ = true;
      wake_.wait(lock, [this] { return stopping_ || !in_flight_.empty(); });
      asleep_ = false;
      idle_rounds = 0;
    } else if (in_flight_.empty() || waiters_.load() > 0) {
      wake_.wait_for(lock, kLingerRound, [this] { return stopping_; });
    } else {
      idle_rounds = 0;
      const bool stand_by = Clock::now() - last_wait_ < kStandBy;
      lock.unlock();
      const std::uint64_t bell = load_acquire(&doorbell_->value);
      const bool moved = turn();
      if (!moved && !stand_by) sleep_on(*doorbell_, bell, kLookPeriod);
      lock.lock();
      if (!moved && stand_by) wake_.wait_for(lock, kLingerRound, [this] { return stopping_; });
    }
  }
}

// A peer that is gone may still have left what a transfer needs: that is looked for first.
bool MailboxEngine::look_at_item(const Transfer& item, Clock::time_point now) {
  const int peer = item.peer();
  const std::string name = peer == kAnySource ? "any rank" : group_.rank_name(peer);
  Error reason(ErrorCode::kPeerLost, "");
  if (now >= item.deadline) {
    const std::chrono::duration<double> elapsed = now - item.started;
    reason = Error(ErrorCode::kTimeout, "Timed out after ", std::to_string(elapsed.count()),
                   " s, waiting for ", peer == kAnySource ? name : group_.rank_report(peer), "; ",
                   item.moved, " of the ", item.bytes, " bytes were moved");
  } else if (peer != kAnySource) {
    if (!group_.is_gone(peer, &reason)) return false;
  } else {
    for (int other = 0; other < config_.world_size; ++other) {
      if (other != config_.rank && !group_.is_gone(other, &reason)) return false;
    }
  }
  moved_ = false;
  progress();
  if (moved_) return false;
  group_.fail(Error(reason.code(), group_.prefix() + describe(item, name) + ": " + reason.what()));
  return true;
}

void MailboxEngine::look_for_trouble() {
  const Clock::time_point now = Clock::now();
  bool failed = !group_.poll("point-to-point");
  if (!failed) {
    if (const std::optional<Error> error = comparison_.difference()) {
      group_.fail(*error);
      failed = true;
    }
  }
  for (std::size_t i = 0; i < in_flight_.size() && !failed; ++i) {
    const TransferPtr item = in_flight_[i];
    failed = look_at_item(*item, now);
    if (moved_) return;
  }
  if (failed) fail_all(group_.failure());
}

void MailboxEngine::fail_all(const Error& error) {
  recvs_.clear();
  for (PeerTraffic& traffic : traffic_) {
    traffic.unposted.clear();
    traffic.posted.clear();
    traffic.outgoing.clear();
    traffic.unposted_cts.clear();
    traffic.incoming.clear();
    traffic.reading.clear();
  }
  while (!in_flight_.empty()) {
    const TransferPtr item = in_flight_.back();
    finish(item, error);
  }
}

void MailboxEngine::stop() {
  std::thread thread;
  {
    std::unique_lock lock(mutex_);
    stopping_ = true;
    if (!in_flight_.empty()) {
      if (!group_.failed()) group_.leave();
      fail_all(group_.failure());
    }
    if (!on_background_thread()) thread.swap(thread_);
    wake_.notify_all();
    run_callbacks(lock);
  }
  if (!thread.joinable()) return;
  ring_bell(*doorbell_);
  thread.join();
}

}  // namespace symm
