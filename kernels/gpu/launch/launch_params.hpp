// The parameters of a launch over a wire or by lanes, for kernels of kRanks ranks at most. Host.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/core/collective.hpp"
#include "kernels/gpu/interface/bulk_params.hpp"
#include "kernels/gpu/interface/call_params.hpp"
#include "kernels/gpu/interface/group_kernels.hpp"
#include "kernels/gpu/interface/kernel_table.hpp"
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

inline CollectiveParams collective_params(const CollectiveArgs& args,
                                          const GroupKernelsConfig& config,
                                          BufferLocation location) {
  const bool reducing = reduces(args.kind);
  const ReductionRule rule =
      reducing ? reduction_rule(args.dtype, args.op) : ReductionRule{args.dtype, args.op, 1};
  const auto elements = static_cast<std::uint64_t>(rule.elements);
  CollectiveParams call{};
  call.kind = args.kind;
  call.premultiplies = reducing && args.op == ReduceOp::kPreMulSum;
  call.ends_call = true;
  call.root = args.root;
  call.divisor = reducing && args.op == ReduceOp::kAvg ? config.world_size : 0;
  call.element_bytes = static_cast<std::uint32_t>(dtype_bytes(rule.dtype));
  call.dtype = rule.dtype;
  call.op = rule.op;
  call.input = args.input;
  call.output = args.output;
  call.count = args.count * elements;
  call.location = location;
  call.factor = args.factor;
  call.poison = config.poisons ? poison_of(args.dtype) : 0;
  const std::span<const Part> parts =
      args.input_parts.empty() ? args.output_parts : args.input_parts;
  for (std::size_t r = 0; r < parts.size(); ++r) {
    call.parts[r] = {parts[r].data, parts[r].count * elements};
  }
  return call;
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
  params.copies_own = launch.copies_own;
  params.ends_call = launch.ends_call;
  params.tiles_per_block = launch.tiles_per_block;
  params.share_blocks = launch.share_blocks;
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
    const std::uint64_t tiles = launch.divides_shares
                                    ? each.tiles_of_block
                                    : divided_up(each.bytes, wire_tile(context.wire).bytes);
    return WirePiece{each.data, static_cast<std::uint32_t>(each.bytes),
                     static_cast<std::uint32_t>(tiles)};
  };
  std::transform(launch.send.begin(), launch.send.end(), params.send, piece);
  std::transform(launch.take.begin(), launch.take.end(), params.take, piece);
  return params;
}

// The lanes of a call: the same on all ranks, as its kind, size and blocks are.
struct LaneShape {
  int warps;  // as many as the rank with most of them needs
  int parts;  // into which the peers of a sender or placer are divided, a warp a part
  int hops;
};
constexpr LaneShape lane_shape(CollectiveKind kind, int world_size, int blocks,
                               bool root_combines = true) {
  // Beside a middle one warp for all peers keeps pace. Where all only copy, pairs of ranks should
  // not wait for each other, unless blocks are so few that each needs all its warps; nor for the
  // copy of the own piece, which has a warp of its own.
  constexpr int kFewBlocks = 24;
  const int parts = blocks <= kFewBlocks ? 1 : std::clamp(world_size - 1, 1, kMostLaneWarps / 2);
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return {3, 1, 2};
    case CollectiveKind::kReduce:
      if (!root_combines) return {2, 1, 2};
      return world_size > 2 ? LaneShape{3, 1, 2} : LaneShape{1, 1, 1};
    case CollectiveKind::kReduceScatter:
      return {2, 1, 1};
    case CollectiveKind::kAllGather:
    case CollectiveKind::kAllToAll:
      return {2 * parts + 1, parts, 1};
    case CollectiveKind::kBroadcast:
      return {parts + 1, parts, world_size > 2 ? 2 : 1};
    default:  // gather, scatter: a rank sends or places
      return {parts + 1, parts, 1};
  }
}

struct LaneGrid {
  unsigned blocks;
  int lanes_of_block;
};
// At most `blocks`, and fewer where the group's lanes would leave most warps of a block idle.
inline LaneGrid lane_grid(const LaneShape& shape, const DeviceLayout& layout, int world_size,
                          int blocks) {
  constexpr int kFewWarps = 16;
  const int lanes = static_cast<int>(layout.bulk_lanes) / shape.hops;
  const int most = lanes_of_block(shape.warps, world_size, kMostBulkWarps);
  const int few = std::min(most, (kFewWarps - 1) / shape.warps + 1);
  blocks = std::clamp(blocks, 1, std::max(1, lanes / few));
  return {static_cast<unsigned>(blocks), std::min(most, std::max(1, lanes / blocks))};
}

// What this rank's warps of a lane do. Its own piece is copied by a warp that has nothing else to
// do, or else by one that places, or that sends.
template <int kRanks>
void set_warps(BulkParams<kRanks>& params, const LaneShape& shape, bool copies_own) {
  params.warps_of_lane = static_cast<std::uint8_t>(shape.warps);
  LaneWarp* next = params.warps;
  const auto add = [&](LaneRole role, int parts) {
    for (int part = 0; part < parts; ++part) {
      *next++ = {role, static_cast<std::uint8_t>(part), static_cast<std::uint8_t>(parts)};
    }
  };
  if (params.first_hop != 0) add(kLaneSends, shape.parts);
  if (params.combines || params.relays) add(kLanePasses, 1);
  if (params.placed != 0) add(kLanePlaces, shape.parts);
  if (!copies_own) return;
  const bool has_idle_warp = next - params.warps < shape.warps;
  if (has_idle_warp) ++next;
  next[-1].role |= kLaneCopiesOwn;
}

template <int kRanks>
BulkParams<kRanks> bulk_params(const WireLaunch& launch, const CollectiveParams& call,
                               const LaneShape& shape, int lanes_of_block,
                               const LaunchContext& context) {
  const GroupKernelsConfig& config = context.config;
  const DeviceLayout& layout = config.layout;
  BulkParams<kRanks> params{};
  set_call(params, launch, call, context);
  params.slot_bytes = static_cast<std::uint32_t>(layout.bulk_slot_bytes);
  params.factor = call.factor;
  params.first_hop = launch.sends[0];
  params.second_hop = launch.sends[1];
  params.placed = launch.hears[launch.last_hop()];
  params.lanes_of_block = static_cast<std::uint8_t>(lanes_of_block);
  set_warps(params, shape, launch.copies_own);
  params.signals = layout.bulk_signals;
  params.counts = layout.bulk_counts;
  params.slots = layout.bulk_slots;
  params.table = layout.table;
  params.has_table = context.has_table;
  params.output = context.options.output;
  params.second_hop_lanes = static_cast<std::uint32_t>(layout.bulk_second_hop);
  const auto piece = [](const RoutePiece& each) { return BulkPiece{each.data, each.bytes}; };
  std::transform(launch.send.begin(), launch.send.end(), params.send, piece);
  std::transform(launch.take.begin(), launch.take.end(), params.take, piece);
  return params;
}

}  // namespace symm
