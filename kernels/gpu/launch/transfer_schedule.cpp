#include "kernels/gpu/launch/transfer_schedule.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "kernels/gpu/interface/wire_params.hpp"

namespace symm {

namespace {

// Blocks of a launch must all be resident.
constexpr int kMaxGroupsOfLaunch = 48;
constexpr int kMaxBlocksOfLaunch = 192;
// Of all ranks that share a GPU.
constexpr int kMostBlocksOfGpu = 256;
// What a rank sends and receives of one order always fits.
constexpr int kLeastBlocksOfLaunch = 2 * kMostP2pChannelsPerTag;
static_assert(kLeastBlocksOfLaunch <= kMaxBlocksOfLaunch && kMaxGroupsOfLaunch >= 2);

// Of each group of a launch, the busiest of which has `chunks`.
std::int16_t blocks_for(std::uint64_t chunks, std::uint32_t most_warps, int groups, int channels,
                        int most_blocks) {
  const std::uint64_t warps = std::min<std::uint64_t>(chunks, most_warps);
  const std::uint64_t blocks = (warps + kTransferWarps - 1) / kTransferWarps;
  const auto room = static_cast<std::uint64_t>(most_blocks / std::max(groups, 1));
  return static_cast<std::int16_t>(
      std::max({static_cast<int>(std::min(blocks, room)), channels, 1}));
}

}  // namespace

TransferSchedule::TransferSchedule(int rank, int world_size, const DeviceLayout& layout,
                                   bool poisons, int most_blocks)
    : rank_(rank),
      world_size_(world_size),
      layout_(layout),
      most_blocks_(blocks_of_messages(most_blocks)),
      wires_(static_cast<std::size_t>(world_size), WireKind::kLL),
      counts_(static_cast<std::size_t>(world_size) * 2 * kTagChannels) {
  params_.poisons = poisons;
  set_ranks_of_gpu(1);
}

void TransferSchedule::set_ranks_of_gpu(int ranks) {
  most_blocks_of_launch_ =
      std::clamp(kMostBlocksOfGpu / ranks, kLeastBlocksOfLaunch, kMaxBlocksOfLaunch);
}

void TransferSchedule::list(std::span<const TransferOp> ops) {
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
    const TransferGroup group{static_cast<std::int8_t>(op.peer),
                              static_cast<std::int8_t>(op.is_send ? 1 : 0),
                              static_cast<std::int8_t>(tag_channel_of(op.tag)),
                              wires_[static_cast<std::size_t>(op.peer)],
                              0,
                              0};
    const int steps = op.is_send ? op.peer - rank_ : rank_ - op.peer;
    const auto key = (op.peer * 2 + (op.is_send ? 0 : 1)) * kTagChannels + int{group.tag_channel};
    entries_.push_back({(steps + world_size_) % world_size_,
                        counts_[static_cast<std::size_t>(key)]++,
                        group,
                        {op.data, op.bytes, op.tag},
                        op.dtype});
  }
  std::ranges::sort(entries_, {}, [](const Entry& entry) {
    return std::tuple(entry.order(), entry.group.is_send);
  });
}

// P2p channels that a message takes; 0 where it goes as chunks.
int TransferSchedule::channels_of(const Entry& entry) const {
  const std::uint64_t bytes = entry.item.bytes;
  const auto [tag_channel, wire] = std::pair(entry.group.tag_channel, entry.group.wire);
  if (!layout_.goes_in_boxes(bytes, tag_channel, wire)) return 0;
  return static_cast<int>(layout_.p2p_channels_of(bytes, tag_channel, wire));
}

// How many of `rest` fit in a launch, by messages, by groups and by blocks for their p2p channels.
std::size_t TransferSchedule::fitting(std::span<const Entry> rest) const {
  std::size_t count = 0;
  int channels = 1;
  for (int groups = 0; count < rest.size() && count < kMaxTransferItems; ++count) {
    const auto earlier = rest.first(count);
    const bool seen = std::ranges::find(earlier, rest[count].group, &Entry::group) != earlier.end();
    if (!seen && groups++ == kMaxGroupsOfLaunch) break;
    channels = std::max(channels, channels_of(rest[count]));
    if (groups * channels > most_blocks_of_launch_) break;
  }
  const bool divides_two =
      count > 0 && count < rest.size() && rest[count - 1].order() == rest[count].order();
  return divides_two ? count - 1 : count;
}

// Moves entries from `first` on into params_ until it is full; returns the first that is left.
std::size_t TransferSchedule::fill(std::size_t first) {
  const std::span<Entry> rest = std::span(entries_).subspan(first);
  const std::size_t count = fitting(rest);
  // Sorts the messages of one group together, in order of their numbers.
  const std::span<Entry> launch = rest.first(count);
  std::ranges::sort(launch, {},
                    [](const Entry& entry) { return std::tuple(entry.group, entry.number); });
  params_.group_count = 0;
  params_.channels = 0;
  std::size_t in_boxes[kWireKindCount] = {};
  std::uint64_t most_chunks = 0;
  std::uint64_t chunks_of_group = 0;
  std::uint64_t most_tiles = 1;  // of a part
  std::uint64_t most_of_box = 1;
  bool has_many = false;  // a part that takes several boxes
  for (std::size_t i = 0; i < count; ++i) {
    params_.items[i] = launch[i].item;
    params_.dtypes[i] = launch[i].dtype;
    if (i == 0 || launch[i].group != launch[i - 1].group) {
      TransferGroup& group = params_.groups[params_.group_count++];
      group = launch[i].group;
      group.first = static_cast<std::uint16_t>(i);
      chunks_of_group = 0;
    }
    params_.groups[params_.group_count - 1].count += 1;
    const std::uint64_t bytes = launch[i].item.bytes;
    if (const int of_message = channels_of(launch[i]); of_message > 0) {
      const WireKind wire = launch[i].group.wire;
      ++in_boxes[static_cast<int>(wire)];
      const auto parts = static_cast<std::uint64_t>(of_message);
      const std::uint64_t even = align_up((bytes + parts - 1) / parts, kCacheLine);
      const std::uint64_t of_tile = wire_tile(wire).bytes;
      const std::uint64_t part = std::min(bytes, even);
      const std::uint64_t tiles = (sizeof(BoxHeader) + part + of_tile - 1) / of_tile;
      const std::uint64_t of_box = layout_.p2p_box_tiles(launch[i].group.tag_channel, wire);
      most_tiles = std::max(most_tiles, tiles);
      most_of_box = std::max(most_of_box, std::min(tiles, of_box));
      has_many = has_many || tiles > of_box;
      params_.channels = std::max(params_.channels, static_cast<std::int16_t>(of_message));
    } else {
      chunks_of_group += layout_.message_cut(bytes, launch[i].group.tag_channel).chunks;
      most_chunks = std::max(most_chunks, chunks_of_group);
    }
  }
  const auto [by_ll, by_lines] = std::pair(in_boxes[0], in_boxes[1]);
  const bool is_by_lines = by_lines == count && count > 0;
  const unsigned most_warps = is_by_lines ? kLineBoxWarps : kTransferWarps;
  has_many = has_many || most_tiles > most_warps;
  if (is_by_lines) {
    params_.forms = has_many ? MessageForms::kManyLineBoxes : MessageForms::kLineBoxes;
  } else if (by_ll == count) {
    params_.forms = MessageForms::kLLBoxes;
  } else {
    params_.forms = by_ll + by_lines == 0 ? MessageForms::kChunks : MessageForms::kAny;
  }
  // A thread for each unit of the tiles of boxes, and no more: messages in launches of their own,
  // of several peers and tags, must all be resident. As many as can be for chunks.
  const bool has_chunks = by_ll + by_lines < count;
  const std::uint64_t warps = has_chunks ? kTransferWarps
                              : has_many ? std::min<std::uint64_t>(kTransferWarps, most_of_box)
                                         : most_tiles;
  params_.threads = static_cast<std::int16_t>(kTileThreads * warps);
  const auto most_warps_of_chunks =
      std::min(layout_.message_warps(), kTransferWarps * static_cast<unsigned>(most_blocks_));
  params_.blocks = blocks_for(most_chunks, most_warps_of_chunks, params_.group_count,
                              params_.channels, most_blocks_of_launch_);
  return first + count;
}

void TransferSchedule::plan(std::span<const TransferOp> ops,
                            const std::function<void(const TransferParams&)>& launch) {
  list(ops);
  if (entries_.empty() && own_.empty()) return;
  std::size_t next = 0;
  std::size_t next_own = 0;
  bool is_last = false;
  while (!is_last) {
    next = fill(next);
    params_.own = next_own < own_.size() ? own_[next_own++] : DeviceCopy{};
    if (params_.own.bytes > 0) params_.threads = kTransferThreads;
    is_last = next == entries_.size() && next_own == own_.size();
    launch(params_);
  }
}

}  // namespace symm
