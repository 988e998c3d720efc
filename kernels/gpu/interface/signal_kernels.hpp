// Signals of symmetric memory between the GPUs of a group: barrier, put_signal and wait_signal as
// operations on a stream, by the protocol of NOTE [Signal pads] in kernels/protocol/signal_pad.hpp,
// and operations that are work between two such barriers.
//
// The interface between libsymm and a device library; free of vendor headers. An object belongs to
// one rank of one group on one device, with any number of allocations. Operations put a kernel on a
// stream and return: they never wait for the device, allocate nothing and may be called while the
// stream is captured; a captured operation replays. The work of a stream before a put or a barrier
// is visible to the work of the receiver's stream after the wait or the barrier. Thread safe.
//
// NOTE [Signals that fail]
// A kernel that waits for longer than its time-out, after abort(), or for a rank that lose() named,
// ends, and so does a row exchange whose splits are wrong; unless asked for (NOTE [Traps]) it does
// not trap, so the device stays usable. From then on the object is dead: its kernels do nothing,
// replays of graphs included, and every operation and check() throw the reason. A barrier that ends
// so withdraws its signals, so that no late rank passes it (NOTE [Withdrawn signals] in
// signal_pad.hpp). The pads of the allocation that was used are then in no defined state.
//
// NOTE [Traps]
// With `traps` the kernel of a barrier, put or wait whose signal did not come in time, or will not
// come since a rank died, left or gave up, executes a trap once all of the above is done: the
// report is in host memory and the signals are withdrawn. The device's context is then in error for
// the whole process, so that whatever waits for the device raises, as it does after a time-out of
// PyTorch's own provider, and what was behind the signal does not run. Operations and check()
// throw the reason all the same, since it is read in host memory; destruction gives up what it
// cannot free. What this rank's host ends of its own accord, by abort() or destruction, does not
// trap, nor do row exchanges, nor kernels that find the object dead when they begin.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "kernels/core/dtype.hpp"
#include "kernels/core/error.hpp"
#include "kernels/gpu/interface/group_kernels.hpp"
#include "kernels/gpu/interface/matrix_sum.hpp"
#include "kernels/protocol/row_exchange.hpp"

namespace symm {

struct SignalKernelsConfig {
  int rank = 0;  // group rank
  int world_size = 1;
  // As in GroupKernelsConfig.
  std::uint32_t poll_period = 8192;
  bool traps = false;  // NOTE [Traps]
  // What messages call a rank; empty: "rank 1". Called by check(), from any thread.
  std::function<std::string(int rank)> rank_name{};
};

// The signal pads of one allocation: by rank their addresses in this process, [world_size], and the
// size of each. Read during the call only; the pads themselves must stay mapped until the stream
// has passed the operation, and as long as a graph that captured it.
struct SignalPads {
  std::span<std::byte* const> addresses;
  std::size_t bytes = 0;
};

struct SignalOptions {
  StreamHandle stream = nullptr;
  int channel = 0;
  // How long a kernel waits for a peer; 0: until the peer arrives or abort() is called.
  std::chrono::nanoseconds timeout{0};
};

// What an exchange_rows() moves (row_exchange.hpp says how). Addresses are those of this process,
// by rank, [world_size]; read during the call only, like SignalPads, and what they lead to must
// stay as a pad must.
struct RowExchange {
  RowExchangeForm form = RowExchangeForm::kVector;
  std::int32_t experts = 1;
  std::int32_t major_align = 0;
  std::int64_t input_rows = 0;
  std::int64_t output_rows = 0;
  std::uint64_t row_bytes = 0;
  std::span<std::byte* const> inputs;
  std::span<std::byte* const> splits;  // int64 [slots]; kCombine: [2, slots]
  std::byte* output = nullptr;         // of this rank
  std::int64_t* results = nullptr;     // [2, slots], of this rank
  std::int64_t* scratch = nullptr;     // of this GPU, scratch_words() long
};

class SignalKernels {
 public:
  // Ends waiting kernels, then waits for the device, so that no kernel uses freed memory. A graph
  // that captured an operation must not be replayed afterwards.
  virtual ~SignalKernels() = default;

  // Collective on the group, in the same order on every rank as other uses of the channel.
  // The operations throw Error: kInvalidArgument where channel, rank or pads are out of range,
  // kSystem where the launch failed, and what check() throws.
  virtual void barrier(const SignalPads& pads, const SignalOptions& options) = 0;

  // Puts a signal into the pad of `destination`, which may be this rank.
  virtual void put_signal(const SignalPads& pads, int destination,
                          const SignalOptions& options) = 0;

  // Takes one signal of `source`.
  virtual void wait_signal(const SignalPads& pads, int source, const SignalOptions& options) = 0;

  // Collective, as barrier(). Inputs and splits are read on the device, when the streams of all
  // ranks have come to the call; when this rank's stream has passed it, its results are there, and
  // no peer reads its memory any more. Wrong splits end the signals of all ranks (NOTE [Signals
  // that fail]), and nothing is written. Throws as barrier(), kInvalidArgument also for more than
  // 2^31 - 1 splits of all ranks.
  virtual void exchange_rows(const SignalPads& pads, const RowExchange& exchange,
                             const SignalOptions& options) = 0;
  // Of one rank: waits for no other. Sums a part of the ranks' matrices in their order, into the
  // output, with the arithmetic of all_reduce; barriers before and behind it are the caller's.
  // Throws kInvalidArgument for a dtype that has no sum or other ranks than the group's, kSystem,
  // and what check() throws.
  virtual void sum_matrices(Dtype dtype, const MatrixPart& part, std::span<std::byte* const> inputs,
                            std::byte* output, const SignalOptions& options) = 0;
  // The int64 of scratch memory that an exchange with so many experts needs. Local.
  virtual std::size_t scratch_words(std::int32_t experts) const = 0;

  // Ends waiting kernels, and makes check() throw `reason`; the first reason is kept. kPeerLost and
  // kPeerLeft say that a rank is lost (NOTE [Traps]). Any thread.
  virtual void abort(const Error& reason) noexcept = 0;

  // The same for waits for `ranks` alone (bit r: rank r), whose signals that have come count:
  // others may still be under way to this rank from ranks that are there. Any thread.
  virtual void lose(std::uint64_t ranks, const Error& reason) noexcept = 0;

  // Throws the failure, if there is one: the reason given to abort(), Error(kTimeout) that names
  // the operation, the channel and the rank that was waited for, Error(kPeerLost) where a rank has
  // given up a barrier on the channel, or Error(kMismatch) that names the wrong split. Does not
  // wait for the device, so it covers kernels that have ended. Local.
  virtual void check() const = 0;

  // Whether a kernel has ended without what it was to do; it may also have been told to. Unlike
  // check() this says nothing of a rank that nobody waits for. Local, any thread.
  virtual bool gave_up() const noexcept = 0;
};

}  // namespace symm
