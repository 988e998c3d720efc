// What moves bytes between the hosts of a group.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace symm {

// One message, to or from a group rank of another host. Its bytes lie in memory of the link, or in
// any where the link takes that.
struct HostMessage {
  int peer = 0;
  std::span<std::byte> bytes;
};

// Messages under way. Ending it without a wait leaves those in memory of the link to the engine.
class HostTransfer {
 public:
  // Where the link takes any memory, what it does not own is left alone from then on, whatever has
  // become of the messages.
  virtual ~HostTransfer() = default;
  // Returns when all of them have left or arrived; `awaited` says for which peer it waits. Throws
  // Error: kTimeout, kPeerLost, kAborted.
  virtual void wait(std::chrono::milliseconds timeout, std::atomic<int>& awaited) = 0;
};

class HostLink {
 public:
  virtual ~HostLink() = default;

  // "gloo", for messages.
  virtual const std::string& name() const = 0;

  // Memory for messages, as long as the link and as long as the engine uses it: an engine may go on
  // with a message whose wait has ended. Not initialised, aligned to 64 bytes. Local.
  virtual std::span<std::byte> allocate(std::size_t bytes) = 0;

  // Whether messages may lie in any memory, which must live as long as their transfer. The same on
  // every rank.
  virtual bool takes_any_memory() const = 0;

  // Begins to send `to` and to receive `from`, none of them empty. Those of a pair match in their
  // order where they have one `call`, a hash of what is called, and one size; others never do, but
  // where hashes happen to be equal (1 of 2^29). Does not wait. Throws Error.
  virtual std::unique_ptr<HostTransfer> start(std::span<const HostMessage> to,
                                              std::span<const HostMessage> from,
                                              std::uint32_t call) = 0;

  // Makes waits in progress throw, here and, once the engine has told them, on the other hosts.
  // Local, any thread.
  virtual void abort() noexcept = 0;
};

}  // namespace symm
