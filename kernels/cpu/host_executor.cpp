#include "kernels/cpu/host_executor.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/core/atomics.hpp"
#include "kernels/cpu/streaming.hpp"

namespace symm {

namespace {

// In which a reduction is carried out whose result goes past the caches, and into a slot.
constexpr std::size_t kStreamedBlock = 8 * 1024;
constexpr std::size_t kSlotBlock = 32 * 1024;

}  // namespace

HostExecutor::HostExecutor(const SymmView& view, WaitPolicy policy, CallObserver& observer)
    : view_(view), policy_(policy), observer_(observer) {
  epoch_ = slowest_ = load_acquire(&own_done().value);
}

void HostExecutor::begin(const Call& call) {
  call_ = call;
  steps_ = 0;
  torn_ = false;
  owners_ = 0;
  std::fill_n(checked_, view_.world_size, false);
  std::fill_n(input_bases_, view_.world_size, nullptr);
  std::fill_n(in_process_, view_.world_size, false);
  factors_[view_.rank] = call.factor;
}

void HostExecutor::use_slots(std::byte* const* slots, std::size_t slot_bytes,
                             std::size_t chunk_bytes) {
  view_.slots = slots;
  view_.slot_bytes = slot_bytes;
  chunk_bytes_ = std::min(chunk_bytes, slot_bytes);
}

bool HostExecutor::wait(const SignalLine& line, std::uint64_t target, int peer) {
  const bool reached = wait_for(line, target, peer, policy_, observer_);
  note_cpu(own_ready());
  note_cpu(own_done());
  return reached;
}

bool HostExecutor::end() {
  if (torn_) return false;
  const std::uint64_t target = epoch_ + steps_;
  if (call_.in_place) {
    for (int peer = 0; peer < view_.world_size; ++peer) {
      if (peer == view_.rank) continue;
      if (!wait(view_.controls[peer]->done, target, peer)) return false;
    }
    slowest_ = target;
  }
  epoch_ = target;
  return true;
}

std::byte* HostExecutor::open_slot(std::uint32_t step) {
  steps_ = std::max(steps_, step + 1);
  if (torn_) return nullptr;
  const std::uint64_t needed = epoch_ + step + 1 - kSlots;
  if (!has_reached(slowest_, needed)) {
    std::uint64_t slowest = epoch_ + step + 1;
    for (int i = 1; i < view_.world_size; ++i) {
      const int peer = nth_peer(view_.rank, i, view_.world_size);
      const SignalLine& done = view_.controls[peer]->done;
      if (!wait(done, needed, peer)) return nullptr;
      const std::uint64_t value = load_acquire(&done.value);
      if (has_reached(slowest, value)) slowest = value;
    }
    slowest_ = slowest;
  }
  return slot(view_.rank, step);
}

bool HostExecutor::stage(std::uint32_t step, std::size_t slot_offset, const std::byte* source,
                         std::size_t bytes) {
  if (call_.in_place) return true;
  std::byte* slot = open_slot(step);
  if (slot == nullptr) return false;
  if (bytes > 0) std::memcpy(slot + slot_offset, source, bytes);
  return true;
}

bool HostExecutor::reads_hold() {
  if (owners_ == 0 || torn_) return !torn_;
  for (int peer = 0; peer < view_.world_size && !torn_; ++peer) {
    if (input_bases_[peer] == nullptr && !in_process_[peer]) continue;
    torn_ = !observer_.check_owner(peer, in_process_[peer]);
  }
  return !torn_;
}

void HostExecutor::publish(std::uint32_t step) {
  steps_ = std::max(steps_, step + 1);
  if (!reads_hold()) return;
  post(own_ready(), epoch_ + step + 1);
}

bool HostExecutor::await(int peer, std::uint32_t step) {
  steps_ = std::max(steps_, step + 1);
  if (torn_) return false;
  if (!wait(view_.controls[peer]->ready, epoch_ + step + 1, peer)) return false;
  if (checked_[peer]) return true;
  checked_[peer] = observer_.check_peer(peer, &input_bases_[peer], &factors_[peer]);
  if (input_bases_[peer] != nullptr) ++owners_;
  return checked_[peer];
}

bool HostExecutor::await_all(std::uint32_t step) {
  for (int i = 1; i < view_.world_size; ++i) {
    if (!await(nth_peer(view_.rank, i, view_.world_size), step)) return false;
  }
  return true;
}

std::uint64_t HostExecutor::place_for_peers(const void* data, std::size_t bytes) {
  if (bytes == 0) return 0;
  if (call_.in_place) return static_cast<std::uint64_t>(as_bytes(data) - call_.base);
  return call_.reads_processes ? observer_.address_for_peers(data, bytes) : 0;
}

bool HostExecutor::copy_share(std::byte* destination, int peer, std::uint64_t offset,
                              std::size_t bytes) {
  if (bytes == 0) return true;
  if (!observer_.check_share(peer, input_bases_[peer], offset, bytes)) return false;
  copy(destination, input_bases_[peer] + offset, bytes);
  return true;
}

bool HostExecutor::read_process(std::byte* destination, int peer, std::uint64_t address,
                                std::size_t bytes) {
  if (bytes == 0) return true;
  if (!in_process_[peer]) ++owners_;
  in_process_[peer] = true;
  if (!observer_.read_process(destination, peer, address, bytes)) torn_ = true;
  return !torn_;
}

void HostExecutor::read_done(std::uint32_t step) {
  steps_ = std::max(steps_, step + 1);
  if (!reads_hold()) return;
  post(own_done(), epoch_ + step + 1);
}

bool HostExecutor::is_slot(const std::byte* destination) const {
  const std::byte* const slots = view_.slots[view_.rank];
  return destination >= slots && destination < slots + std::size_t{kSlots} * view_.slot_bytes;
}

bool HostExecutor::streams_to(const std::byte* destination) const {
  return call_.streams && !is_slot(destination);
}

void HostExecutor::copy(std::byte* destination, const std::byte* source, std::size_t bytes) const {
  if (bytes == 0 || destination == source) return;
  if (streams_to(destination)) {
    streaming_copy(destination, source, bytes);
  } else {
    std::memcpy(destination, source, bytes);
  }
}

void HostExecutor::reduce(std::byte* destination, const void* const* sources,
                          std::size_t count) const {
  if (count == 0) return;
  const auto combine = [&](std::byte* to, const void* const* from, std::size_t n) {
    call_.kernels->reduce(to, from, view_.world_size, factors_, view_.world_size, n);
  };
  const bool streams = streams_to(destination);
  if (!streams && !is_slot(destination)) return combine(destination, sources, count);
  // Block by block through the first-level cache (NOTE [Writing slots] in host_executor.hpp).
  alignas(kCacheLine) std::byte block[kSlotBlock];
  const void* from[kMaxRanks];
  const std::size_t most = (streams ? kStreamedBlock : kSlotBlock) / call_.element_bytes;
  for (std::size_t done = 0; done < count; done += most) {
    const std::size_t offset = done * call_.element_bytes;
    const std::size_t n = std::min(most, count - done);
    for (int r = 0; r < view_.world_size; ++r) from[r] = as_bytes(sources[r]) + offset;
    combine(block, from, n);
    if (streams) {
      streaming_copy(destination + offset, block, n * call_.element_bytes);
    } else {
      std::memcpy(destination + offset, block, n * call_.element_bytes);
    }
  }
}

void HostExecutor::reduce_to(std::byte* slot, std::byte* destination, const void* const* sources,
                             std::size_t count) const {
  if (slot == nullptr) return reduce(destination, sources, count);
  if (destination == nullptr) return reduce(slot, sources, count);
  const bool streams = streams_to(destination);  // then it is not read again
  std::byte* const first = streams ? slot : destination;
  reduce(first, sources, count);
  copy(streams ? destination : slot, first, count * call_.element_bytes);
}

void HostExecutor::accumulate(std::byte* out, const std::byte* in, const std::byte* source,
                              std::size_t count) const {
  if (count > 0) call_.kernels->accumulate(out, in, source, call_.factor, count);
}

void HostExecutor::finish(std::byte* destination, const std::byte* in, const std::byte* source,
                          std::size_t count) const {
  if (count == 0) return;
  call_.kernels->finish(destination, in, source, call_.factor, view_.world_size, count);
}

bool HostExecutor::count_mismatch(int peer, std::uint64_t theirs, std::uint64_t mine) {
  observer_.report_count_mismatch(peer, theirs, mine);
  return false;
}

}  // namespace symm
