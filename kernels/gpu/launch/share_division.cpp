#include "kernels/gpu/launch/share_division.hpp"

#include <algorithm>

namespace symm {

namespace {

// Of this rank's own share, that a warp copies in a launch over the wire; lanes copy larger ones.
constexpr std::uint64_t most_own_tiles_of_warp(int world) { return world == 2 ? 32 : 16; }

}  // namespace

// Measured of two ranks and of four by lines (docs/experiments.md, "Shares"); of LL, which takes
// twice the bytes, it is estimated.
std::uint64_t most_share_by_wire(const ShareFacts& facts) {
  constexpr std::uint64_t kMiB = 1 << 20;
  const std::uint64_t by_lines = facts.world_size == 2   ? 7 * kMiB
                                 : facts.world_size == 4 ? 7 * kMiB / 4
                                                         : kMiB;
  const std::uint64_t fits = std::uint64_t{facts.box_tiles} *
                             static_cast<std::uint64_t>(facts.most_blocks) *
                             wire_tile(facts.wire).bytes;
  const std::uint64_t by_ll = facts.world_size == 2 ? kMiB : kMiB / 2;
  return std::min(facts.wire == WireKind::kLine ? by_lines : by_ll, fits);
}

ShareDivision::ShareDivision(int world_size) {
  wire_.divides_shares = true;
  const auto world = static_cast<std::size_t>(world_size);
  for (WireLaunch* launch : {&wire_, &lanes_}) {
    launch->send.resize(world);
    launch->take.resize(world);
  }
}

void ShareDivision::divide(const CollectiveArgs& args, const ShareFacts& facts) {
  const auto self = static_cast<std::size_t>(facts.rank);
  const std::size_t element = dtype_bytes(args.dtype);
  const std::uint64_t most_share = most_share_by_wire(facts);
  wire_.share_blocks = 0;
  wire_.tiles_per_block = 1;
  for (WireLaunch* launch : {&wire_, &lanes_}) {
    std::fill(launch->send.begin(), launch->send.end(), RoutePiece{});
    std::fill(launch->take.begin(), launch->take.end(), RoutePiece{});
    launch->sends[0] = launch->hears[0] = 0;
  }
  for (std::size_t peer = 0; peer < static_cast<std::size_t>(facts.world_size); ++peer) {
    if (peer == self) continue;
    for (const bool sends : {true, false}) {
      const Part& part = sends ? args.input_parts[peer] : args.output_parts[peer];
      RoutePiece piece{static_cast<std::byte*>(part.data), part.count * element};
      const bool by_wire = piece.bytes <= most_share;
      WireLaunch& launch = by_wire ? wire_ : lanes_;
      if (by_wire) add_to_grid(piece, facts);
      (sends ? launch.send : launch.take)[peer] = piece;
      (sends ? launch.sends : launch.hears)[0] |= 1ull << peer;
    }
  }
  const Part& own = args.input_parts[self];
  set_own({static_cast<std::byte*>(own.data), own.count * element},
          {static_cast<std::byte*>(args.output_parts[self].data), own.count * element}, facts);
  finish_grid(facts);
}

// A share of few tiles has few blocks, so that those of others need not be launched.
void ShareDivision::add_to_grid(RoutePiece& piece, const ShareFacts& facts) {
  const std::uint64_t tiles = divided_up(piece.bytes, wire_tile(facts.wire).bytes);
  const std::uint64_t least = std::max<std::uint64_t>(divided_up(tiles, facts.box_tiles), 1);
  const std::uint64_t blocks = std::clamp<std::uint64_t>(
      divided_up(tiles, kWireTiles), least, static_cast<std::uint64_t>(facts.most_blocks));
  piece.tiles_of_block = static_cast<std::uint32_t>(divided_up(tiles, blocks));
  wire_.share_blocks = std::max(wire_.share_blocks, static_cast<std::uint32_t>(blocks));
  wire_.tiles_per_block = std::max(wire_.tiles_per_block, piece.tiles_of_block);
}

// Copied by the blocks that there are, where they are enough.
void ShareDivision::set_own(RoutePiece from, RoutePiece to, const ShareFacts& facts) {
  const auto self = static_cast<std::size_t>(facts.rank);
  const bool copies = from.bytes > 0 && from.data != to.data;
  const std::uint64_t tiles = divided_up(from.bytes, wire_tile(facts.wire).bytes);
  std::uint32_t blocks = wire_.share_blocks;
  if (facts.world_size == 1) {
    blocks = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(
        divided_up(tiles, kWireTiles), 1, static_cast<std::uint64_t>(facts.most_blocks)));
  }
  const bool by_wire =
      tiles <= std::uint64_t{blocks} * kWireTiles * most_own_tiles_of_warp(facts.world_size);
  wire_.copies_own = copies && by_wire;
  lanes_.copies_own = copies && !by_wire;
  if (!copies) return;
  WireLaunch& launch = by_wire ? wire_ : lanes_;
  if (by_wire) {
    wire_.share_blocks = blocks;
    from.tiles_of_block = to.tiles_of_block = static_cast<std::uint32_t>(divided_up(tiles, blocks));
    wire_.tiles_per_block = std::max(wire_.tiles_per_block, from.tiles_of_block);
  }
  launch.send[self] = from;
  launch.take[self] = to;
}

void ShareDivision::finish_grid(const ShareFacts& facts) {
  const bool others_may_have_more = facts.world_size > 2;
  const bool ends_idle_blocks = others_may_have_more && facts.wire == WireKind::kLine;
  if (others_may_have_more && !ends_idle_blocks) {
    wire_.share_blocks = static_cast<std::uint32_t>(facts.most_blocks);
  }
  wire_.blocks = wire_.share_blocks + (ends_idle_blocks ? 1 : 0);
  wire_.threads = kTileThreads * std::min(wire_.tiles_per_block, facts.tiles_at_once);
  wire_.stores = wire_.hears[0] | (wire_.copies_own ? 1ull << facts.rank : 0);
  has_lanes_ = lanes_.sends[0] != 0 || lanes_.hears[0] != 0 || lanes_.copies_own;
  has_wire_ = wire_.blocks > 0 || !has_lanes_;
  wire_.ends_call = !has_lanes_;
  if (has_wire_) wire_.blocks = std::max(wire_.blocks, 1u);
}

}  // namespace symm
