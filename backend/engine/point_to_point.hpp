// send and recv between two ranks of a group, with tags, in order, of any size.
//
// NOTE [Point-to-point progress]
// start_send() and start_recv() never block and never wait for the peer. Data moves while somebody
// makes progress: a caller inside wait(), or a background thread of this object that is started by
// the first operation that is not waited for at once. Messages between one pair of ranks with one
// tag match in the order in which they were started; messages of different tags are independent.
// A message's bytes stand in the sender's buffer until the receiver has asked for them, so a send
// of any size needs no memory; the buffer may be reused once the transfer is done.
//
// A recv whose size differs from the message's is an error (kMismatch) that names both sizes, on
// both sides unless the message was so small that its sender was already done; the group stays
// usable.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

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

  // Makes sure that transfers progress while nobody is in wait(): call it for an asynchronous
  // operation. Starts the background thread on first use.
  virtual void progress_in_background() = 0;

  // Makes progress on this thread until `transfer` is done; throws its error, or kTimeout when
  // `limit` (> 0) passes first, in which case the transfer stays in flight.
  virtual void wait(Transfer& transfer, std::chrono::milliseconds limit) = 0;
};

}  // namespace symm
