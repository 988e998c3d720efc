// What a process group puts into the flight record.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "backend/collective_call.hpp"
#include "backend/engine/record/flight_record.hpp"
#include "kernels/gpu/interface/group_kernels.hpp"

namespace symm {

class LocalGroup;

// Every member may be called from any thread; with an empty record all of them do nothing.
class GroupFlight {
 public:
  // Throws as FlightRecord::of_process(). `group` outlives the object.
  GroupFlight(const c10d::Backend& group, const std::string& name, int rank,
              const std::vector<std::int64_t>& global_ranks);

  ~GroupFlight();
  GroupFlight(const GroupFlight&) = delete;
  GroupFlight& operator=(const GroupFlight&) = delete;

  // When `group` fails, this process's record is written to its file.
  void write_when_failed(LocalGroup& group) const;

  // An operation of one call or, in the coalesced forms, several. `starts`: at once.
  FlightTicket collective(c10d::OpType type, const CallBatch& calls, std::uint64_t sequence,
                          std::chrono::milliseconds timeout, bool starts);
  // Messages of a coalescing block have one number, and its end has an entry of its own.
  void begin_block() { messages_.fetch_add(1, std::memory_order_relaxed); }
  // `starts`: at once.
  FlightTicket message(const at::Tensor& tensor, const TransferOp& op, std::uint64_t sequence,
                       std::chrono::milliseconds timeout, bool in_block, bool starts);
  FlightTicket end_of_block(std::uint64_t sequence, std::chrono::milliseconds timeout);

  // Before the memory that DeviceProgress points to goes away.
  void forget_counters();

 private:
  FlightGroup& described();

  FlightRecord* const record_;  // null: nothing is recorded
  FlightGroup* const in_record_;
  const c10d::Backend& group_;
  std::atomic<bool> described_{false};
  std::atomic<std::uint64_t> messages_{0};
  std::atomic<std::uint64_t> operations_{0};
};

}  // namespace symm
