// send and recv between two ranks of a group, with tags, in order, of any size.
//
// NOTE [Point-to-point progress]
// MailboxEngine::start() never blocks and never waits for the peer. Data moves while somebody
// makes progress: a caller inside wait(), or a background thread of the engine that is started by
// the first operation that is not waited for at once. Messages between one pair of ranks with one
// tag match in the order in which they were started; messages of different tags are independent.
// A message's bytes stay in the sender's buffer until the receiver has asked for them, so a send
// of any size needs no memory; the buffer may be reused once the transfer is done.
//
// A recv whose size or dtype differs from the message's is an error (kMismatch) that names both, on
// both sides unless the message was so small that its sender was already done; the group stays
// usable.
//
// A rank has no channel to itself: a message to oneself can only be part of a batch that holds both
// its ends (SelfMessages), which is then copied when the batch starts.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "kernels/core/error.hpp"
#include "kernels/gpu/interface/group_kernels.hpp"

namespace symm {

inline constexpr int kAnySource = -1;

// One end of a message. The bytes must stay valid until its transfer is done. `on_done` (may be
// empty) runs once, on whatever thread finished the transfer, with no lock of the engine held.
struct Message {
  TransferOp op;  // the peer of a recv may be kAnySource
  std::function<void()> on_done;
};

// One send or recv in flight. Shared by the caller and the engine.
class Transfer {
 public:
  explicit Transfer(Message message)
      : is_send(message.op.is_send),
        data(static_cast<std::byte*>(message.op.data)),
        bytes(message.op.bytes),
        tag(message.op.tag),
        dtype(message.op.dtype),
        on_done(std::move(message.on_done)),
        peer_(message.op.peer) {}

  bool done() const noexcept { return done_.load(std::memory_order_acquire); }  // well or not
  // Valid once done(): nullopt where it went well.
  const std::optional<Error>& error() const { return error_; }
  // The group rank of the other side; for a recv from any source valid once done().
  int peer() const noexcept { return peer_.load(std::memory_order_relaxed); }

  // For the engine.
  void set_peer(int peer) { peer_.store(peer, std::memory_order_relaxed); }
  void complete(std::optional<Error> error) {
    error_ = std::move(error);
    done_.store(true, std::memory_order_release);
  }

  const bool is_send;
  std::byte* const data;
  const std::size_t bytes;
  const std::int64_t tag;
  const Dtype dtype;
  std::function<void()> on_done;
  std::chrono::steady_clock::time_point started;
  std::chrono::steady_clock::time_point deadline;
  std::uint64_t number = 0;  // counts the transfers of the group on this rank
  std::uint64_t id = 0;      // of the message, once it has an envelope
  std::size_t moved = 0;     // bytes of the data that have been copied
  std::uint64_t tray = 0;    // of a send: 1 + the tray that has its first bytes, 0: none has
  std::size_t slot = 0;      // in the engine's list of transfers in flight

 private:
  std::atomic<int> peer_;
  std::atomic<bool> done_{false};
  std::optional<Error> error_;
};

}  // namespace symm
