// send and recv between two ranks of a group, with tags, in order, of any size.
//
// NOTE [Point-to-point progress]
// start_send() and start_recv() never block and never wait for the peer. Data moves while somebody
// makes progress: a caller inside wait(), or a background thread of this object that is started by
// the first operation that is not waited for at once. Messages between one pair of ranks with one
// tag match in the order in which they were started; messages of different tags are independent.
// A message's bytes stay in the sender's buffer until the receiver has asked for them, so a send
// of any size needs no memory; the buffer may be reused once the transfer is done.
//
// A recv whose size differs from the message's is an error (kMismatch) that names both sizes, on
// both sides unless the message was so small that its sender was already done; the group stays
// usable.
//
// A rank has no channel to itself: a message to oneself can only be part of a batch that holds both
// its ends (SelfMessages), which is then copied when the batch starts.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/core/error.hpp"

namespace symm {

inline constexpr int kAnySource = -1;

// One send or recv in flight. Shared by the caller and the engine.
class Transfer {
 public:
  virtual ~Transfer() = default;
  virtual bool done() const noexcept = 0;  // finished, well or not
  // Valid once done(): nullopt where it went well.
  virtual std::optional<Error> error() const = 0;
  // The group rank of the other side; for a recv from any source valid once done().
  virtual int peer() const noexcept = 0;
};

// One end of a message as an operation of a batch; the members are as start_send() and
// start_recv() take them, except that `peer` may be this rank.
struct Message {
  void* data = nullptr;  // read by a send, written by a recv
  std::size_t bytes = 0;
  int peer = 0;
  std::int64_t tag = 0;
  bool is_send = false;
  std::function<void()> on_done;
};

class PointToPoint {
 public:
  virtual ~PointToPoint() = default;

  // `on_done` (may be empty) runs once, on whatever thread finished the transfer, with no lock of
  // this object held. `peer` is a group rank other than this one; `tag` any value. timeout <= 0
  // means the group's default, counted from now. The bytes must stay valid until done().
  // Throws Error(kInvalidArgument), or the group's failure.
  virtual std::shared_ptr<Transfer> start_send(const void* data, std::size_t bytes, int peer,
                                               std::int64_t tag, std::chrono::milliseconds timeout,
                                               std::function<void()> on_done) = 0;

  // `peer` may be kAnySource.
  virtual std::shared_ptr<Transfer> start_recv(void* data, std::size_t bytes, int peer,
                                               std::int64_t tag, std::chrono::milliseconds timeout,
                                               std::function<void()> on_done) = 0;

  // Starts all of `messages`, in order, or none; the result is in their order. Messages to oneself
  // are done on return. Throws as start_send() and start_recv(), and as SelfMessages.
  virtual std::vector<std::shared_ptr<Transfer>> start_batch(std::vector<Message> messages,
                                                             std::chrono::milliseconds timeout) = 0;

  // Makes sure that transfers progress while nobody is in wait(): call it for an asynchronous
  // operation. Starts the background thread on first use.
  virtual void progress_in_background() = 0;

  // Makes progress on this thread until `transfer` is done; throws its error, or kTimeout when
  // `limit` (> 0) passes first, in which case the transfer stays in flight.
  virtual void wait(Transfer& transfer, std::chrono::milliseconds limit) = 0;
};

}  // namespace symm
