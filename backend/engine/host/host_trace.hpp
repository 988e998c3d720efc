// The collective trace of the host: which calls the ranks of a group have entered and completed,
// and whether those with the same number belong together. It is what the executor asks whether a
// call may go on.
//
// A rank's records are in its control region (kernels/protocol/control_region.hpp). Thread safety:
// none, except for sequence(); the caller runs one call at a time.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "backend/engine/group/group_memory.hpp"
#include "kernels/cpu/host_executor.hpp"
#include "symm_mem/group/local_group.hpp"
#include "symm_mem/group/peer_memory.hpp"

namespace symm {

class HostTrace final : public CallObserver {
 public:
  // References must outlive the trace. `memory` is null in a group of one, which counts its calls
  // and records none.
  HostTrace(LocalGroup& group, GroupMemory* memory, const PeerMemory& peer_memory);

  // Number of the last call that was entered, from 1. Any thread.
  std::uint64_t sequence() const { return sequence_.load(std::memory_order_relaxed); }

  // From now on the last call is `record` of `args`, which is to end within `timeout`; `args` must
  // outlive the call.
  void enter(const CallRecord& record, const CollectiveArgs& args,
             std::chrono::milliseconds timeout);
  void count() { sequence_.fetch_add(1, std::memory_order_relaxed); }  // in a group of one
  void complete();

  // What the executor asks while the call runs. keep_waiting() also looks at everybody.
  bool keep_waiting(int peer) override;
  bool check_peer(int peer, const std::byte** base, double* factor) override;
  bool check_owner(int peer, bool in_process) override;
  bool check_share(int peer, const std::byte* input, std::uint64_t offset,
                   std::size_t bytes) override;
  std::uint64_t address_for_peers(const void* data, std::size_t bytes) override;
  bool read_process(std::byte* destination, int peer, std::uint64_t address,
                    std::size_t bytes) override;
  void report_count_mismatch(int peer, std::uint64_t theirs, std::uint64_t mine) override;

  // Compares what all have entered by now, up to the last call, with this rank's records. False,
  // having failed the group, where they differ.
  bool verify_all();

  // Looks at every peer's page and connection. False, having failed the group, where one has failed
  // or is gone without having completed the last call.
  bool check_peers();

  // Fails the group; the message names the last call.
  void fail(ErrorCode code, const std::string& text);

 private:
  // "in all_reduce(...) device seq 3 on its device; " where `peer` has one under way there, else
  // "".
  std::string call_on_device(int peer) const;

  using Clock = std::chrono::steady_clock;

  // "all_reduce(float32, SUM, count 4, one_shot) seq 3": the last call that was entered.
  std::string call_name() const;
  // ", waiting for rank 1, which is in the call"; "" where that is this rank: a set-up waits for
  // all.
  std::string awaited(int peer) const;
  // Who has entered the last call, and what the others did last.
  std::string arrival_report() const;
  bool verify(int peer, std::uint64_t sequence);
  // Where `peer` says that its input is; null, having failed the group, where that cannot be.
  const std::byte* locate_input(int peer, const CallRecord& theirs);
  // The segment of a peer's input, of which it says that `bytes` begin at `offset`; null, having
  // failed the group, where that cannot be. `in_record`: CallRecord::segment.
  std::shared_ptr<Segment> segment_with(int peer, std::uint32_t in_record, std::uint64_t offset,
                                        std::size_t bytes);
  bool is_there(int peer, const std::string& call);
  const ProgressLine& progress(int rank) const { return memory_->control(rank).progress; }
  const CallRecord& record(int peer, std::uint64_t sequence) const {
    return memory_->control(peer).calls[sequence % kCallRing];
  }
  const CallRecord& own_call(std::uint64_t sequence) const {
    return own_calls_[sequence % kCallRing];
  }

  LocalGroup& group_;
  GroupMemory* const memory_;
  const PeerMemory& peer_memory_;
  std::atomic<std::uint64_t> sequence_{0};
  // What this rank has published, where no other can write.
  std::array<CallRecord, kCallRing> own_calls_{};
  const CollectiveArgs* args_ = nullptr;  // of the last call, while it runs
  Clock::time_point start_;               // of the last call
  std::chrono::milliseconds timeout_{0};
  std::vector<std::uint64_t> verified_;  // by peer: its calls up to here were compared
};

}  // namespace symm
