// The two legs of a call over several hosts, seen from one rank: inside its host, and between the
// hosts.
//
// NOTE [Places and rails]
// A rank's place is its index among the ranks of its host; the rank at place 0 leads its host. A
// rail is one rank of every host, those at one place; there are as many as the smallest host has
// ranks. Where a host has no rank at a place, another one stands in (HostLayout::stand_in).
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "backend/engine/hosts/call_note.hpp"
#include "backend/engine/hosts/host_layout.hpp"
#include "backend/engine/legs/leg_space.hpp"
#include "kernels/core/collective.hpp"
#include "symm_mem/bootstrap/rank_names.hpp"
#include "symm_mem/process/deadline.hpp"

namespace symm {

using Messages = std::vector<HostMessage>;

// Sizes in bytes by which calls are carried out. The same on every rank.
struct HostLimits {
  // The most that one leader tells another. Below it fewer threads of the engine at work are worth
  // more than all rails: 2 hosts of 2 ranks on 2 cores, all_gather of 256 KiB 1.1 ms in place of
  // 1.7, of 2 MiB 4.0 in place of 2.4.
  std::size_t leader_bytes = std::size_t{1} << 19;
  // The same of a gather or scatter, where leaders move what is not for their host's other ranks:
  // of 1 MiB 1.4 ms in place of 0.9.
  std::size_t leader_pair_bytes = std::size_t{1} << 16;
  // The same of a broadcast, which has messages in one direction alone.
  std::size_t leader_broadcast_bytes = std::size_t{1} << 20;
  // One rank's share of a chunk, and a chunk of all pairs of a rank. As long as the engine's
  // threads cost more than the caches: there, Gloo's messages of a broadcast of 64 MiB take 23, 17,
  // 13 and 12 ms with 2 to 16 MiB and two of them under way.
  std::size_t share_bytes = std::size_t{4} << 20;
  // Whole shares go to every host as long as a rank sends no more than that, which saves an
  // exchange.
  std::size_t whole_shares = std::size_t{64} << 10;
  // The most of one message that is not copied: engines count some bytes by int.
  std::size_t message_bytes = std::size_t{256} << 20;
};

// Those of calls on GPUs, where an exchange takes many times what a kernel of small data takes: all
// go over rails, but for what carries no data. Messages of a rank take 60 MiB at most, here and
// below.
HostLimits gpu_limits(int hosts);
// `few_cores`: somewhere the ranks and the engine's threads have not got a core each; `copies`:
// messages lie in memory of the link.
HostLimits cpu_limits(int hosts, bool few_cores, bool copies);

// Element range `index` of `count` nearly equal ones of `total`.
struct Share {
  Share(std::size_t total, int index, int count)
      : begin(total * static_cast<std::size_t>(index) / static_cast<std::size_t>(count)),
        count(total * static_cast<std::size_t>(index + 1) / static_cast<std::size_t>(count) -
              begin) {}
  Share(std::size_t from, std::size_t elements) : begin(from), count(elements) {}
  std::size_t begin;
  std::size_t count;
};

// The byte `offset` behind `base`, which may be null where nothing is read or written there.
inline std::byte* at_byte(const void* base, std::size_t offset) {
  return base == nullptr ? nullptr : static_cast<std::byte*>(const_cast<void*>(base)) + offset;
}

// A call at a time; not thread safe.
class HostLegs {
 public:
  // `rank` is a group rank. `layout`, `space` and `awaited`, the peer that is waited for, outlive
  // this object.
  HostLegs(const HostLayout& layout, int rank, RankNames names, LegSpace& space,
           const HostLimits& limits, std::atomic<int>& awaited);

  const HostLayout& layout() const { return layout_; }
  const HostLimits& limits() const { return limits_; }
  const RankNames& names() const { return names_; }
  // "rank 1 on host b"
  std::string text_of_rank(int rank) const;
  int rank() const { return rank_; }
  int host() const { return host_; }
  int place() const { return place_; }
  bool leads() const { return place_ == 0; }
  bool on_rail() const { return on_rail(place_); }
  bool on_rail(int place) const { return place < layout_.rails; }
  bool is_here(int rank) const { return host_of(rank) == host_; }
  int host_of(int rank) const { return layout_.host_of[static_cast<std::size_t>(rank)]; }
  int place_of(int rank) const { return layout_.local_of[static_cast<std::size_t>(rank)]; }
  // The group ranks of this host, by place.
  const std::vector<int>& here() const { return members(host_); }
  const std::vector<int>& members(int host) const {
    return layout_.members[static_cast<std::size_t>(host)];
  }
  // Who stands on `host` for this rank's place.
  int stand_in(int host) const { return layout_.stand_in(host, place_); }
  // Where this rank leads, the ranks that lead the other hosts.
  const std::vector<int>& leaders() const { return leaders_; }

  // How many of `bytes`, a limit, are for one of the hosts where every host has some: less from 8
  // hosts on, so that a rank keeps about 64 MiB at most for all of them.
  std::size_t of_each_host(std::size_t bytes) const;

  // What the rail of `place` has of `count` elements; nothing where there is no such rail.
  Share rail_share(std::size_t count, int place) const {
    return on_rail(place) ? Share(count, place, layout_.rails) : Share(count, 0);
  }
  Share own_share(std::size_t count) const { return rail_share(count, place_); }
  // These shares by place, of the `count` elements behind the first `begin` ones of `base`.
  std::vector<Part> rail_parts(const void* base, std::size_t begin, std::size_t count,
                               std::size_t element_bytes) const;

  // A new call: memory that was taken may be taken again. Ranks of a host with different notes fail
  // in their next local leg.
  void begin(std::chrono::milliseconds timeout, const CallNote& note);
  const CallNote& note() const { return note_; }

  // A collective of the ranks of this host; ranks in `args` are places. Blocks; throws Error.
  void run_local(CollectiveArgs args);

  // Memory for messages until the next begin(); 64 bytes aligned.
  std::byte* take(std::size_t bytes) { return memory_.take(bytes); }

  bool takes_any_memory() const { return space_.takes_any_memory(); }
  bool is_on_cpu() const { return space_.is_on_cpu(); }
  // LegSpace::start, of what is not empty, and of this call alone.
  std::unique_ptr<HostTransfer> start(Messages to, Messages from) {
    return start(std::move(to), std::move(from), call_);
  }
  // The same of messages that match those of any call.
  std::unique_ptr<HostTransfer> start_of_any_call(Messages to, Messages from) {
    return start(std::move(to), std::move(from), 0);
  }
  // Both directions, on their way while `meanwhile`, a local leg, runs.
  std::unique_ptr<HostTransfer> exchange(
      Messages to, Messages from, const std::function<void()>& meanwhile = [] {});
  // Waits for a transfer, or for none, and ends it.
  void finish(std::unique_ptr<HostTransfer>& transfer);

  // LegSpace::copy; nothing where there are no bytes or both are one place.
  void copy(void* to, const void* from, std::size_t bytes) {
    if (bytes > 0 && to != from) space_.copy(to, from, bytes);
  }
  // `result[i]` = the values of the hosts, by host, combined in that order by the operator of
  // `args`; `result` may be one of them.
  void fold(const CollectiveArgs& args, const std::vector<const void*>& of_hosts, void* result,
            std::size_t count);

  // The leg in progress, for errors.
  const char* leg() const { return leg_; }

 private:
  // Memory of messages, in blocks that are kept: of 1 MiB, or of whole shares of a chunk, so that
  // those of one call serve the next one, whatever the sizes of the two.
  class Blocks {
   public:
    using Allocate = std::function<std::span<std::byte>(std::size_t bytes)>;
    // `share`: the bytes of a share, with those by which it may be longer for its alignment.
    Blocks(Allocate allocate, std::size_t share) : allocate_(std::move(allocate)), share_(share) {}
    std::byte* take(std::size_t bytes);
    void take_all_back() { block_ = used_ = 0; }

   private:
    const Allocate allocate_;
    const std::size_t share_;
    std::vector<std::span<std::byte>> blocks_;
    std::size_t block_ = 0;  // what is taken of them: all before this one,
    std::size_t used_ = 0;   // and so many bytes of it
  };

  std::unique_ptr<HostTransfer> start(Messages to, Messages from, std::uint32_t call);
  std::chrono::milliseconds left() const;

  const HostLayout& layout_;
  const int rank_;
  const int host_;
  const int place_;
  const RankNames names_;
  LegSpace& space_;
  const HostLimits limits_;
  std::atomic<int>& awaited_;
  std::vector<int> leaders_;
  Deadline deadline_{std::chrono::milliseconds(0)};  // of the call in progress
  CallNote note_;                                    // of that call
  std::uint32_t call_ = 0;                           // its hash
  const char* leg_ = "";
  Blocks memory_;
};

// AVG divides where the hosts' values are combined, and PREMUL_SUM has multiplied by then.
inline ReduceOp op_in_host(ReduceOp op) { return op == ReduceOp::kAvg ? ReduceOp::kSum : op; }

}  // namespace symm
