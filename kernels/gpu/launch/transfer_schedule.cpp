#include "kernels/gpu/launch/transfer_schedule.hpp"

#include <algorithm>
#include <tuple>

namespace symm {

namespace {

// Blocks of a launch must all be resident.
constexpr int kMaxGroupsOfLaunch = 48;

}  // namespace

TransferSchedule::TransferSchedule(int rank, int world_size)
    : rank_(rank),
      world_size_(world_size),
      counts_(static_cast<std::size_t>(world_size) * 2 * kTagChannels) {}

void TransferSchedule::list(std::span<const TransferOp> ops, bool collective) {
  entries_.clear();
  own_.clear();
  std::fill(counts_.begin(), counts_.end(), 0);
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const TransferOp& op = ops[i];
    if (op.peer == rank_) {
      if (!op.is_send) continue;
      void* const output = ops[i + 1].data;
      if (op.bytes > 0 && op.data != output) own_.push_back({op.data, output, op.bytes});
      continue;
    }
    const int group = collective ? kAllToAllTagChannel : tag_channel_of(op.tag);
    const int steps = op.is_send ? op.peer - rank_ : rank_ - op.peer;
    const int distance = (steps + world_size_) % world_size_;
    const auto key = (static_cast<std::size_t>(op.peer) * 2 + (op.is_send ? 0 : 1)) * kTagChannels +
                     static_cast<std::size_t>(group);
    entries_.push_back({distance, counts_[key]++, static_cast<std::uint32_t>(i), group});
  }
  const auto order = [&ops](const Entry& a, const Entry& b) {
    return std::tuple(a.distance, a.number, a.tag_channel, ops[a.op].is_send) <
           std::tuple(b.distance, b.number, b.tag_channel, ops[b.op].is_send);
  };
  std::sort(entries_.begin(), entries_.end(), order);
}

// Moves entries from `first` on into params_ until it is full; returns the first that is left.
std::size_t TransferSchedule::fill(std::span<const TransferOp> ops, std::size_t first) {
  const auto same_group = [&ops](const Entry& a, const Entry& b) {
    return ops[a.op].peer == ops[b.op].peer && ops[a.op].is_send == ops[b.op].is_send &&
           a.tag_channel == b.tag_channel;
  };
  // The number that fits, by messages and by groups.
  std::size_t end = first;
  int groups = 0;
  while (end < entries_.size() && end - first < kMaxTransferItems) {
    const auto seen =
        std::any_of(entries_.begin() + static_cast<std::ptrdiff_t>(first),
                    entries_.begin() + static_cast<std::ptrdiff_t>(end),
                    [&](const Entry& earlier) { return same_group(earlier, entries_[end]); });
    if (!seen && groups == kMaxGroupsOfLaunch) break;
    groups += seen ? 0 : 1;
    ++end;
  }
  // Sorts the messages of one group together, in order of their numbers.
  std::stable_sort(entries_.begin() + static_cast<std::ptrdiff_t>(first),
                   entries_.begin() + static_cast<std::ptrdiff_t>(end),
                   [&ops](const Entry& a, const Entry& b) {
                     return std::tuple(ops[a.op].peer, ops[a.op].is_send, a.tag_channel, a.number) <
                            std::tuple(ops[b.op].peer, ops[b.op].is_send, b.tag_channel, b.number);
                   });
  params_.group_count = 0;
  for (std::size_t i = first; i < end; ++i) {
    const TransferOp& op = ops[entries_[i].op];
    const auto item = static_cast<std::uint16_t>(i - first);
    params_.items[item] = {op.data, op.bytes, op.tag};
    if (i > first && same_group(entries_[i - 1], entries_[i])) {
      params_.groups[params_.group_count - 1].count += 1;
    } else {
      params_.groups[params_.group_count++] = {
          static_cast<std::int16_t>(op.peer), static_cast<std::int8_t>(op.is_send ? 1 : 0),
          static_cast<std::int8_t>(entries_[i].tag_channel), item, 1};
    }
  }
  return end;
}

void TransferSchedule::plan(std::span<const TransferOp> ops, bool collective,
                            const std::function<void(const TransferParams&)>& launch) {
  params_.collective = collective;
  list(ops, collective);
  if (!collective && entries_.empty() && own_.empty()) return;
  std::size_t next = 0;
  std::size_t next_own = 0;
  do {
    next = fill(ops, next);
    const OwnCopy own = next_own < own_.size() ? own_[next_own++] : OwnCopy{nullptr, nullptr, 0};
    params_.own_input = own.input;
    params_.own_output = own.output;
    params_.own_bytes = own.bytes;
    params_.ends_call = next == entries_.size() && next_own == own_.size();
    launch(params_);
  } while (!params_.ends_call);
}

}  // namespace symm
