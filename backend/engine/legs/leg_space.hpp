// Where the legs of calls over several hosts run, and where their messages lie: on the CPU, or on a
// stream of a GPU. The algorithms over hosts are written once, over this.
//
// NOTE [Order of legs]
// What a space is asked to do happens in that order: on the CPU each function returns when its work
// is done, on a stream when its work is there. Messages alone are under way beside what follows,
// from start() until HostTransfer::wait(), after which their memory may be read and used again.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "backend/engine/legs/host_link.hpp"
#include "kernels/core/collective.hpp"
#include "kernels/gpu/interface/group_kernels.hpp"

namespace symm {

// Of one rank; used by one call at a time.
class LegSpace {
 public:
  virtual ~LegSpace() = default;

  // Memory for messages, 64 bytes aligned, as long as this object and the engine use it. Not
  // initialised. Local.
  virtual std::span<std::byte> allocate(std::size_t bytes) = 0;
  // As HostLink's.
  virtual bool takes_any_memory() const = 0;
  virtual std::unique_ptr<HostTransfer> start(std::span<const HostMessage> to,
                                              std::span<const HostMessage> from,
                                              std::uint32_t call) = 0;
  // Whether messages lie in memory of the CPU, where they can be read at once.
  virtual bool is_on_cpu() const = 0;

  // Throws Error(kUnsupported) where a call of that kind cannot be made now. Before anything else
  // of the call.
  virtual void check(CollectiveKind /*kind*/) {}

  // A collective of the ranks of this host; ranks in `args` are places. Throws Error.
  virtual void run_local(const CollectiveArgs& args, std::chrono::milliseconds timeout) = 0;
  // Of at most kMostFolded sources on a GPU.
  virtual void fold(const FoldCall& call) = 0;
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;

  // Ends what is under way between the hosts: HostLink::abort().
  virtual void abort() noexcept = 0;
};

}  // namespace symm
