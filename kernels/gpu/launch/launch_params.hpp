// The parameters of a launch over a wire or by lanes, for kernels of kRanks ranks at most. Host.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/core/collective.hpp"
#include "kernels/gpu/interface/bulk_params.hpp"
#include "kernels/gpu/interface/call_params.hpp"
#include "kernels/gpu/interface/group_kernels.hpp"
#include "kernels/gpu/interface/wire_params.hpp"
#include "kernels/gpu/launch/wire_route.hpp"

namespace symm {

// By which pieces that go by lanes are divided.
inline constexpr std::uint32_t kPieceUnit = 512;

struct LaunchContext {
  const GroupKernelsConfig& config;
  const GroupParams& group;
  WireKind wire;
  const LaunchOptions& options;
  bool has_table = false;  // set_segment() has been called
};

inline std::uint64_t timeout_ns(const LaunchOptions& options) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(options.timeout.count(), 0));
}

// What WireParams and BulkParams have alike.
template <class Params>
void set_call(Params& params, const WireLaunch& launch, const CollectiveParams& call,
              const LaunchContext& context) {
  const GroupKernelsConfig& config = context.config;
  params.rank = config.rank;
  params.world_size = config.world_size;
  params.root = call.root;
  params.divisor = call.divisor;
  params.sends_same = launch.sends_same;
  params.combines = launch.combines;
  params.relays = launch.relays;
  params.copies_own = launch.copies_own;
  params.premultiplies = call.premultiplies;
  params.counts_calls = config.counts_wire_calls;
  params.dtype = call.dtype;
  params.op = call.op;
  params.poll_period = config.poll_period;
  params.poison = call.poison;
  params.timeout_ns = timeout_ns(context.options);
  params.local = config.layout.local;
  params.page = context.group.page;
  std::copy_n(context.group.segments, config.world_size, params.segments);
}

template <int kRanks>
WireParams<kRanks> wire_params(const WireLaunch& launch, const CollectiveParams& call,
                               const LaunchContext& context) {
  const GroupKernelsConfig& config = context.config;
  const DeviceLayout& layout = config.layout;
  WireParams<kRanks> params{};
  set_call(params, launch, call, context);
  params.ends_call = launch.ends_call;
  params.tiles_per_block = launch.tiles_per_block;
  params.box_tiles = layout.wire_box_tiles(context.wire);
  params.factor = std::bit_cast<std::uint64_t>(call.factor);
  params.stores = launch.stores;
  std::copy_n(launch.sends, 2, params.sends);
  std::copy_n(launch.hears, 2, params.hears);
  params.done = layout.wire_done;
  params.boxes = layout.wire_boxes;
  params.box_bytes = layout.wire_box_bytes;
  params.box_blocks = layout.wire_blocks;
  const auto piece = [&](const RoutePiece& each) {
    const std::uint32_t tile = wire_tile(context.wire).bytes;
    return WirePiece{each.data, static_cast<std::uint32_t>(each.bytes),
                     static_cast<std::uint32_t>((each.bytes + tile - 1) / tile)};
  };
  std::transform(launch.send.begin(), launch.send.end(), params.send, piece);
  std::transform(launch.take.begin(), launch.take.end(), params.take, piece);
  return params;
}

// Whether ranks both send and place in a lane, or the call has a second hop.
constexpr bool has_two_lists(CollectiveKind kind, int world_size) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kAllGather:
    case CollectiveKind::kAllToAll:
      return true;
    case CollectiveKind::kReduce:
    case CollectiveKind::kBroadcast:
      return world_size > 2;
    default:
      return false;
  }
}

template <int kRanks>
BulkParams<kRanks> bulk_params(const WireLaunch& launch, const CollectiveParams& call,
                               const LaunchContext& context) {
  const GroupKernelsConfig& config = context.config;
  const DeviceLayout& layout = config.layout;
  const int world = config.world_size;
  BulkParams<kRanks> params{};
  set_call(params, launch, call, context);
  params.roles = lane_roles(world, has_two_lists(call.kind, world));
  params.slot_bytes = static_cast<std::uint32_t>(layout.bulk_slot_bytes);
  params.factor = call.factor;
  params.second_hop = launch.sends[1];
  params.signals = layout.bulk_signals;
  params.counts = layout.bulk_counts;
  params.slots = layout.bulk_slots;
  params.table = layout.table;
  params.has_table = context.has_table;
  params.output = context.options.output;
  params.second_hop_lanes = static_cast<std::uint32_t>(layout.bulk_second_hop);
  // Each rank begins with its neighbour, so that no two send to one at a time.
  const std::uint64_t placed = launch.hears[launch.combines || launch.relays ? 1 : 0];
  for (int i = 1; i < world; ++i) {
    const int to = (config.rank + i) % world;
    if ((launch.sends[0] >> to & 1) != 0) {
      params.senders[params.sender_count++] = static_cast<std::uint8_t>(to);
    }
    const int from = (config.rank + world - i) % world;
    if ((placed >> from & 1) != 0) {
      params.placers[params.placer_count++] = static_cast<std::uint8_t>(from);
    }
  }
  const auto piece = [](const RoutePiece& each) { return BulkPiece{each.data, each.bytes}; };
  std::transform(launch.send.begin(), launch.send.end(), params.send, piece);
  std::transform(launch.take.begin(), launch.take.end(), params.take, piece);
  return params;
}

}  // namespace symm
