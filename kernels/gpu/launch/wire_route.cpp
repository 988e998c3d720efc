#include "kernels/gpu/launch/wire_route.hpp"

#include <algorithm>

namespace symm {

namespace {

std::uint64_t peers_of(int rank, int world_size) {
  const std::uint64_t all = world_size == kMaxDeviceRanks ? ~0ull : (1ull << world_size) - 1;
  return all & ~(1ull << rank);
}

}  // namespace

WireLaunch meeting_launch(int rank, int world_size) {
  WireLaunch launch;
  launch.sends_same = true;
  launch.sends[0] = launch.hears[0] = peers_of(rank, world_size);
  launch.send.resize(static_cast<std::size_t>(world_size));
  launch.take.resize(static_cast<std::size_t>(world_size));
  return launch;
}

WireRoute::WireRoute(int world_size) {
  launch_.send.resize(static_cast<std::size_t>(world_size));
  launch_.take.resize(static_cast<std::size_t>(world_size));
}

void WireRoute::begin(const CollectiveArgs& args, const WireFacts& facts) {
  args_ = args;
  facts_ = facts;
  const bool can_have_two = args.kind == CollectiveKind::kAllReduce ||
                            args.kind == CollectiveKind::kReduce ||
                            args.kind == CollectiveKind::kBroadcast;
  facts_.two_hops = facts.two_hops && can_have_two && facts.world_size > 1;
  launch_.root_combines = facts.root_combines;
  begin_ = 0;
  largest_ = largest_message();
  const std::uint64_t blocks = most_blocks();
  const std::uint64_t tile = facts_.tile_bytes;
  limit_ = blocks * facts_.box_tiles * tile;
  if (facts_.two_hops) {
    limit_ = blocks * (facts_.box_tiles / 2) * tile * owners();
  }
  if (facts_.whole) limit_ = std::max<std::uint64_t>(largest_, 1);
  launch_.ends_call = false;
}

bool WireRoute::root_has_slice() const {
  if (args_.kind == CollectiveKind::kBroadcast) return false;
  return args_.kind != CollectiveKind::kReduce || facts_.root_combines;
}

std::uint64_t WireRoute::owners() const {
  return static_cast<std::uint64_t>(facts_.world_size) - (root_has_slice() ? 0 : 1);
}

std::uint64_t WireRoute::largest_message() const {
  std::uint64_t count = args_.count;
  for (const Part& part : args_.input_parts) count = std::max<std::uint64_t>(count, part.count);
  for (const Part& part : args_.output_parts) count = std::max<std::uint64_t>(count, part.count);
  return count * dtype_bytes(args_.dtype);
}

const WireLaunch* WireRoute::next() {
  if (launch_.ends_call) return nullptr;
  launch_.ends_call = largest_ - begin_ <= limit_;
  set_pieces();
  if (!facts_.whole) set_grid();
  launch_.stores = launch_.hears[launch_.last_hop()];
  if (launch_.last_hop() == 1 || launch_.copies_own) launch_.stores |= 1ull << facts_.rank;
  begin_ += limit_;
  return &launch_;
}

RoutePiece WireRoute::cut(const void* data, std::uint64_t count) const {
  const std::uint64_t bytes = count * dtype_bytes(args_.dtype);
  auto* const start = static_cast<std::byte*>(const_cast<void*>(data));
  if (bytes <= begin_) return {start, 0};
  return {start == nullptr ? nullptr : start + begin_, std::min(bytes - begin_, limit_)};
}

std::uint64_t WireRoute::tiles_in(std::uint64_t bytes) const {
  return divided_up(bytes, facts_.tile_bytes);
}

RoutePiece WireRoute::slice(const RoutePiece& message, int number, std::uint64_t bytes) const {
  const std::uint64_t begin = std::min(bytes * static_cast<std::uint64_t>(number), message.bytes);
  return {message.data == nullptr ? nullptr : message.data + begin,
          std::min(bytes, message.bytes - begin)};
}

void WireRoute::set_pieces() {
  const auto self = static_cast<std::size_t>(facts_.rank);
  const std::uint64_t peers = peers_of(facts_.rank, facts_.world_size);
  const bool is_root = facts_.rank == args_.root;
  const std::uint64_t root = 1ull << args_.root & peers;
  const RoutePiece input = cut(args_.input, args_.count);
  const RoutePiece output = cut(args_.output, args_.count);
  std::fill(launch_.send.begin(), launch_.send.end(), RoutePiece{});
  std::fill(launch_.take.begin(), launch_.take.end(), RoutePiece{});
  launch_.sends_same = launch_.combines = launch_.relays = launch_.copies_own = false;
  launch_.sends[0] = launch_.sends[1] = launch_.hears[0] = launch_.hears[1] = 0;
  for (std::size_t r = 0; r < args_.input_parts.size(); ++r) {
    launch_.send[r] = cut(args_.input_parts[r].data, args_.input_parts[r].count);
  }
  for (std::size_t r = 0; r < args_.output_parts.size(); ++r) {
    launch_.take[r] = cut(args_.output_parts[r].data, args_.output_parts[r].count);
  }
  most_tiles_ = tiles_in(std::min(largest_ - std::min(begin_, largest_), limit_));
  switch (args_.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduce: {
      const bool to_all = args_.kind == CollectiveKind::kAllReduce;
      if (facts_.two_hops) {
        launch_.combines = root_has_slice() || !is_root;
        launch_.sends[0] = root_has_slice() ? peers : peers & ~root;
        launch_.hears[0] = launch_.combines ? peers : 0;
        launch_.sends[1] = to_all ? peers : root;
        launch_.hears[1] = to_all || is_root ? peers : 0;
        set_slices(input, to_all || is_root ? output : RoutePiece{nullptr, output.bytes});
        return;
      }
      launch_.sends_same = true;
      launch_.combines = to_all || is_root;
      launch_.sends[0] = to_all ? peers : root;
      launch_.hears[0] = launch_.combines ? peers : 0;
      launch_.send[self] = input;
      launch_.take[self] = output;
      return;
    }
    case CollectiveKind::kReduceScatter:
      launch_.combines = true;
      launch_.sends[0] = launch_.hears[0] = peers;
      launch_.take[self] = output;
      return;
    case CollectiveKind::kAllGather:
      launch_.sends_same = true;
      launch_.sends[0] = launch_.hears[0] = peers;
      launch_.send[self] = input;
      break;
    case CollectiveKind::kAllToAll:
      return;  // ShareDivision has them
    case CollectiveKind::kGather:
      launch_.sends_same = true;
      launch_.sends[0] = root;
      launch_.hears[0] = is_root ? peers : 0;
      launch_.send[self] = input;
      if (!is_root) std::fill(launch_.take.begin(), launch_.take.end(), RoutePiece{});
      break;
    case CollectiveKind::kScatter:
      launch_.sends[0] = is_root ? peers : 0;
      launch_.hears[0] = root;
      launch_.take[is_root ? self : static_cast<std::size_t>(args_.root)] = output;
      break;
    case CollectiveKind::kBroadcast:
      launch_.sends[0] = is_root ? peers : 0;
      launch_.hears[0] = root;
      if (facts_.two_hops) {
        set_broadcast_slices(input, output);
        break;
      }
      launch_.sends_same = true;
      if (is_root) launch_.send[self] = input;
      launch_.take[static_cast<std::size_t>(args_.root)] = output;
      break;
    case CollectiveKind::kBarrier:
      most_tiles_ = 1;
      launch_.sends[0] = launch_.hears[0] = peers;
      return;
  }
  const bool has_own = launch_.send[self].bytes > 0 && launch_.take[self].bytes > 0;
  launch_.copies_own = has_own && launch_.send[self].data != launch_.take[self].data;
}

// Slices of the message by rank; perhaps none for the root.
void WireRoute::set_slices(const RoutePiece& input, const RoutePiece& output) {
  most_tiles_ = divided_up(most_tiles_, owners());
  const std::uint64_t bytes = most_tiles_ * facts_.tile_bytes;
  int number = 0;
  for (int r = 0; r < facts_.world_size; ++r) {
    if (r == args_.root && !root_has_slice()) continue;
    launch_.send[static_cast<std::size_t>(r)] = slice(input, number, bytes);
    launch_.take[static_cast<std::size_t>(r)] = slice(output, number, bytes);
    ++number;
  }
}

// All but the root have a slice, which they pass on to each other.
void WireRoute::set_broadcast_slices(const RoutePiece& input, const RoutePiece& output) {
  most_tiles_ = divided_up(most_tiles_, owners());
  const std::uint64_t bytes = most_tiles_ * facts_.tile_bytes;
  const bool is_root = facts_.rank == args_.root;
  int number = 0;
  for (int r = 0; r < facts_.world_size; ++r) {
    if (r == args_.root) continue;
    const auto index = static_cast<std::size_t>(r);
    if (is_root) {
      launch_.send[index] = slice(input, number, bytes);
    } else {
      launch_.take[index] = slice(output, number, bytes);
      if (r != facts_.rank) launch_.sends[1] |= 1ull << r;
    }
    ++number;
  }
  launch_.hears[1] = launch_.sends[1];
  launch_.relays = !is_root;
  if (!is_root) return;
  launch_.send[static_cast<std::size_t>(facts_.rank)] = input;
  launch_.take[static_cast<std::size_t>(facts_.rank)] = output;
}

void WireRoute::set_grid() {
  const std::uint64_t tiles = std::max<std::uint64_t>(most_tiles_, 1);
  const std::uint32_t room = facts_.two_hops ? facts_.box_tiles / 2 : facts_.box_tiles;
  const std::uint64_t blocks =
      std::max(std::min(divided_up(tiles, kWireTiles), most_blocks()), divided_up(tiles, room));
  launch_.tiles_per_block = static_cast<std::uint32_t>(divided_up(tiles, blocks));
  launch_.blocks = static_cast<unsigned>(divided_up(tiles, launch_.tiles_per_block));
  const bool is_narrow = facts_.two_hops && launch_.tiles_per_block > facts_.most_for_two_hops;
  launch_.threads = kTileThreads * std::min(launch_.tiles_per_block,
                                            is_narrow ? kWireTiles : facts_.tiles_at_once);
}

}  // namespace symm
