// A rank that says what no rank of symm would say, to the others of its group.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "backend/engine/communicator.hpp"
#include "kernels/core/atomics.hpp"
#include "kernels/cpu/wait.hpp"
#include "kernels/protocol/control_region.hpp"
#include "kernels/protocol/mailbox.hpp"

namespace symm::test {

// Of a group of two, of global ranks 10 and 11, in which rank 1 pretends.
inline CommunicatorConfig config_with_pretender(int rank) {
  CommunicatorConfig config;
  config.group_name = "test";
  config.rank = rank;
  config.world_size = 2;
  config.global_ranks = {10, 11};
  config.timeout = std::chrono::milliseconds(20'000);
  config.algorithm = Algorithm::kOneShot;
  return config;
}

// Rank 1 takes part in a call of one step, as far as rank 0 can see: with that record, as `change`
// leaves it, and `row` in the step's slot.
inline void pretend(
    Communicator& communicator, const CallRecord& record,
    const std::vector<std::uint64_t>& row = {},
    const std::function<void(CallRecord&)>& change = [](CallRecord&) {}) {
  auto& control = *reinterpret_cast<ControlRegion*>(communicator.local_group()->region(1));
  const std::uint64_t sequence = record.sequence;
  control.calls[sequence % kCallRing] = record;
  change(control.calls[sequence % kCallRing]);
  store_release(&control.progress.entered, sequence);
  const std::uint64_t step = load_acquire(&control.ready.value);
  std::copy(row.begin(), row.end(),
            reinterpret_cast<std::uint64_t*>(control.small_slots[step % kSlots]));
  post(control.ready, step + 1);
  post(control.done, step + 1);
  const auto* const peer =
      reinterpret_cast<const ControlRegion*>(communicator.local_group()->region(0));
  while (load_acquire(&peer->progress.completed) < sequence &&
         communicator.local_group()->poll("test")) {
    std::this_thread::yield();
  }
  store_release(&control.progress.completed, sequence);
}

// Rank 0 sends rank 1, of two, a message of `bytes` with tag 0 that is at `address` of the segment
// of that number. Of as many as there are envelopes, the one of number `posted`, from 0.
inline void pretend_to_send(Communicator& communicator, std::uint64_t posted, std::size_t bytes,
                            std::uint64_t segment, std::uint64_t address) {
  const MailboxLayout layout(2);
  std::byte* const own = communicator.local_group()->region(0) + sizeof(ControlRegion);
  Envelope& envelope = layout.envelope(own, 0, 1, posted);
  envelope.id = 1000 + posted;
  envelope.tag = 0;
  envelope.bytes = bytes;
  envelope.dtype = static_cast<std::uint64_t>(Dtype::kUInt8);
  envelope.elsewhere = {.segment = segment, .address = address, .tray = 0};
  store_release(&layout.outbox(own, 0, 1).posted, posted + 1);
}

}  // namespace symm::test
