#include "backend/engine/hosts/host_legs.hpp"

#include <algorithm>

#include "backend/engine/communicator.hpp"
#include "kernels/cpu/reduce_kernels.hpp"

namespace symm {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kLine = 64;
constexpr std::size_t kBlock = std::size_t{1} << 20;

// A rank that waits for its leader hears from it why the link failed, rather than that it is late.
constexpr milliseconds kLocalGrace{250};

ReduceOp op_over_hosts(ReduceOp op) { return op == ReduceOp::kPreMulSum ? ReduceOp::kSum : op; }

}  // namespace

HostLegs::HostLegs(const HostLayout& layout, int rank, RankNames names, Communicator& local,
                   HostLink& link, const HostLimits& limits)
    : layout_(layout),
      rank_(rank),
      host_(layout.host_of[static_cast<std::size_t>(rank)]),
      place_(layout.local_of[static_cast<std::size_t>(rank)]),
      names_(std::move(names)),
      communicator_(local),
      link_(link),
      limits_(limits) {
  for (int peer = 0; peer < layout_.world_size(); ++peer) {
    if (is_here(peer)) continue;
    const bool for_us = stand_in(host_of(peer)) == peer;
    const bool by_us = layout_.stand_in(host_, place_of(peer)) == rank_;
    if (for_us || by_us) rail_peers_.push_back(peer);
    if (leads() && place_of(peer) == 0) leaders_.push_back(peer);
  }
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

void HostLegs::begin(milliseconds timeout, std::uint32_t call) {
  deadline_ = Deadline(timeout);
  call_ = call;
  block_ = 0;
  used_ = 0;
}

milliseconds HostLegs::left() const {
  return std::max(milliseconds(1), std::chrono::duration_cast<milliseconds>(deadline_.remaining()));
}

void HostLegs::run_local(CollectiveArgs args) {
  leg_ = "the leg inside the host";
  args.layout = call_;
  communicator_.run(args, left() + kLocalGrace);
}

std::byte* HostLegs::take(std::size_t bytes) {
  const std::size_t whole = std::max(kLine, (bytes + kLine - 1) / kLine * kLine);
  for (; block_ < blocks_.size(); ++block_, used_ = 0) {
    if (blocks_[block_].size() - used_ < whole) continue;
    std::byte* const taken = blocks_[block_].data() + used_;
    used_ += whole;
    return taken;
  }
  blocks_.push_back(link_.allocate(std::max(kBlock, whole)));
  used_ = whole;
  return blocks_.back().data();
}

std::unique_ptr<HostTransfer> HostLegs::start(Messages to, Messages from) {
  leg_ = "the leg between hosts";
  const auto is_empty = [](const HostMessage& message) { return message.bytes.empty(); };
  std::erase_if(to, is_empty);
  std::erase_if(from, is_empty);
  return to.empty() && from.empty() ? nullptr : link_.start(to, from);
}

void HostLegs::finish(std::unique_ptr<HostTransfer>& transfer) {
  if (!transfer) return;
  leg_ = "the leg between hosts";
  transfer->wait(left());
  transfer.reset();
}

void HostLegs::fold(const CollectiveArgs& args, const std::vector<const void*>& of_hosts,
                    void* result, std::size_t count) const {
  if (count == 0) return;
  const ReduceKernels& kernels = reduce_kernels(args.dtype, op_over_hosts(args.op), selected_isa());
  kernels.reduce(result, of_hosts.data(), static_cast<int>(of_hosts.size()), nullptr,
                 layout_.world_size(), count);
}

}  // namespace symm
