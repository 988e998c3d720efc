// The kernels of one group on one device, as the engine launches them.
//
// The interface between libsymm and a device library; free of vendor headers. An object serves one
// rank of one group for the group's life. launch() and transfer() put work on a stream and return:
// they never wait for the device, allocate nothing and may be called while the stream is captured.
// Calls of one group are made by one thread at a time and are ordered on the device by the caller.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kernels/core/collective.hpp"
#include "kernels/protocol/device_layout.hpp"

namespace symm {

struct Plan;

// A stream of the device's runtime: cudaStream_t or hipStream_t.
using StreamHandle = void*;

struct GroupKernelsConfig {
  int rank = 0;  // group rank
  int world_size = 1;
  DeviceLayout layout{};
  DevicePage* page = nullptr;  // this rank's, host address; the object maps it for the device
  // Where every counter of the group starts, the same on all ranks: tests bring them near their
  // wrap-around. Set before any peer knows this rank's segment.
  std::uint32_t first_count = 0;
  // Failed polls of a kernel between two looks at the abort word and the clock; a power of two. The
  // default is more than a working group ever needs in a row.
  std::uint32_t poll_period = 256;
};

struct LaunchOptions {
  StreamHandle stream = nullptr;
  std::chrono::nanoseconds timeout{0};  // how long a kernel waits for a peer
};

// Where this rank's input stands in a segment of the group (Announcement::place), 0 if nowhere.
using Place = std::uint64_t;

// One message. For a send `data` is read, for a recv written. Memory stays the caller's until the
// stream has passed the launch.
struct TransferOp {
  void* data = nullptr;
  std::uint64_t bytes = 0;
  std::int64_t tag = 0;
  int peer = 0;  // group rank
  bool is_send = false;
};

// A piece of symmetric memory that all ranks have at the same place: its multicast address, and by
// rank the address of the same place in the memory of that rank, [world_size].
struct MulticastMemory {
  std::byte* multicast = nullptr;
  std::span<std::byte* const> ranks;
  Place place = 0;
};

// What a multimem call reads or writes by multicast addresses: the input for reductions, the output
// for all but reduce_scatter; what is not named is left out. all_reduce may have one for both.
struct MultimemMemory {
  MulticastMemory input;
  MulticastMemory output;
};

class GroupKernels {
 public:
  virtual ~GroupKernels() = default;

  // Where `rank`'s segment (DeviceLayout) stands in this process; this rank's own too. A rank that
  // takes part in a launch must have been set. Local, cold.
  virtual void set_peer(int rank, std::byte* segment) = 0;

  // Symmetric segment `number` (from 0) of the group, by rank. Local, cold: synchronises a copy.
  virtual void set_segment(int number, std::span<std::byte* const> bases) = 0;

  // One collective; `args` has been validated and the plan is the same on every rank. `place`
  // says where the input stands. all_to_all goes through transfer(). Throws Error(kSystem).
  virtual void launch(const CollectiveArgs& args, const Plan& plan, Place place,
                      const LaunchOptions& options) = 0;

  // Messages that progress together, in one kernel where they fit: sends and recvs between the
  // same ranks may be given in any order. Messages of one peer, direction and tag keep theirs.
  // A message of this rank to itself is a send that stands right before its recv of as many bytes.
  // `collective`: all_to_all, which counts as a collective and has lanes of its own.
  virtual void transfer(std::span<const TransferOp> ops, bool collective,
                        const LaunchOptions& options) = 0;

  // all_gather, broadcast or all_to_all by copy engines, between two gates in which the ranks
  // compare `place` (of the output). `peer_outputs[r]`: rank r's output in this process.
  virtual void launch_copies(const CollectiveArgs& args, Place place,
                             std::span<std::byte* const> peer_outputs,
                             const LaunchOptions& options) = 0;

  // A call that multimem_refusal() (kernels/plan/multimem.hpp) lets pass, in one kernel, in which
  // the ranks compare the places. Throws as launch(), and Error(kUnsupported) where the library has
  // no such kernel. Never run on hardware.
  virtual void launch_multimem(const CollectiveArgs& args, const Plan& plan,
                               const MultimemMemory& memory, const LaunchOptions& options) = 0;
};

}  // namespace symm
