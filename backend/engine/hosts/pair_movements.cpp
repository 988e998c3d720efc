#include <algorithm>
#include <array>

#include "backend/engine/hosts/host_algorithms.hpp"

namespace symm {
namespace {

// Bytes of a chunk of one pair, however many there are.
constexpr std::size_t kLeastChunk = std::size_t{16} << 10;

// gather, scatter and all_to_all: bytes for each rank and from each rank. What is for a rank of
// another host goes from the sender's tensor to the receiver's where the link takes any memory,
// else in chunks through the link's.
class PairMovement {
 public:
  PairMovement(HostLegs& legs, const CollectiveArgs& args)
      : legs_(legs), element_(dtype_bytes(args.dtype)) {
    const auto world = static_cast<std::size_t>(legs.layout().world_size());
    to_.resize(world);
    from_.resize(world);
    const bool rooted = args.kind != CollectiveKind::kAllToAll;
    const auto root = static_cast<std::size_t>(args.root);
    if (args.kind == CollectiveKind::kGather) to_[root] = bytes_at(args.input, args.count);
    if (args.kind == CollectiveKind::kScatter) from_[root] = bytes_at(args.output, args.count);
    for (std::size_t r = 0; (!rooted || legs.rank() == args.root) && r < world; ++r) {
      if (!args.input_parts.empty()) {
        to_[r] = bytes_at(args.input_parts[r].data, args.input_parts[r].count);
      }
      if (!args.output_parts.empty()) {
        from_[r] = bytes_at(args.output_parts[r].data, args.output_parts[r].count);
      }
    }
    chunk_ = std::max(4 * legs.limits().share_bytes / world, kLeastChunk);
  }

  void run() {
    if (legs_.takes_any_memory()) {
      std::unique_ptr<HostTransfer> exchange =
          legs_.exchange(in_place(to_), in_place(from_), [this] { move_in_host(); });
      return legs_.finish(exchange);
    }
    move_in_host();
    move_chunks();
  }

 private:
  struct Pair {
    int peer;
    Part whole;
    std::array<std::byte*, 2> memory;  // of chunks in flight
  };

  Part bytes_at(const void* data, std::size_t count) const {
    if (count == 0) return {};
    return {const_cast<void*>(data), count * element_};
  }
  static const Part& of(const std::vector<Part>& parts, int rank) {
    return parts[static_cast<std::size_t>(rank)];
  }
  void move_in_host() {
    std::vector<Part> input;
    std::vector<Part> output;
    for (const int rank : legs_.here()) {
      input.push_back(of(to_, rank));
      output.push_back(of(from_, rank));
    }
    CollectiveArgs local;
    local.kind = CollectiveKind::kAllToAll;
    local.input_parts = input;
    local.output_parts = output;
    legs_.run_local(local);
  }

  // What ranks of other hosts exchange with this one, where it lies.
  Messages in_place(const std::vector<Part>& parts) const {
    const std::size_t most = legs_.limits().message_bytes;
    Messages made;
    for (int rank = 0; rank < legs_.layout().world_size(); ++rank) {
      const Part& whole = of(parts, rank);
      if (legs_.is_here(rank) || whole.count == 0) continue;
      for (std::size_t begin = 0; begin < whole.count; begin += most) {
        made.push_back({rank, {at_byte(whole.data, begin), std::min(most, whole.count - begin)}});
      }
    }
    return made;
  }

  std::vector<Pair> pairs_of(const std::vector<Part>& parts) {
    std::vector<Pair> pairs;
    for (int rank = 0; rank < legs_.layout().world_size(); ++rank) {
      const Part& whole = of(parts, rank);
      if (legs_.is_here(rank) || whole.count == 0) continue;
      const std::size_t bytes = std::min(chunk_, whole.count);
      pairs.push_back({rank, whole, {legs_.take(bytes), legs_.take(bytes)}});
    }
    return pairs;
  }

  // What chunk `index` has of a pair's bytes; empty where there are no more.
  Part in_chunk(std::size_t index, const Pair& pair) const {
    const std::size_t begin = std::min(pair.whole.count, index * chunk_);
    const std::size_t count = std::min(chunk_, pair.whole.count - begin);
    return {static_cast<std::byte*>(pair.whole.data) + begin, count};
  }

  Messages messages(std::size_t index, const std::vector<Pair>& pairs) const {
    Messages made;
    for (const Pair& pair : pairs) {
      made.push_back({pair.peer, {pair.memory[index % 2], in_chunk(index, pair).count}});
    }
    return made;
  }

  void move_chunks() {
    const std::vector<Pair> to = pairs_of(to_);
    const std::vector<Pair> from = pairs_of(from_);
    std::size_t longest = 0;
    for (const auto* pairs : {&to, &from}) {
      for (const Pair& pair : *pairs) longest = std::max(longest, pair.whole.count);
    }
    const std::size_t chunks = (longest + chunk_ - 1) / chunk_;
    std::array<std::unique_ptr<HostTransfer>, 2> transfers;
    for (std::size_t step = 0; step <= chunks; ++step) {
      if (step < chunks) {
        for (const Pair& pair : to) {
          const Part part = in_chunk(step, pair);
          legs_.copy(pair.memory[step % 2], part.data, part.count);
        }
        transfers[step % 2] = legs_.start(messages(step, to), messages(step, from));
      }
      if (step == 0) continue;
      legs_.finish(transfers[(step - 1) % 2]);
      for (const Pair& pair : from) {
        const Part part = in_chunk(step - 1, pair);
        legs_.copy(part.data, pair.memory[(step - 1) % 2], part.count);
      }
    }
  }

  HostLegs& legs_;
  const std::size_t element_;
  std::vector<Part> to_;    // by rank, in bytes
  std::vector<Part> from_;  // by rank, in bytes
  std::size_t chunk_ = 0;   // bytes of a whole chunk of a pair
};

}  // namespace

void move_between_pairs(HostLegs& legs, const CollectiveArgs& args) {
  PairMovement(legs, args).run();
}

}  // namespace symm
