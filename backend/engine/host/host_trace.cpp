#include "backend/engine/host/host_trace.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <optional>

#include "backend/engine/group/call_record.hpp"
#include "kernels/core/atomics.hpp"
#include "symm_mem/process/interrupt.hpp"
#include "symm_mem/process/process_memory.hpp"
#include "symm_mem/process/system_error.hpp"

namespace symm {

HostTrace::HostTrace(LocalGroup& group, GroupMemory* memory, const PeerMemory& peer_memory)
    : group_(group),
      memory_(memory),
      peer_memory_(peer_memory),
      verified_(static_cast<std::size_t>(group.world_size())) {}

void HostTrace::enter(const CallRecord& record, const CollectiveArgs& args,
                      std::chrono::milliseconds timeout) {
  ControlRegion& control = memory_->control(group_.rank());
  control.calls[record.sequence % kCallRing] = record;
  own_calls_[record.sequence % kCallRing] = record;
  sequence_.store(record.sequence, std::memory_order_relaxed);
  store_release(&control.progress.entered, record.sequence);
  args_ = &args;
  start_ = Clock::now();
  timeout_ = timeout;
}

void HostTrace::complete() {
  store_release(&memory_->control(group_.rank()).progress.completed, sequence());
}

std::string HostTrace::call_name() const {
  return describe_call(own_call(sequence())) + " seq " + std::to_string(sequence());
}

void HostTrace::fail(ErrorCode code, const std::string& text) {
  group_.fail(Error(code, group_.prefix() + call_name() + ": " + text));
}

bool HostTrace::keep_waiting(int peer) {
  check_interrupts();
  if (!check_peers() || !verify_all()) return false;
  const Clock::duration elapsed = Clock::now() - start_;
  if (elapsed < timeout_) return true;
  char seconds[32];
  std::snprintf(seconds, sizeof(seconds), "%.3f s", std::chrono::duration<double>(elapsed).count());
  fail(ErrorCode::kTimeout,
       text_of("Timed out after ", seconds, awaited(peer), "; ", arrival_report()));
  return false;
}

bool HostTrace::check_peer(int peer, const std::byte** base, double* factor) {
  if (!verify(peer, sequence())) return false;
  const CallRecord& theirs = record(peer, sequence());
  if (theirs.segment != 0) {
    *base = locate_input(peer, theirs);
    if (*base == nullptr) return false;
  }
  *factor = theirs.factor;
  return true;
}

std::shared_ptr<Segment> HostTrace::segment_with(int peer, std::uint32_t in_record,
                                                 std::uint64_t offset, std::size_t bytes) {
  std::shared_ptr<Segment> segment = group_.segments().with_record_number(in_record);
  const std::uint32_t number = in_record - 1;
  if (segment == nullptr) {
    fail(ErrorCode::kMismatch, text_of(group_.rank_name(peer), " passed memory of segment ", number,
                                       ", which this rank does not know"));
    return nullptr;
  }
  if (!segment->is_on_host()) {
    fail(ErrorCode::kSecurity,
         text_of(group_.rank_name(peer), " says that its input is in segment ", number,
                 ", which is memory of a GPU"));
    return nullptr;
  }
  if (bytes > segment->bytes() || offset > segment->bytes() - bytes) {
    fail(ErrorCode::kSecurity,
         text_of(group_.rank_name(peer), " says that its ", bytes, " bytes of input begin at byte ",
                 offset, " of segment ", number, ", which has ", segment->bytes()));
    return nullptr;
  }
  return segment;
}

const std::byte* HostTrace::locate_input(int peer, const CallRecord& theirs) {
  const std::uint64_t offset = theirs.offset;  // read once: the peer can write there
  const std::size_t bytes = input_bytes(*args_, peer, group_.world_size());
  const auto segment = segment_with(peer, theirs.segment, offset, bytes);
  return segment == nullptr ? nullptr : segment->base(peer) + offset;
}

// An all_to_all in place says for each share where it is.
bool HostTrace::check_share(int peer, const std::byte* input, std::uint64_t offset,
                            std::size_t bytes) {
  const std::uint32_t in_record = record(peer, sequence()).segment;
  const auto segment = segment_with(peer, in_record, offset, bytes);
  if (segment == nullptr) return false;
  if (input == segment->base(peer)) return true;  // nothing else is such an input's base
  fail(ErrorCode::kSecurity, text_of(group_.rank_name(peer),
                                     " says that its input begins within segment ", in_record - 1));
  return false;
}

// An owner does not complete its call before this rank is done with it, so one that is gone has
// raised, and check_peers() says why.
bool HostTrace::check_owner(int peer, bool in_process) {
  return (in_process ? peer_memory_.holds(peer) : group_.stands(peer)) || check_peers();
}

std::uint64_t HostTrace::address_for_peers(const void* data, std::size_t bytes) {
  return is_readable_by_peers(data, bytes) ? reinterpret_cast<std::uintptr_t>(data) : 0;
}

bool HostTrace::read_process(std::byte* destination, int peer, std::uint64_t address,
                             std::size_t bytes) {
  const int error = peer_memory_.read(peer, address, destination, bytes);
  if (error == 0) return true;
  if (!peer_memory_.holds(peer) && !check_peers()) return false;
  if (error == ESRCH) {
    // A process that ends gives up its memory before its connections.
    fail(ErrorCode::kPeerLost,
         text_of(group_.rank_name(peer), " died: its process has no memory any more"));
  } else {
    fail(ErrorCode::kSystem,
         text_of("reading ", bytes, " bytes of the memory of ", group_.rank_name(peer),
                 " failed: ", describe_system_error(error)));
  }
  return false;
}

void HostTrace::report_count_mismatch(int peer, std::uint64_t theirs, std::uint64_t mine) {
  fail(ErrorCode::kMismatch, group_.rank_name(peer) + " sends " + std::to_string(theirs) +
                                 " elements to " + group_.rank_name(group_.rank()) +
                                 ", which expects " + std::to_string(mine));
}

bool HostTrace::verify(int peer, std::uint64_t sequence) {
  std::uint64_t& verified = verified_[static_cast<std::size_t>(peer)];
  for (; verified < sequence; ++verified) {
    const CallRecord& mine = own_call(verified + 1);
    const CallRecord theirs = record(peer, verified + 1);  // one look: anybody can write there
    if (same_call(mine, theirs)) continue;
    group_.fail(different_calls(group_, "seq", peer, mine, theirs));
    return false;
  }
  return true;
}

// Calls in which this rank did not wait for a peer are compared here.
bool HostTrace::verify_all() {
  const std::uint64_t own = sequence();
  for (int peer = 0; peer < group_.world_size(); ++peer) {
    if (peer == group_.rank() || verified_[static_cast<std::size_t>(peer)] == own) continue;
    const std::uint64_t entered = load_acquire(&progress(peer).entered);
    if (!verify(peer, std::min(entered, own))) return false;
  }
  return true;
}

bool HostTrace::is_there(int peer, const std::string& call) {
  Error reason(ErrorCode::kPeerLost, "");
  const bool gone = group_.is_gone(peer, &reason);
  // Looked at after the connection: whatever a peer had to say it said before it went.
  if (!group_.poll(call)) return false;
  if (!gone || load_acquire(&progress(peer).completed) >= sequence()) return true;
  group_.fail(Error(reason.code(), group_.prefix() + call + ": " + reason.what() +
                                       " before it was completed; " + arrival_report()));
  return false;
}

bool HostTrace::check_peers() {
  if (group_.failed()) return false;
  const std::string call = call_name();
  for (int peer = 0; peer < group_.world_size(); ++peer) {
    if (peer != group_.rank() && !is_there(peer, call)) return false;
  }
  return true;
}

std::string HostTrace::call_on_device(int peer) const {
  const ControlRegion& control = memory_->control(peer);
  const std::uint64_t posted = load_acquire(&control.device_calls.entered);
  if (posted <= load_acquire(&control.device.completed)) return "";
  const auto call = read_device_call(control.device_calls, posted);
  return text_of("in ", call ? describe_call(*call) : "a call", " device seq ", posted,
                 " on its device; ");
}

std::string HostTrace::awaited(int peer) const {
  if (peer == group_.rank()) return "";
  const ProgressLine& theirs = progress(peer);
  const char* has = "has not arrived";
  if (load_acquire(&theirs.entered) >= sequence()) has = "is in the call";
  if (load_acquire(&theirs.completed) >= sequence()) has = "has completed the call";
  return text_of(", waiting for ", group_.rank_name(peer), ", which ", has);
}

std::string HostTrace::arrival_report() const {
  return symm::arrival_report(group_, [this](int peer) -> std::optional<std::string> {
    const std::uint64_t entered = load_acquire(&progress(peer).entered);
    if (entered >= sequence()) return std::nullopt;
    const std::string on_device = call_on_device(peer);
    if (entered == 0) return on_device + "no call yet";
    const bool complete = load_acquire(&progress(peer).completed) >= entered;
    return on_device + "last: " + describe_call(record(peer, entered)) + " seq " +
           std::to_string(entered) + (complete ? ", completed" : ", not completed");
  });
}

}  // namespace symm
