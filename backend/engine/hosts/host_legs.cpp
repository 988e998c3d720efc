#include "backend/engine/hosts/host_legs.hpp"

#include <algorithm>

namespace symm {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kLine = 64;
constexpr std::size_t kBlock = std::size_t{1} << 20;

// A rank that waits for its leader hears from it why the link failed, rather than that it is late.
constexpr milliseconds kLocalGrace{250};

constexpr std::size_t kMiB = std::size_t{1} << 20;

// reduce_scatter takes the most: for each of two chunks a share of every host, and one from each
// other host (HostLegs::of_each_host from 8 hosts on).
std::size_t share_of_chunk(int hosts) { return hosts <= 4 ? 4 * kMiB : 2 * kMiB; }

ReduceOp op_over_hosts(ReduceOp op) { return op == ReduceOp::kPreMulSum ? ReduceOp::kSum : op; }

}  // namespace

HostLimits gpu_limits(int hosts) {
  return {.leader_bytes = 0,
          .leader_broadcast_bytes = 0,
          .share_bytes = share_of_chunk(hosts),
          .whole_shares = kMiB / 4,
          .message_bytes = 256 * kMiB};
}

// Broadcasts of 8 and 16 MiB without copies, 2 hosts of 2 ranks on 2 cores, medians of three runs:
// by leaders 4.3 and 7.5 ms, by all rails 4.6 and 7.8. With copies a leader keeps the tensor once
// for every other host.
HostLimits cpu_limits(int hosts, bool few_cores, bool copies) {
  HostLimits limits;
  limits.share_bytes = share_of_chunk(hosts);
  if (few_cores) limits.leader_broadcast_bytes *= copies ? 4 : 16;
  return limits;
}

HostLegs::HostLegs(const HostLayout& layout, int rank, RankNames names, LegSpace& space,
                   const HostLimits& limits, std::atomic<int>& awaited)
    : layout_(layout),
      rank_(rank),
      host_(layout.host_of[static_cast<std::size_t>(rank)]),
      place_(layout.local_of[static_cast<std::size_t>(rank)]),
      names_(std::move(names)),
      space_(space),
      limits_(limits),
      awaited_(awaited),
      memory_([&space](std::size_t bytes) { return space.allocate(bytes); },
              limits.share_bytes + kLine) {
  for (int peer = 0; leads() && peer < layout_.world_size(); ++peer) {
    if (!is_here(peer) && place_of(peer) == 0) leaders_.push_back(peer);
  }
}

std::string HostLegs::text_of_rank(int rank) const {
  return text_of(names_.name(rank), " on host ",
                 layout_.names[static_cast<std::size_t>(host_of(rank))]);
}

std::size_t HostLegs::of_each_host(std::size_t bytes) const {
  constexpr std::size_t kHosts = 8;
  const auto hosts = static_cast<std::size_t>(layout_.host_count());
  return bytes * kHosts / std::max(hosts, kHosts);
}

std::vector<Part> HostLegs::rail_parts(const void* base, std::size_t begin, std::size_t count,
                                       std::size_t element_bytes) const {
  std::vector<Part> parts(here().size());
  for (std::size_t place = 0; place < parts.size(); ++place) {
    const Share share = rail_share(count, static_cast<int>(place));
    if (share.count == 0) continue;
    parts[place] = {at_byte(base, (begin + share.begin) * element_bytes), share.count};
  }
  return parts;
}

void HostLegs::begin(milliseconds timeout, const CallNote& note) {
  deadline_ = Deadline(timeout);
  note_ = note;
  call_ = hash_of(note);
  memory_.take_all_back();
}

milliseconds HostLegs::left() const {
  return std::max(milliseconds(1), std::chrono::duration_cast<milliseconds>(deadline_.remaining()));
}

void HostLegs::run_local(CollectiveArgs args) {
  leg_ = "the leg inside the host";
  args.layout = call_;
  space_.run_local(args, left() + kLocalGrace);
}

std::byte* HostLegs::Blocks::take(std::size_t bytes) {
  const std::size_t whole = std::max(kLine, (bytes + kLine - 1) / kLine * kLine);
  for (; block_ < blocks_.size(); ++block_, used_ = 0) {
    if (blocks_[block_].size() - used_ < whole) continue;
    std::byte* const taken = blocks_[block_].data() + used_;
    used_ += whole;
    return taken;
  }
  const std::size_t shares = (whole + share_ - 1) / share_;
  blocks_.push_back(allocate_(whole <= kBlock ? kBlock : shares * share_));
  used_ = whole;
  return blocks_.back().data();
}

std::unique_ptr<HostTransfer> HostLegs::start(Messages to, Messages from, std::uint32_t call) {
  leg_ = "the leg between hosts";
  const auto is_empty = [](const HostMessage& message) { return message.bytes.empty(); };
  std::erase_if(to, is_empty);
  std::erase_if(from, is_empty);
  return to.empty() && from.empty() ? nullptr : space_.start(to, from, call);
}

std::unique_ptr<HostTransfer> HostLegs::exchange(Messages to, Messages from,
                                                 const std::function<void()>& meanwhile) {
  std::unique_ptr<HostTransfer> transfer = start(std::move(to), std::move(from));
  meanwhile();
  return transfer;
}

void HostLegs::finish(std::unique_ptr<HostTransfer>& transfer) {
  if (!transfer) return;
  leg_ = "the leg between hosts";
  transfer->wait(left(), awaited_);
  awaited_.store(-1, std::memory_order_relaxed);
  transfer.reset();
}

void HostLegs::fold(const CollectiveArgs& args, const std::vector<const void*>& of_hosts,
                    void* result, std::size_t count) {
  if (count == 0) return;
  space_.fold({.dtype = args.dtype,
               .op = op_over_hosts(args.op),
               .divisor = layout_.world_size(),
               .sources = of_hosts,
               .result = result,
               .count = count});
}

}  // namespace symm
