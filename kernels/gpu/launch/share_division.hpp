// Which shares of an all_to_all go over the wire and which by lanes (NOTE [Shares] in
// kernels/gpu/wire/route.cuh). Host, free of vendor headers.
#pragma once

#include <cstdint>

#include "kernels/core/collective.hpp"
#include "kernels/gpu/launch/wire_route.hpp"

namespace symm {

// The same on all ranks of the group, but for `rank`.
struct ShareFacts {
  int rank = 0;
  int world_size = 1;
  WireKind wire = WireKind::kLL;
  int most_blocks = 1;
  std::uint32_t box_tiles = 1;
  std::uint32_t tiles_at_once = kWireTiles;  // as in WireFacts
};

// The largest share that goes over the wire: what two ranks exchange decides, each direction by
// itself, as nobody else knows how much that is.
std::uint64_t most_share_by_wire(const ShareFacts& facts);

class ShareDivision {
 public:
  explicit ShareDivision(int world_size);

  // Divides an all_to_all. The launches are valid until the next divide(); null where there is
  // nothing to launch. Local; allocates nothing.
  void divide(const CollectiveArgs& args, const ShareFacts& facts);

  const WireLaunch* over_wire() const { return has_wire_ ? &wire_ : nullptr; }
  const WireLaunch* by_lanes() const { return has_lanes_ ? &lanes_ : nullptr; }

 private:
  void add_to_grid(RoutePiece& piece, const ShareFacts& facts);
  void set_own(RoutePiece from, RoutePiece to, const ShareFacts& facts);
  void finish_grid(const ShareFacts& facts);

  WireLaunch wire_;
  WireLaunch lanes_;
  bool has_wire_ = false;
  bool has_lanes_ = false;
};

}  // namespace symm
