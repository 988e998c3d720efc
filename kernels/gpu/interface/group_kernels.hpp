// The kernels of one group on one device, launched by the engine.
//
// The interface between libsymm and a device library; free of vendor headers. An object belongs to
// one rank of one group for the group's life. launch() and transfer() put work on a stream and
// return: they never wait for the device, allocate nothing and may be called while the stream is
// captured. One thread at a time calls the methods of a group; the caller orders the work on the
// device.
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

// Where the counters of a group start, the same on all ranks: tests set them near wrap-around, and
// apart from each other.
struct FirstCounts {
  std::uint64_t meetings = 0;  // calls of multimem, of every block
  std::uint64_t wire = 0;      // calls over a wire, of every block
  std::uint32_t p2p = 0;       // boxes of every p2p channel, and chunks of every tag channel
  std::uint32_t bulk = 0;      // chunks of every lane, hop and pair of ranks

  bool operator==(const FirstCounts&) const = default;
};

struct GroupKernelsConfig {
  int rank = 0;  // group rank
  int world_size = 1;
  DeviceLayout layout{};
  DevicePage* page = nullptr;      // this rank's, host address; the object maps it for the device
  int most_blocks = kMaxChannels;  // of a collective; messages have their own number
  FirstCounts first{};             // set before any peer knows this rank's segment
  // Collectives over a wire count themselves in the page; without, `entered` and `completed` are of
  // no use. A test that times kernels leaves it out.
  bool counts_wire_calls = true;
  // Failed polls of a kernel between two tests of the abort word and the clock; a power of two. By
  // default some milliseconds: NOTE [Giving up] in wait.cuh.
  std::uint32_t poll_period = 8192;
  // The kernels of launch_multimem(); null: the library's. Tests put others here, whose
  // instructions need no multicast memory.
  const void* (*multimem_kernel)(CollectiveKind kind, Dtype dtype, ReduceOp op) = nullptr;
  bool poisons = true;  // a kernel that gives up fills its outputs with poison_of(dtype)
};

struct LaunchOptions {
  StreamHandle stream = nullptr;
  std::chrono::nanoseconds timeout{0};  // how long a kernel waits for a peer
  // A segment that holds the output of the call, or part of it: peers may store large pieces in it
  // themselves (NOTE [Direct chunks] in kernels/gpu/wire/lane.cuh). This rank's own affair.
  SymmetricRange output{};
};

// One message. For a send `data` is read, for a recv written. The caller owns the memory and keeps
// it until the stream has passed the launch.
struct TransferOp {
  void* data = nullptr;
  std::uint64_t bytes = 0;
  std::int64_t tag = 0;
  int peer = 0;  // group rank
  bool is_send = false;
  Dtype dtype = Dtype::kUInt8;  // for NOTE [Poison], and for the host, which compares the ends
};

// A range of symmetric memory at the same location on all ranks: its multicast address, and by rank
// its address in the memory of that rank, [world_size].
struct MulticastMemory {
  std::byte* multicast = nullptr;
  std::span<std::byte* const> ranks;
  BufferLocation location = 0;
};

// The ranges that a multimem call reads or writes by multicast addresses: the input for reductions,
// the output for all but reduce_scatter; the other is left empty. all_reduce may have one for both.
struct MultimemMemory {
  MulticastMemory input;
  MulticastMemory output;
};

// result[i] = sources[0][i] op sources[1][i] ..., combined in that order in the accumulate type and
// rounded once; `result` may be one of the sources. AVG divides by `divisor`; PREMUL_SUM is not one
// of the operators. At most kMostFolded sources, in memory of this GPU.
struct FoldCall {
  Dtype dtype = Dtype::kUInt8;
  ReduceOp op = ReduceOp::kSum;
  int divisor = 0;
  std::span<const void* const> sources;
  void* result = nullptr;
  std::size_t count = 0;  // elements
};

class GroupKernels {
 public:
  virtual ~GroupKernels() = default;

  // Sets the address of `rank`'s segment (DeviceLayout) in this process; this rank's own too.
  // `messages`: by which tiles messages in boxes between the two travel, the same at both. Before
  // the first launch with that rank. Throws as set_wire(). Local, cold.
  virtual void set_peer(int rank, std::byte* segment, WireKind messages) = 0;

  // How the tiles of small collectives travel; kLL until it is called. Before the first collective,
  // the same on all ranks. Throws Error(kUnsupported) where the library has no such kernels. Local.
  virtual void set_wire(WireKind wire) = 0;

  // The most ranks of the group that share a GPU of kMostBulkBlocksOfGpu multiprocessors, or that
  // have as much each of a smaller one; the same on all of them: so many blocks of theirs must be
  // resident together. All, until it is called. Before the first collective. Local.
  virtual void set_ranks_of_gpu(int ranks) = 0;

  // Sets row `number` (from 0) of the table of the group's symmetric segments, by rank; nulls where
  // there is none. Local, cold: synchronises a copy.
  virtual void set_segment(int number, std::span<std::byte* const> bases) = 0;

  // One collective, over a wire or by lanes; `args` has been validated and the plan is the same on
  // every rank; of all_to_all it says nothing, whose shares go each by its size, over the wire or
  // by lanes. With args.norm the rows are normed too, in the same kernel where the call is small
  // and goes over a wire. Throws Error(kSystem).
  virtual void launch(const CollectiveArgs& args, const Plan& plan,
                      const LaunchOptions& options) = 0;

  // Messages that progress together, in one kernel where they fit: sends and recvs between the same
  // ranks may be in any order. Messages of one peer, direction and tag keep theirs. A message of
  // this rank to itself is a send directly before its recv of as many bytes.
  virtual void transfer(std::span<const TransferOp> ops, const LaunchOptions& options) = 0;

  // all_gather, broadcast or all_to_all by copy engines, between an entry and an exit barrier in
  // which the ranks compare `location` (of the output). `peer_outputs[r]`: rank r's output in this
  // process.
  virtual void launch_copies(const CollectiveArgs& args, BufferLocation location,
                             std::span<std::byte* const> peer_outputs,
                             const LaunchOptions& options) = 0;

  // Not collective, and no peer is waited for. Throw Error(kSystem).
  virtual void fold(const FoldCall& call, StreamHandle stream) = 0;
  // Between any memory that the GPU reaches: its own, or pinned memory of the host.
  virtual void copy(void* to, const void* from, std::size_t bytes, StreamHandle stream) = 0;
  // Between this GPU's memory and any memory of the host. Cold: they wait for the copy.
  virtual void copy_to_host(void* to, const void* from, std::size_t bytes) = 0;
  virtual void copy_to_device(void* to, const void* from, std::size_t bytes) = 0;

  // A call that multimem_refusal() (kernels/plan/multimem.hpp) lets pass, in one kernel, in which
  // the ranks compare the locations. Throws as launch(), and Error(kUnsupported) where the library
  // has no such kernel. Never run on hardware.
  virtual void launch_multimem(const CollectiveArgs& args, const Plan& plan,
                               const MultimemMemory& memory, const LaunchOptions& options) = 0;

  // args.norm of rows whose sums are in args.output, to which the residual is added. Not
  // collective. Throws Error(kSystem).
  virtual void norm_rows(const CollectiveArgs& args, StreamHandle stream) = 0;
};

}  // namespace symm
