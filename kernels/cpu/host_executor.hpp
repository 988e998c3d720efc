// The executor of the host: one thread, shared memory, signals by futex-backed counters.
//
// NOTE [Reading in place]
// An owner whose input is read in place waits in end() until every peer is done with the call,
// unless it raises: then its user may write to the memory while a late peer still reads it. So a
// look at each owner follows the reads and comes before anything that tells of them, a result to a
// peer, `done` to the owner, or the end of the call to the user. Where an owner has raised, the
// call fails. `done` must come after the look for another reason: an owner that is done may leave.
//
// NOTE [Writing slots]
// The lines of a slot are in the cache of the peer that has read it last, and each store of a
// reduction would wait for one of them. memcpy claims many at once. So what is combined for a slot
// comes to it by memcpy: from the output, or from a block in the first-level cache.
//
// An object belongs to one rank of one group for the group's life; one thread at a time calls it.
#pragma once

#include <cstdint>

#include "kernels/algorithms/executor.hpp"
#include "kernels/cpu/reduce_kernels.hpp"
#include "kernels/cpu/wait.hpp"
#include "kernels/protocol/control_region.hpp"

namespace symm {

// Checks the peers' records, locates data that is read in place, and receives errors.
class CallObserver : public WaitSupervisor {
 public:
  // `peer` has published its first step of this call: compares its record with this rank's. Where
  // they differ, keeps the reason and returns false. *base: start of the peer's input where it is
  // read in place, else null.
  virtual bool check_peer(int peer, const std::byte** base, double* factor) = 0;
  // Data of `peer` was read in place, or (`in_process`) in its process: true where the peer was
  // still in its call then, so that what was read is what it published. Else keeps the reason and
  // returns false.
  virtual bool check_owner(int peer, bool in_process) = 0;
  // Whether there are `bytes` at `offset` of `input`, what check_peer() gave for `peer`. Else keeps
  // the reason and returns false.
  virtual bool check_share(int peer, const std::byte* input, std::uint64_t offset,
                           std::size_t bytes) = 0;
  // The address under which peers can read this rank's `data` in its process; 0 where they cannot.
  virtual std::uint64_t address_for_peers(const void* data, std::size_t bytes) = 0;
  // Copies from the memory of the peer's process. False where that cannot be read; keeps the
  // reason.
  virtual bool read_process(std::byte* destination, int peer, std::uint64_t address,
                            std::size_t bytes) = 0;
  // The peer sends `theirs` elements where `mine` are expected.
  virtual void report_count_mismatch(int peer, std::uint64_t theirs, std::uint64_t mine) = 0;
};

// The symmetric memory of one collective: the slots of every rank, mapped in this process. Owns
// nothing; valid as long as the group that owns the memory.
struct SymmView {
  int rank = 0;  // group rank
  int world_size = 1;
  ControlRegion* const* controls = nullptr;  // [world_size]
  std::byte* const* slots = nullptr;         // [world_size]: first of kSlots slots
  std::size_t slot_bytes = 0;                // distance and capacity of slots

  std::byte* slot(int owner, std::uint64_t step) const {
    return slots[owner] + static_cast<std::size_t>(step % kSlots) * slot_bytes;
  }
};

class HostExecutor {
 public:
  // `view` with the small slots; the counters of the group are equal on every rank. All references
  // must outlive the executor.
  HostExecutor(const SymmView& view, WaitPolicy policy, CallObserver& observer);

  // Starts a call. `kernels` may be null where nothing is reduced.
  struct Call {
    std::size_t element_bytes = 1;
    const ReduceKernels* kernels = nullptr;
    double factor = 1.0;
    bool in_place = false;            // peers may read this rank's input itself
    const std::byte* base = nullptr;  // of what peers know as its input; of an all_to_all in place
    bool reads_processes = false;     // the same on every rank: all can read each other's processes
    bool streams = false;  // outputs are written past the caches (NOTE [Streaming stores])
  };
  void begin(const Call& call);

  // Slots that the following steps use, and how much of a slot a step fills at most.
  void use_slots(std::byte* const* slots, std::size_t slot_bytes, std::size_t chunk_bytes);

  // Ends a call that succeeded: the group's epoch advances by its steps. Where data was read in
  // place, first waits until no peer reads it any more; false when that wait was ended.
  bool end();

  int rank() const { return view_.rank; }
  int world_size() const { return view_.world_size; }
  std::size_t chunk_bytes() const { return chunk_bytes_; }
  std::size_t element_bytes() const { return call_.element_bytes; }
  std::size_t accumulate_bytes() const { return call_.kernels->accumulate_bytes; }
  bool in_place() const { return call_.in_place; }

  bool stage(std::uint32_t step, std::size_t slot_offset, const std::byte* source,
             std::size_t bytes);
  std::byte* open_slot(std::uint32_t step);
  void publish(std::uint32_t step);
  bool await(int peer, std::uint32_t step);
  bool await_all(std::uint32_t step);
  const std::byte* source(int peer, std::uint32_t step, std::size_t slot_offset,
                          std::size_t input_offset) const {
    const std::byte* base = input_bases_[peer];
    return base != nullptr ? base + input_offset : slot(peer, step) + slot_offset;
  }
  bool reads_processes() const { return call_.reads_processes; }
  // Of a share of an all_to_all: where peers may read it, from the start of this rank's input where
  // that is read in place, else in its process; 0 where they may not.
  std::uint64_t place_for_peers(const void* data, std::size_t bytes);
  bool is_in_place(int peer) const {
    return peer == rank() ? call_.in_place : input_bases_[peer] != nullptr;
  }
  // The share of a peer whose input is read in place. False where the peer has no such bytes there.
  bool copy_share(std::byte* destination, int peer, std::uint64_t offset, std::size_t bytes);
  // Copies from the memory of the peer's process; false where that cannot be read any more.
  bool read_process(std::byte* destination, int peer, std::uint64_t address, std::size_t bytes);
  // Peers may read this rank's input itself: end() waits for them.
  void keep_input() { call_.in_place = true; }
  void list_source(int rank, const std::byte* source) { sources_[rank] = source; }
  const void* const* sources() const { return sources_; }
  std::byte* slot(int owner, std::uint32_t step) const { return view_.slot(owner, epoch_ + step); }
  void read_done(std::uint32_t step);
  void copy(std::byte* destination, const std::byte* source, std::size_t bytes) const;
  void reduce(std::byte* destination, const void* const* sources, std::size_t count) const;
  void reduce_to(std::byte* slot, std::byte* destination, const void* const* sources,
                 std::size_t count) const;
  void accumulate(std::byte* out, const std::byte* in, const std::byte* source,
                  std::size_t count) const;
  void finish(std::byte* destination, const std::byte* in, const std::byte* source,
              std::size_t count) const;
  bool count_mismatch(int peer, std::uint64_t theirs, std::uint64_t mine);

 private:
  // Looks at the owners of the memory that was read in place; false, from then on, where one has
  // raised. Comes between a read and whatever tells of it.
  bool reads_hold();
  // wait_for() a line of `peer`'s.
  bool wait(const SignalLine& line, std::uint64_t target, int peer);
  // Whether `destination` is in one of this rank's slots.
  bool is_slot(const std::byte* destination) const;
  // Whether `destination` is written past the caches: it is not a slot.
  bool streams_to(const std::byte* destination) const;
  SignalLine& own_ready() const { return view_.controls[view_.rank]->ready; }
  SignalLine& own_done() const { return view_.controls[view_.rank]->done; }

  SymmView view_;
  WaitPolicy policy_;
  CallObserver& observer_;
  Call call_;
  std::size_t chunk_bytes_ = 0;
  std::uint64_t epoch_ = 0;       // steps of all calls before this one
  std::uint64_t slowest_ = 0;     // every peer's done is known to have reached this
  std::uint32_t steps_ = 0;       // steps of this call so far
  bool torn_ = false;             // an owner raised while its memory was read
  int owners_ = 0;                // peers whose input this call reads in place, or in their process
  bool checked_[kMaxRanks] = {};  // peers whose record equals this rank's in this call
  const std::byte* input_bases_[kMaxRanks] = {};
  bool in_process_[kMaxRanks] = {};  // peers in whose process this call has read
  double factors_[kMaxRanks] = {};
  const void* sources_[kMaxRanks] = {};
};

static_assert(Executor<HostExecutor>);

}  // namespace symm
