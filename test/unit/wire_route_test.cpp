// Routes of collectives over a wire: carried out here on plain memory, launch by launch and hop by
// hop, with the tiles, boxes and blocks that kernels have.
#include "kernels/gpu/launch/wire_route.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace symm {
namespace {

using enum CollectiveKind;
using Values = std::vector<std::int32_t>;

struct RoutedCall {
  CollectiveKind kind = kAllReduce;
  std::vector<std::size_t> counts;  // by rank: the message or the share
  int root = 0;
  bool two_hops = false;
  bool in_place = false;
  bool root_combines = true;
};

bool takes_list(CollectiveKind kind) { return kind == kScatter || kind == kReduceScatter; }
bool gives_list(CollectiveKind kind) { return kind == kGather || kind == kAllGather; }

// All ranks of a group; sums of int32.
class Routes {
 public:
  Routes(int world, WireKind wire, int most_blocks, std::uint32_t box_tiles)
      : world_(world), wire_(wire), most_blocks_(most_blocks), box_tiles_(box_tiles) {
    for (int rank = 0; rank < world; ++rank) routes_.emplace_back(world);
  }

  // The outputs; launches() says how many launches it took.
  std::vector<Values> run(const RoutedCall& call) {
    const std::size_t total = std::accumulate(call.counts.begin(), call.counts.end(), 0ul);
    inputs_.clear();
    outputs_.clear();
    std::vector<std::vector<Part>> lists(2 * index(world_));
    for (int rank = 0; rank < world_; ++rank) {
      const std::size_t own = call.counts[index(rank)];
      Values& input = inputs_.emplace_back(takes_list(call.kind) ? total : own);
      for (std::size_t i = 0; i < input.size(); ++i) input[i] = value(rank, i);
      outputs_.emplace_back(gives_list(call.kind) ? total : own, -1);
    }
    originals_ = inputs_;
    if (call.in_place) outputs_ = inputs_;
    for (int rank = 0; rank < world_; ++rank) begin(call, rank, lists);
    launches_ = 0;
    while (launch()) ++launches_;
    return outputs_;
  }
  int launches() const { return launches_; }
  const std::vector<Values>& inputs() const { return originals_; }

  static std::int32_t value(int rank, std::size_t i) {
    return static_cast<std::int32_t>(i) * 7 + 1'000'003 * (rank + 1);
  }

 private:
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

  void begin(const RoutedCall& call, int rank, std::vector<std::vector<Part>>& lists) {
    Values& output = outputs_[index(rank)];
    Values& input = call.in_place ? output : inputs_[index(rank)];
    std::vector<Part>& in = lists[2 * index(rank)];
    std::vector<Part>& out = lists[2 * index(rank) + 1];
    std::size_t place = 0;
    for (const std::size_t count : call.counts) {
      if (takes_list(call.kind)) in.push_back({input.data() + place, count});
      if (gives_list(call.kind)) out.push_back({output.data() + place, count});
      place += count;
    }
    const bool is_root = rank == call.root;
    CollectiveArgs args;
    args.kind = call.kind;
    args.dtype = Dtype::kInt32;
    args.root = call.root;
    args.count = call.counts[index(rank)];
    if (!takes_list(call.kind)) args.input = input.data();
    if (!gives_list(call.kind)) args.output = output.data();
    if (call.kind != kScatter || is_root) args.input_parts = in;
    if (call.kind != kGather || is_root) args.output_parts = out;
    routes_[index(rank)].begin(args, {.rank = rank,
                                      .world_size = world_,
                                      .tile_bytes = wire_tile(wire_).bytes,
                                      .most_blocks = most_blocks_,
                                      .box_tiles = box_tiles_,
                                      .two_hops = call.two_hops,
                                      .root_combines = call.root_combines});
  }

  // What goes through one box in one launch: each tile once.
  using Boxes = std::vector<std::optional<std::vector<std::byte>>>;

  bool launch() {
    launches_of_ranks_.clear();
    for (WireRoute& route : routes_) launches_of_ranks_.push_back(route.next());
    const WireLaunch* first = launches_of_ranks_[0];
    for (const WireLaunch* each : launches_of_ranks_) {
      EXPECT_EQ(each == nullptr, first == nullptr);
      if (each == nullptr || first == nullptr) return false;
      EXPECT_EQ(each->blocks, first->blocks);
      EXPECT_EQ(each->threads, first->threads);
      EXPECT_EQ(each->tiles_per_block, first->tiles_per_block);
      EXPECT_EQ(each->ends_call, first->ends_call);
      EXPECT_LE(each->blocks, static_cast<unsigned>(most_blocks_));
      EXPECT_LE(each->threads, static_cast<unsigned>(kMostWireThreads));
    }
    boxes_.assign(index(world_ * world_), Boxes(first->blocks * box_tiles_));
    for (int hop = 0; hop < 2; ++hop) {
      for (int rank = 0; rank < world_; ++rank) send(rank, hop);
      for (int rank = 0; rank < world_; ++rank) take(rank, hop);
    }
    return !testing::Test::HasFatalFailure();
  }

  std::optional<std::vector<std::byte>>& tile(int owner, int sender, unsigned block,
                                              std::uint32_t place) {
    EXPECT_LT(place, box_tiles_) << "a tile behind the end of a box";
    return boxes_[index(owner * world_ + sender)][block * box_tiles_ + place % box_tiles_];
  }

  // Calls body(block, tile of the block, offset, bytes) for the tiles of a piece.
  template <class Body>
  void for_tiles(const WireLaunch& launch, const RoutePiece& piece, const Body& body) const {
    const std::uint32_t size = wire_tile(wire_).bytes;
    const auto bytes = static_cast<std::uint32_t>(piece.bytes);
    const std::uint32_t tiles = (bytes + size - 1) / size;
    EXPECT_LE(tiles, launch.blocks * launch.tiles_per_block);
    for (std::uint32_t t = 0; t < tiles; ++t) {
      const std::uint32_t offset = t * size;
      body(t / launch.tiles_per_block, t % launch.tiles_per_block, offset,
           std::min(size, bytes - offset));
    }
  }
  static bool has(std::uint64_t mask, int rank) { return (mask >> rank & 1) != 0; }

  void send(int rank, int hop) {
    const WireLaunch& launch = *launches_of_ranks_[index(rank)];
    EXPECT_FALSE(has(launch.sends[hop], rank));
    for (int peer = 0; peer < world_; ++peer) {
      if (!has(launch.sends[hop], peer)) continue;
      const RoutePiece& piece = launch.sends_same ? launch.send[index(rank)]  //
                                                  : launch.send[index(peer)];
      if (hop == 0) {
        for_tiles(launch, piece,
                  [&](unsigned block, std::uint32_t t, std::size_t at, std::size_t n) {
                    auto& box = tile(peer, rank, block, t);
                    EXPECT_FALSE(box) << "sent twice";
                    box.emplace(piece.data + at, piece.data + at + n);
                  });
      } else {
        for (const auto& [block, t, data] : results_[index(rank)]) {
          auto& box = tile(peer, rank, block, launch.tiles_per_block + t);
          EXPECT_FALSE(box) << "sent twice";
          box = data;
        }
      }
    }
  }

  void take(int rank, int hop) {
    const WireLaunch& launch = *launches_of_ranks_[index(rank)];
    if (hop == 0) {
      results_.resize(index(world_));
      results_[index(rank)].clear();
      if (launch.copies_own) {
        const RoutePiece& own = launch.send[index(rank)];
        std::memcpy(launch.take[index(rank)].data, own.data, own.bytes);
      }
      if (launch.combines || launch.relays) make_results(rank, launch);
    }
    if (hop != launch.last_hop()) return;
    std::uint64_t stored = launch.copies_own || hop == 1 ? std::uint64_t{1} << rank : 0;
    for (int peer = 0; peer < world_; ++peer) {
      if (!has(launch.hears[hop], peer)) continue;
      stored |= std::uint64_t{1} << peer;
      const RoutePiece& piece = launch.take[index(peer)];
      const std::uint32_t before = static_cast<std::uint32_t>(hop) * launch.tiles_per_block;
      for_tiles(launch, piece, [&](unsigned block, std::uint32_t t, std::size_t at, std::size_t n) {
        auto& box = tile(rank, peer, block, before + t);
        ASSERT_TRUE(box) << "waits for a tile that is not sent";
        ASSERT_EQ(box->size(), n);
        if (piece.data != nullptr) std::memcpy(piece.data + at, box->data(), n);
        box.reset();
      });
    }
    EXPECT_EQ(launch.stores, stored);
    // What was sent is received: a rank that is not heard could not be told from a slow one.
    for (int peer = 0; peer < world_; ++peer) {
      for (const auto& box : boxes_[index(rank * world_ + peer)]) EXPECT_FALSE(box) << "not taken";
    }
  }

  void make_results(int rank, const WireLaunch& launch) {
    const RoutePiece& own = launch.combines ? launch.send[index(rank)] : launch.take[index(rank)];
    const RoutePiece& result = launch.take[index(rank)];
    for_tiles(launch, own, [&](unsigned block, std::uint32_t t, std::size_t at, std::size_t n) {
      std::vector<std::byte> data(n);
      if (launch.combines) std::memcpy(data.data(), own.data + at, n);
      for (int peer = 0; peer < world_; ++peer) {
        if (!has(launch.hears[0], peer)) continue;
        auto& box = tile(rank, peer, block, t);
        ASSERT_TRUE(box) << "waits for a tile that is not sent";
        ASSERT_EQ(box->size(), n);
        for (std::size_t i = 0; i < n; i += sizeof(std::int32_t)) {
          std::int32_t a = 0;
          std::int32_t b = 0;
          std::memcpy(&a, data.data() + i, sizeof(a));
          std::memcpy(&b, box->data() + i, sizeof(b));
          a = launch.combines ? a + b : b;
          std::memcpy(data.data() + i, &a, sizeof(a));
        }
        box.reset();
      }
      if (result.data != nullptr) std::memcpy(result.data + at, data.data(), n);
      results_[index(rank)].emplace_back(block, t, data);
    });
  }

  int world_;
  WireKind wire_;
  int most_blocks_;
  std::uint32_t box_tiles_;
  int launches_ = 0;
  std::vector<WireRoute> routes_;
  std::vector<const WireLaunch*> launches_of_ranks_;
  std::vector<Values> inputs_;
  std::vector<Values> originals_;
  std::vector<Values> outputs_;
  std::vector<Boxes> boxes_;  // [owner][sender]
  std::vector<std::vector<std::tuple<unsigned, std::uint32_t, std::vector<std::byte>>>> results_;
};

// What the ranks' outputs must be; empty where nothing is asked.
Values expected(const RoutedCall& call, const std::vector<Values>& inputs, int rank) {
  const auto self = static_cast<std::size_t>(rank);
  const auto begin = static_cast<std::ptrdiff_t>(std::accumulate(
      call.counts.begin(), call.counts.begin() + static_cast<std::ptrdiff_t>(self), 0ul));
  const auto own = static_cast<std::ptrdiff_t>(call.counts[self]);
  const auto cut = [&](const Values& all) {
    return Values(all.begin() + begin, all.begin() + begin + own);
  };
  Values sum(inputs[0].size());
  Values all;
  for (const Values& input : inputs) {
    for (std::size_t i = 0; i < std::min(sum.size(), input.size()); ++i) sum[i] += input[i];
    all.insert(all.end(), input.begin(), input.end());
  }
  switch (call.kind) {
    case kAllReduce:
      return sum;
    case kReduce:
      return rank == call.root ? sum : Values{};
    case kReduceScatter:
      return cut(sum);
    case kBroadcast:
      return inputs[static_cast<std::size_t>(call.root)];
    case kScatter:
      return cut(inputs[static_cast<std::size_t>(call.root)]);
    case kGather:
      return rank == call.root ? all : Values{};
    default:
      return all;
  }
}

class WireRouteTest : public testing::TestWithParam<std::tuple<int, WireKind>> {};

TEST_P(WireRouteTest, EveryCollectiveEndsWithTheRightValues) {
  const auto [world, wire] = GetParam();
  for (const auto& [blocks, tiles] : {std::pair(64, 31u), std::pair(5, 7u), std::pair(1, 3u)}) {
    Routes routes(world, wire, blocks, tiles);
    int turn = 0;
    for (const CollectiveKind kind :
         {kAllReduce, kReduce, kReduceScatter, kBroadcast, kAllGather, kGather, kScatter}) {
      for (const std::size_t count : {0u, 1u, 30u, 119u, 120u, 121u, 1000u, 4099u, 30'000u}) {
        // Some hundred launches, or as many ranks' worth of tiles to follow.
        if (count > (blocks == 1 || world > 4 ? 5'000u : 30'000u)) continue;
        if (count > 1'000 && world > 4 && blocks != 5) continue;
        for (const bool two_hops : {false, true}) {
          RoutedCall call{.kind = kind, .counts = {}, .root = turn++ % world, .two_hops = two_hops};
          call.counts.assign(static_cast<std::size_t>(world), count);
          const bool may_be_uneven = kind == kAllGather || kind == kReduceScatter;
          if (may_be_uneven && two_hops) {
            for (std::size_t r = 0; r < call.counts.size(); ++r) {
              call.counts[r] = r == 1 ? 0 : count + 50 * r;
            }
          }
          call.in_place = turn % 3 == 0 && (kind == kAllReduce || kind == kBroadcast);
          call.root_combines = world == 1 || turn % 4 < 2;
          SCOPED_TRACE(std::string(collective_name(kind)) + " of " + std::to_string(count) +
                       ", root " + std::to_string(call.root) + (two_hops ? ", two hops" : "") +
                       (call.in_place ? ", in place" : "") +
                       (call.root_combines ? "" : ", the root without a slice") + ", blocks " +
                       std::to_string(blocks));
          const std::vector<Values> outputs = routes.run(call);
          for (int rank = 0; rank < world; ++rank) {
            const Values want = expected(call, routes.inputs(), rank);
            if (want.empty()) continue;
            ASSERT_EQ(outputs[static_cast<std::size_t>(rank)], want) << "rank " << rank;
          }
          ASSERT_FALSE(HasFailure());
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, WireRouteTest,
                         testing::Combine(testing::Values(1, 2, 3, 4, 8, 11),
                                          testing::Values(WireKind::kLL, WireKind::kLine)),
                         [](const auto& i) {
                           const bool is_line = std::get<1>(i.param) == WireKind::kLine;
                           return std::to_string(std::get<0>(i.param)) + (is_line ? "Line" : "LL");
                         });

// What crosses the root's links are its input and the result, once each.
TEST(WireRoute, TheRootOfAReduceMayCombineNothing) {
  constexpr int kWorld = 4;
  constexpr int kRoot = 1;
  std::vector<std::byte> data(1u << 20);
  CollectiveArgs args;
  args.kind = kReduce;
  args.dtype = Dtype::kUInt8;
  args.root = kRoot;
  args.input = args.output = data.data();
  args.count = data.size();
  for (int rank = 0; rank < kWorld; ++rank) {
    WireRoute route(kWorld);
    route.begin(args, {.rank = rank,
                       .world_size = kWorld,
                       .whole = true,
                       .two_hops = true,
                       .root_combines = false});
    const WireLaunch& launch = *route.next();
    const std::uint64_t others = 0b1111u & ~(1ull << rank);
    const std::uint64_t root = 1ull << kRoot;
    const bool is_root = rank == kRoot;
    EXPECT_EQ(launch.combines, !is_root);
    EXPECT_EQ(launch.sends[0], others & ~root);
    EXPECT_EQ(launch.hears[0], is_root ? 0 : others);
    EXPECT_EQ(launch.sends[1], is_root ? 0 : root);
    EXPECT_EQ(launch.hears[1], is_root ? others : 0);
    EXPECT_EQ(launch.last_hop(), is_root || launch.combines ? 1 : 0);
    std::uint64_t sent = 0;
    for (int peer = 0; peer < kWorld; ++peer) {
      const RoutePiece& piece = launch.send[static_cast<std::size_t>(peer)];
      EXPECT_EQ(piece.bytes == 0, peer == kRoot);
      sent += piece.bytes;
    }
    EXPECT_EQ(sent, args.count);
  }
}

TEST(WireRoute, ASmallMessageIsOneBlockOfFewThreads) {
  WireRoute route(2);
  std::vector<std::byte> data(4u << 20);
  CollectiveArgs args;
  args.kind = kAllReduce;
  args.dtype = Dtype::kUInt8;
  args.input = args.output = data.data();
  WireFacts facts{.world_size = 2,
                  .tile_bytes = wire_tile(WireKind::kLine).bytes,
                  .most_blocks = 64,
                  .box_tiles = 127};
  const auto grid = [&](std::size_t count) {
    args.count = count;
    route.begin(args, facts);
    const WireLaunch* launch = route.next();
    EXPECT_EQ(route.next() == nullptr, launch->ends_call);
    return std::tuple(launch->blocks, launch->threads, launch->tiles_per_block);
  };
  EXPECT_EQ(grid(0), std::tuple(1u, 32u, 1u));
  EXPECT_EQ(grid(480), std::tuple(1u, 32u, 1u));
  EXPECT_EQ(grid(481), std::tuple(1u, 64u, 2u));
  EXPECT_EQ(grid(8 * 480), std::tuple(1u, 256u, 8u));
  EXPECT_EQ(grid(32 * 480), std::tuple(4u, 256u, 8u));
  EXPECT_EQ(grid(64 * 8 * 480), std::tuple(64u, 256u, 8u));
  // More at once where there are no more blocks.
  facts.tiles_at_once = kMostWireTiles;
  facts.most_for_two_hops = 3;
  EXPECT_EQ(grid(32 * 480), std::tuple(4u, 256u, 8u));
  EXPECT_EQ(grid(64 * 9 * 480), std::tuple(64u, 288u, 9u));
  EXPECT_EQ(grid(64 * 30 * 480), std::tuple(64u, 320u, 30u));
  facts.two_hops = true;
  EXPECT_EQ(grid(64 * 18 * 480), std::tuple(64u, 256u, 9u));
  facts.most_for_two_hops = 9;
  EXPECT_EQ(grid(64 * 18 * 480), std::tuple(64u, 288u, 9u));
  facts.two_hops = false;
  facts.tiles_at_once = kWireTiles;
  EXPECT_EQ(grid(64 * 8 * 480 + 1), std::tuple(57u, 256u, 9u));
  EXPECT_EQ(grid(1 << 20), std::tuple(63u, 256u, 35u));
}

}  // namespace
}  // namespace symm
