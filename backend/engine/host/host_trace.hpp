// The collective trace of the host: which calls the ranks of a group have entered and completed,
// and whether those with the same number belong together.
//
// A rank's records are in its control region (kernels/protocol/control_region.hpp). Thread safety:
// none, except for sequence(); the caller runs one call at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "backend/engine/group/group_memory.hpp"
#include "symm_mem/group/local_group.hpp"

namespace symm {

class HostTrace {
 public:
  // References must outlive the trace. `memory` is null in a group of one, which counts its calls
  // and records none.
  HostTrace(LocalGroup& group, GroupMemory* memory);

  // Number of the last call that was entered, from 1. Any thread.
  std::uint64_t sequence() const { return sequence_.load(std::memory_order_relaxed); }

  void enter(const CallRecord& record);
  void count() { sequence_.fetch_add(1, std::memory_order_relaxed); }  // in a group of one
  void complete();

  // "all_reduce(float32, SUM, count 4, one_shot) seq 3": the last call that was entered.
  std::string call_name() const;
  // What `peer` has recorded of it.
  const CallRecord& record_of(int peer) const;

  // Compares what `peer` has entered, up to the last call, with this rank's records, or what all
  // have entered by now. False, having failed the group, where they differ.
  bool verify(int peer);
  bool verify_all();

  // Looks at every peer's page and connection. False, having failed the group, where one has failed
  // or is gone without having completed the last call.
  bool check_peers();

  // Who has entered the last call, and what the others did last.
  std::string arrival_report() const;

 private:
  bool verify_up_to(int peer, std::uint64_t sequence);
  bool check_peer(int peer, const std::string& call);
  const ProgressLine& progress(int rank) const { return memory_->control(rank).progress; }
  const CallRecord& record(int rank, std::uint64_t sequence) const {
    return memory_->control(rank).calls[sequence % kCallRing];
  }

  LocalGroup& group_;
  GroupMemory* const memory_;
  std::atomic<std::uint64_t> sequence_{0};
  std::vector<std::uint64_t> verified_;  // by peer: its calls up to here were compared
};

}  // namespace symm
