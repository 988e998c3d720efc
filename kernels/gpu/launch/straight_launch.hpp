// Which launches the kernels that go straight on carry out, of collectives (NOTE [Few tiles] in
// kernels/gpu/wire/few_tiles.cuh), with a norm (few_rows.cuh), and of messages (lone_message.cuh),
// and their parameters. Host.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "kernels/gpu/interface/call_params.hpp"
#include "kernels/gpu/interface/few_tiles_params.hpp"
#include "kernels/gpu/interface/kernel_table.hpp"
#include "kernels/gpu/interface/lone_message_params.hpp"
#include "kernels/gpu/interface/norm_params.hpp"
#include "kernels/gpu/launch/launch_params.hpp"
#include "kernels/gpu/launch/norm_launch.hpp"
#include "kernels/protocol/device_layout.hpp"

namespace symm {

// Where every warp has at most one tile of every piece, or there is a kernel of several. What is
// asked is what this rank knows: its peers may launch another kernel for the same call.
inline bool has_few_tiles_a_warp(const WireLaunch& launch, const CollectiveParams& call,
                                 WireKind wire, int rank, int world_size, int ranks_of_gpu) {
  if (call.premultiplies) return false;
  const bool is_one_round = launch.tiles_per_block <= few_tiles_warps(world_size);
  if (!is_one_round && tiles_of_round(world_size) == 0) return false;
  // A larger block may fill a multiprocessor (NOTE [Blocks of a multiprocessor]).
  const bool is_large = launch.tiles_per_block > kWireTiles;
  if (is_large && static_cast<int>(launch.blocks) * ranks_of_gpu > kMostBulkBlocksOfGpu) {
    return false;
  }
  if (launch.divides_shares) return true;  // tiles_per_block is of the own share too
  const std::uint64_t reach =
      std::uint64_t{launch.blocks} * launch.tiles_per_block * wire_tile(wire).bytes;
  return !launch.copies_own || launch.send[static_cast<std::size_t>(rank)].bytes <= reach;
}

// A set of ranks as one of peers, by their order among the others.
inline std::uint32_t peers_in(std::uint64_t ranks, int rank) {
  const std::uint64_t below = ranks & ((1ull << rank) - 1);
  return static_cast<std::uint32_t>(below | ranks >> (rank + 1) << rank);
}

template <int kPeers>
FewTilesParams<kPeers> few_tiles_params(const WireLaunch& launch, const CollectiveParams& call,
                                        const LaunchContext& context) {
  const GroupKernelsConfig& config = context.config;
  const DeviceLayout& layout = config.layout;
  const int rank = config.rank;
  std::byte* const own = context.group.segments[rank];
  const auto senders = static_cast<std::uint64_t>(wire_senders(config.world_size));
  FewTilesParams<kPeers> params{};
  const auto piece = [&](const std::vector<RoutePiece>& pieces, int of_rank) {
    const auto index = static_cast<std::size_t>(of_rank);
    if (index >= pieces.size()) return WirePiece{};  // of rows, NormParams say what is sent
    const RoutePiece& each = pieces[index];
    return WirePiece{each.data, static_cast<std::uint32_t>(each.bytes), each.tiles_of_block};
  };
  for (int p = 0; p < kPeers; ++p) {
    const int peer = p + (p >= rank ? 1 : 0);
    const auto box_of = [&](int sender) {
      return layout.wire_boxes +
             (senders == 1 ? 0 : static_cast<std::uint64_t>(sender) * layout.wire_box_bytes);
    };
    std::byte* const theirs = context.group.segments[peer];
    params.peers[p] = {theirs + box_of(rank), own + box_of(peer),
                       reinterpret_cast<std::uint64_t*>(theirs + layout.wire_done) +
                           static_cast<std::uint64_t>(rank) * layout.wire_blocks,
                       piece(launch.send, launch.sends_same ? rank : peer),
                       piece(launch.take, peer)};
  }
  const bool uses_own = launch.combines || launch.copies_own;
  if (uses_own) params.own_send = piece(launch.send, rank);
  params.own_take = piece(launch.take, rank);
  params.local = reinterpret_cast<LocalState*>(own + layout.local);
  params.page = context.group.page;
  params.done = reinterpret_cast<const std::uint64_t*>(own + layout.wire_done);
  params.timeout_ns = timeout_ns(context.options);
  params.poison = call.poison;
  params.box_step = static_cast<std::uint32_t>(senders * layout.wire_box_bytes);
  params.box_blocks = static_cast<std::uint32_t>(layout.wire_blocks);
  params.tiles_per_block = launch.tiles_per_block;
  params.share_blocks = launch.share_blocks;
  params.poll_period = config.poll_period;
  for (int hop = 0; hop < 2; ++hop) {
    params.sends[hop] = peers_in(launch.sends[hop], rank);
    params.hears[hop] = peers_in(launch.hears[hop], rank);
  }
  params.stores = peers_in(launch.stores, rank);
  params.divisor = call.divisor;
  params.rank = static_cast<std::uint8_t>(rank);
  params.root = static_cast<std::uint8_t>(call.root > rank ? call.root - 1 : call.root);
  params.combines = launch.combines;
  params.relays = launch.relays;
  params.copies_own = launch.copies_own;
  params.stores_own = (launch.stores >> rank & 1) != 0;
  params.ends_call = launch.ends_call;
  params.counts_calls = config.counts_wire_calls;
  return params;
}

// Whether every piece begins and ends at a multiple of 16 bytes.
template <int kPeers>
bool has_whole_units(const FewTilesParams<kPeers>& params) {
  const auto is_whole = [](const WirePiece& piece) {
    return ((reinterpret_cast<std::uintptr_t>(piece.data) | piece.bytes) % 16) == 0 ||
           piece.bytes == 0;
  };
  return is_whole(params.own_send) && is_whole(params.own_take) &&
         std::all_of(
             std::begin(params.peers), std::end(params.peers),
             [&](const FewTilesPeer& peer) { return is_whole(peer.send) && is_whole(peer.take); });
}

// Puts such a kernel on the stream of `context`; false where there is none for this launch.
bool start_few_tiles(const WireKernels& kernels, const WireLaunch& launch,
                     const CollectiveParams& call, const LaunchContext& context, int ranks_of_gpu);

// Which of few_rows_kernel takes a launch that fits_norm_launch() has set up, by index of
// kFewRowsTiles; -1: none. What is asked is what this rank knows: its peers may launch another
// kernel for the same call.
inline int few_rows_number(const WireLaunch& launch, const NormParams& norm, int ranks_of_gpu) {
  if (!has_whole_rows(norm)) return -1;
  // A block may fill a multiprocessor, and all must be resident.
  if (static_cast<int>(launch.blocks) * ranks_of_gpu > kMostBulkBlocksOfGpu) return -1;
  const bool is_part = norm.rows_per_block == 0;
  const bool is_row = norm.rows_per_block == 1 && norm.row_parts == 1;
  if (!is_part && !is_row) return 2;
  return (is_part ? norm.part_bytes : norm.row_bytes) <= kNormThreads * 16 ? 0 : 1;
}
// Puts it on the stream of `context`; false where there is none.
bool start_few_rows(const NormKernels& kernels, const WireLaunch& launch,
                    const CollectiveParams& call, const LaunchContext& context,
                    const NormParams& norm, int ranks_of_gpu);

inline std::span<const TransferGroup> groups_of(const TransferParams& transfer) {
  return {transfer.groups, static_cast<std::size_t>(transfer.group_count)};
}

// Where messages go by lines, and none follows another. What is asked is what this rank knows: the
// other end may launch another kernel for the same message.
inline bool are_lone_messages(const TransferParams& transfer, int ranks_of_gpu) {
  const bool is_many = transfer.forms == MessageForms::kManyLineBoxes;
  if (!is_many && transfer.forms != MessageForms::kLineBoxes) return false;
  if (transfer.own.bytes > 0) return false;
  if (transfer.group_count < 1 || transfer.group_count > kMostLoneMessages) return false;
  // Larger blocks fill a multiprocessor, and all must be resident.
  const int blocks = transfer.blocks * transfer.group_count;
  if (is_many && blocks * ranks_of_gpu > kMostBulkBlocksOfGpu) return false;
  return std::ranges::all_of(groups_of(transfer),
                             [](const TransferGroup& group) { return group.count == 1; });
}

inline std::uint64_t tiles_of_part(const LoneMessage& message) {
  return divided_up(sizeof(BoxHeader) + message.part_bytes, wire_tile(WireKind::kLine).bytes);
}

inline bool have_few_boxes(std::span<const LoneMessage> messages) {
  return std::ranges::all_of(messages, [](const LoneMessage& message) {
    return divided_up(tiles_of_part(message), message.box_tiles) <= kMostLoneBoxes;
  });
}

// Warps of a block whose warps take several tiles at once: as many as the largest box needs, in
// rounds of equal length.
inline unsigned warps_of_lone(std::span<const LoneMessage> messages) {
  unsigned warps = 1;
  for (const LoneMessage& message : messages) {
    const std::uint64_t tiles = tiles_of_part(message);
    const std::uint64_t of_box = std::min<std::uint64_t>(tiles, message.box_tiles);
    const std::uint64_t rounds = divided_up(of_box, kMostLoneWarps * kLoneTilesAtOnce);
    warps = std::max(warps, static_cast<unsigned>(divided_up(of_box, rounds * kLoneTilesAtOnce)));
  }
  return warps;
}

// Whether every message begins and ends at a multiple of 16 bytes.
inline bool has_whole_messages(const TransferParams& transfer) {
  return std::ranges::all_of(groups_of(transfer), [&](const TransferGroup& group) {
    const TransferItem& item = transfer.items[group.first];
    return (reinterpret_cast<std::uintptr_t>(item.data) | item.bytes) % 16 == 0 || item.bytes == 0;
  });
}

// Addresses of the device's memory, none of which is read here.
inline LoneMessage lone_message(const TransferParams& transfer, const TransferGroup& group,
                                const GroupParams& params) {
  const DeviceLayout& layout = params.layout;
  const TransferItem& item = transfer.items[group.first];
  const int tag = group.tag_channel;
  const auto peer = static_cast<std::size_t>(group.peer);
  const bool is_send = group.is_send != 0;
  const int direction = is_send ? 0 : 1;
  std::byte* const own = params.segments[params.rank];
  std::byte* const theirs = params.segments[peer];
  auto& local = *reinterpret_cast<LocalState*>(own + layout.local);
  // Of memory at `owner`, which the other one fills.
  const auto [owner, sender] = is_send ? std::pair<int, int>(group.peer, params.rank)
                                       : std::pair<int, int>(params.rank, group.peer);
  const auto bytes = static_cast<std::uint32_t>(item.bytes);
  const std::uint32_t channels = layout.p2p_channels_of(bytes, tag, group.wire);
  const auto share = static_cast<std::uint32_t>(divided_up(item.bytes, channels));
  const auto first_channel = static_cast<std::size_t>(tag) * kMostP2pChannelsPerTag;
  P2pCounter& counter = local.p2p_channels[peer][first_channel];
  const auto freed_by = static_cast<std::size_t>(is_send ? group.peer : params.rank);
  LoneMessage message{};
  message.data = static_cast<std::byte*>(item.data);
  message.tag = item.tag;
  message.bytes = bytes;
  message.part_bytes =
      channels == 1 ? bytes : static_cast<std::uint32_t>(align_up(share, kCacheLine));
  message.boxes =
      params.segments[owner] + layout.p2p_box(sender > owner ? sender - 1 : sender, tag, 0, 0);
  message.box_bytes = layout.p2p_box_bytes(tag);
  message.box_tiles = layout.p2p_box_tiles(tag, group.wire);
  message.is_send = is_send;
  message.peer = group.peer;
  message.dtype = transfer.dtypes[group.first];
  message.count = is_send ? &counter.sent : &counter.received;
  message.freed = reinterpret_cast<std::uint32_t*>((is_send ? own : theirs) + layout.p2p_freed) +
                  freed_by * kP2pChannels + first_channel;
  message.chunks = &local.message_chunks[peer][tag][direction];
  message.ended = &local.messages[peer][tag][direction];
  message.ticket = &local.tag_tickets[peer][tag][direction];
  message.entered = &params.page->messages_entered[peer][tag][direction];
  message.completed = &params.page->messages_completed[peer][tag][direction];
  message.signals =
      reinterpret_cast<const MessageSignal*>(own + layout.message_signal(group.peer, tag, 0));
  message.slots = layout.message_slots_of_tag;
  return message;
}

inline LoneMessageParams lone_message_params(const TransferParams& transfer,
                                             const GroupParams& group, std::uint64_t timeout_ns,
                                             std::uint32_t poll_period) {
  LoneMessageParams params{};
  params.local = reinterpret_cast<LocalState*>(group.segments[group.rank] + group.layout.local);
  params.page = group.page;
  params.timeout_ns = timeout_ns;
  params.poll_period = poll_period;
  params.poisons = transfer.poisons;
  std::ranges::transform(groups_of(transfer), params.messages, [&](const TransferGroup& each) {
    return lone_message(transfer, each, group);
  });
  return params;
}

// Puts such a kernel of messages on the stream of `context`; false where the launch is for others.
bool start_lone_messages(const TransferParams& transfer, const LaunchContext& context,
                         int ranks_of_gpu);

}  // namespace symm
