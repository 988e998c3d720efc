// The route of a collective over a wire (NOTE [Routes] in wire_params.hpp), divided into launches;
// of all but all_to_all, whose shares ShareDivision divides. Host, free of vendor headers.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/core/collective.hpp"
#include "kernels/gpu/interface/wire_params.hpp"

namespace symm {

// A range of memory, as WirePiece or BulkPiece.
struct RoutePiece {
  std::byte* data;
  std::uint64_t bytes;
  std::uint32_t tiles_of_block = 0;  // where a launch divides shares
};

// What a launch does, for any world size. Blocks, threads and tiles are those of a wire with boxes.
struct WireLaunch {
  unsigned blocks = 1;
  unsigned threads = kTileThreads;
  bool ends_call = true;
  bool sends_same = false;
  bool combines = false;
  bool relays = false;
  bool copies_own = false;
  bool root_combines = true;  // of a reduce in two hops
  std::uint32_t tiles_per_block = 1;
  // NOTE [Shares] in kernels/gpu/wire/route.cuh, and the blocks that have some.
  bool divides_shares = false;
  std::uint32_t share_blocks = 0;
  std::uint64_t sends[2] = {};
  std::uint64_t hears[2] = {};
  std::uint64_t stores = 0;
  std::vector<RoutePiece> send;  // by rank
  std::vector<RoutePiece> take;

  // In which pieces are placed, where any are.
  int last_hop() const { return combines || relays || hears[1] != 0 ? 1 : 0; }
};

// What decides how a call is divided, the same on all ranks.
struct WireFacts {
  int rank = 0;
  int world_size = 1;
  std::uint32_t tile_bytes = 1;  // by which slices are divided
  bool whole = false;            // in one launch, of lanes: nothing below has a meaning
  int most_blocks = 1;
  std::uint32_t box_tiles = 1;
  // Of a block at most; in two hops only where it has no more tiles than most_for_two_hops.
  std::uint32_t tiles_at_once = kWireTiles;
  std::uint32_t most_for_two_hops = ~0u;
  bool two_hops = false;  // all_reduce, reduce, broadcast; of no effect on others
  // In two hops of a reduce: whether the root has a slice. With one, up to twice the bytes of the
  // message come to it, the inputs of its slice and the results of the others; without, once.
  bool root_combines = true;
};

// Of a barrier: all tell all, by tiles without a piece.
WireLaunch meeting_launch(int rank, int world_size);

class WireRoute {
 public:
  explicit WireRoute(int world_size);

  // The launches of a call, one after the other: begin(), then next() until it returns null. Warm
  // calls allocate nothing. The result is valid until the next call.
  void begin(const CollectiveArgs& args, const WireFacts& facts);
  const WireLaunch* next();

 private:
  std::uint64_t most_blocks() const { return static_cast<std::uint64_t>(facts_.most_blocks); }
  std::uint64_t tiles_in(std::uint64_t bytes) const;
  RoutePiece cut(const void* data, std::uint64_t count) const;
  RoutePiece slice(const RoutePiece& message, int number, std::uint64_t bytes) const;
  std::uint64_t largest_message() const;
  bool root_has_slice() const;  // in two hops
  std::uint64_t owners() const;
  void set_pieces();
  void set_slices(const RoutePiece& input, const RoutePiece& output);
  void set_broadcast_slices(const RoutePiece& input, const RoutePiece& output);
  void set_grid();

  CollectiveArgs args_{};
  WireFacts facts_{};
  std::uint64_t begin_ = 0;  // of the launch in every message
  std::uint64_t limit_ = 0;
  std::uint64_t largest_ = 0;
  std::uint64_t most_tiles_ = 0;  // of a piece, on any rank
  WireLaunch launch_;
};

}  // namespace symm
