// What moves bytes between the hosts of a group in the order of a stream of a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "backend/engine/legs/host_link.hpp"

namespace symm {

class StreamLink {
 public:
  virtual ~StreamLink() = default;

  // "nccl", for messages.
  virtual const std::string& name() const = 0;
  // Whether no function here waits for the device, so that calls can be captured into graphs.
  virtual bool can_be_captured() const = 0;

  // Whether messages may lie in any memory of the GPU; else in that of add_memory() alone.
  virtual bool takes_any_memory() const = 0;
  // `memory`, of the GPU, outlives this object. Local.
  virtual void add_memory(std::span<std::byte> memory) = 0;

  // Begins to send `to` and to receive `from` once the calling thread's current stream has come to
  // this point; HostTransfer::wait(), with the same stream, lets it wait for their end. Both sides
  // of a pair name messages of the same sizes in the same order, none of them empty; those of
  // another `call` may match. Throws Error.
  virtual std::unique_ptr<HostTransfer> start(std::span<const HostMessage> to,
                                              std::span<const HostMessage> from,
                                              std::uint32_t call) = 0;

  // As HostLink's: lets streams go on that wait for messages.
  virtual void abort() noexcept = 0;
};

}  // namespace symm
