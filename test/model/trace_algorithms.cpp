// Prints what every rank asks of its executor in one call of each algorithm of kernels/algorithms:
// the programs that the model check carries out on a weak memory (protocols.py) are made from this.
//
//   call NAME WORLD IN_PLACE ROOT RANK    begins the list of one rank
//   open S | publish S | await P S | done S | slot P S
//                                         the operations of NOTE [Executors]
//   write WHERE | read WHERE              data touched; WHERE is one of
//     slot OWNER S CELL                   a cell of the owner's slot of step S
//     memory OWNER CELL                   a cell of the owner's tensor that is read in place
//
// A cell is a line. Chunks are one line a rank, so that each share of a chunk is one cell.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <vector>

#include "kernels/algorithms/all_gather.hpp"
#include "kernels/algorithms/all_reduce.hpp"
#include "kernels/algorithms/all_reduce_ring.hpp"
#include "kernels/algorithms/all_to_all.hpp"
#include "kernels/algorithms/barrier.hpp"
#include "kernels/algorithms/broadcast.hpp"
#include "kernels/algorithms/gather.hpp"
#include "kernels/algorithms/reduce.hpp"
#include "kernels/algorithms/reduce_scatter.hpp"
#include "kernels/algorithms/scatter.hpp"

namespace symm {
namespace {

constexpr std::size_t kElement = 4;
constexpr std::size_t kTraceSteps = 32;
constexpr std::size_t kTraceBytes = 80 * kCacheLine;
constexpr std::size_t kMostRanks = 3;

// One address space with a place for every slot of every step, so that an address tells both.
struct Arena {
  std::array<std::array<std::array<std::byte, kMostRanks * kCacheLine>, kTraceSteps>, kMostRanks>
      slots;
  std::array<std::array<std::byte, kTraceBytes>, kMostRanks> inputs;
  std::array<std::byte, kTraceBytes> output;
};
alignas(kCacheLine) Arena arena;

class TracingExecutor {
 public:
  TracingExecutor(int rank, int world_size, bool in_place)
      : rank_(rank), world_size_(world_size), in_place_(in_place) {}

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  std::size_t chunk_bytes() const { return static_cast<std::size_t>(world_size_) * kCacheLine; }
  std::size_t element_bytes() const { return kElement; }
  std::size_t accumulate_bytes() const { return kElement; }
  bool in_place() const { return in_place_; }

  bool stage(std::uint32_t step, std::size_t slot_offset, const std::byte* source,
             std::size_t bytes) {
    if (in_place_) return true;
    copy(open_slot(step) + slot_offset, source, bytes);
    return true;
  }
  std::byte* open_slot(std::uint32_t step) {
    std::printf("open %u\n", step);
    return slot_at(rank_, step);
  }
  void publish(std::uint32_t step) { std::printf("publish %u\n", step); }
  bool await(int peer, std::uint32_t step) {
    std::printf("await %d %u\n", peer, step);
    return true;
  }
  bool await_all(std::uint32_t step) {
    for (int i = 1; i < world_size_; ++i) await(nth_peer(rank_, i, world_size_), step);
    return true;
  }
  const std::byte* source(int peer, std::uint32_t step, std::size_t slot_offset,
                          std::size_t input_offset) const {
    return in_place_ ? input_of(peer) + input_offset : slot_at(peer, step) + slot_offset;
  }
  void list_source(int rank, const std::byte* source) {
    sources_[static_cast<std::size_t>(rank)] = source;
  }
  const void* const* sources() const { return sources_.data(); }
  std::byte* slot(int owner, std::uint32_t step) const {
    std::printf("slot %d %u\n", owner, step);
    return slot_at(owner, step);
  }
  void read_done(std::uint32_t step) { std::printf("done %u\n", step); }
  void copy(std::byte* destination, const std::byte* source, std::size_t bytes) const {
    if (destination == source) return;
    touch("read", source, bytes);
    touch("write", destination, bytes);
  }
  void reduce(std::byte* destination, const void* const* sources, std::size_t count) const {
    for (int r = 0; r < world_size_; ++r) {
      touch("read", static_cast<const std::byte*>(sources[r]), count * kElement);
    }
    touch("write", destination, count * kElement);
  }
  void reduce_to(std::byte* slot, std::byte* destination, const void* const* sources,
                 std::size_t count) const {
    reduce(slot != nullptr ? slot : destination, sources, count);
    if (slot != nullptr && destination != nullptr) touch("write", destination, count * kElement);
  }
  void accumulate(std::byte* out, const std::byte* in, const std::byte* source,
                  std::size_t count) const {
    if (in != nullptr) touch("read", in, count * kElement);
    touch("read", source, count * kElement);
    touch("write", out, count * kElement);
  }
  void finish(std::byte* destination, const std::byte* in, const std::byte* source,
              std::size_t count) const {
    accumulate(destination, in, source, count);
  }
  bool count_mismatch(int, std::uint64_t, std::uint64_t) { return false; }

  std::byte* input_of(int rank) const {
    return arena.inputs[static_cast<std::size_t>(rank)].data();
  }
  std::byte* slot_at(int owner, std::uint32_t step) const {
    return arena.slots[static_cast<std::size_t>(owner)][step].data();
  }

 private:
  // Prints the cells of shared memory in the range; what only this rank sees is no matter.
  void touch(const char* what, const std::byte* start, std::size_t bytes) const {
    for (std::size_t at = 0; at < bytes; at += kCacheLine) {
      const std::byte* place = start + at;
      for (int r = 0; r < world_size_; ++r) {
        for (std::uint32_t step = 0; step < kTraceSteps; ++step) {
          const std::ptrdiff_t offset = place - slot_at(r, step);
          if (offset >= 0 && offset < static_cast<std::ptrdiff_t>(chunk_bytes())) {
            std::printf("%s slot %d %u %td\n", what, r, step, offset / kLine);
          }
        }
        const std::ptrdiff_t offset = place - input_of(r);
        if (in_place_ && offset >= 0 && offset < static_cast<std::ptrdiff_t>(kTraceBytes)) {
          std::printf("%s memory %d %td\n", what, r, offset / kLine);
        }
      }
    }
  }

  static constexpr std::ptrdiff_t kLine = kCacheLine;
  const int rank_;
  const int world_size_;
  const bool in_place_;
  std::array<const void*, kMostRanks> sources_{};
};
static_assert(Executor<TracingExecutor>);

struct Facts {
  int root;
  std::size_t bytes;  // of a message; of a share where the collective has shares
  std::byte* input;
  std::byte* output;
  const Part* input_parts;
  const Part* output_parts;
};

struct Algorithm {
  const char* name;
  std::size_t lines;  // of a message or a share
  bool times_ranks;   // `lines` counts chunks of one line a rank
  bool may_be_in_place;
  bool is_rooted;
  std::function<bool(TracingExecutor&, const Facts&)> run;
};

bool all_to_all(TracingExecutor& x, const Facts& f) {
  // Counts of all ranks, too large to travel with the header.
  const std::uint64_t count = f.bytes / kElement;
  for (int r = 0; r < x.world_size(); ++r) {
    auto* row = reinterpret_cast<std::uint64_t*>(x.slot_at(r, 0));
    for (int s = 0; s < x.world_size(); ++s) row[s] = r == s ? 0 : count;
  }
  AllToAllState state;
  return all_to_all_exchange_counts(x, f.input_parts, f.output_parts, &state) &&
         all_to_all_rounds(x, f.input_parts, f.output_parts, state);
}

const std::vector<Algorithm>& algorithms() {
  static const std::vector<Algorithm> kAll = {
      {"broadcast", 8, true, true, true,
       [](auto& x, const Facts& f) { return broadcast(x, f.input, f.output, f.bytes, f.root); }},
      {"all_gather", 8, true, true, false,
       [](auto& x, const Facts& f) { return all_gather(x, f.input, f.output_parts); }},
      // With few enough states for a search in which loads may return any message.
      {"broadcast_short", 3, true, true, true,
       [](auto& x, const Facts& f) { return broadcast(x, f.input, f.output, f.bytes, f.root); }},
      {"all_gather_short", 3, true, true, false,
       [](auto& x, const Facts& f) { return all_gather(x, f.input, f.output_parts); }},
      {"gather", 8, true, true, true,
       [](auto& x, const Facts& f) { return gather(x, f.input, f.bytes, f.output_parts, f.root); }},
      {"scatter", 8, false, true, true,
       [](auto& x, const Facts& f) {
         return scatter(x, f.input_parts, f.output, f.bytes, f.root);
       }},
      {"reduce_scatter", 8, false, true, false,
       [](auto& x, const Facts& f) { return reduce_scatter(x, f.input_parts, f.output); }},
      {"reduce_one_shot", 8, true, true, true,
       [](auto& x, const Facts& f) {
         return reduce_one_shot(x, f.input, f.output, f.bytes, f.root);
       }},
      {"reduce_two_shot", 4, true, true, true,
       [](auto& x, const Facts& f) {
         return reduce_two_shot(x, f.input, f.output, f.bytes, f.root);
       }},
      {"all_reduce_one_shot", 8, true, true, false,
       [](auto& x, const Facts& f) { return all_reduce_one_shot(x, f.input, f.output, f.bytes); }},
      {"all_reduce_two_shot", 4, true, true, false,
       [](auto& x, const Facts& f) {
         return all_reduce_two_shot(x, f.input, x.in_place() ? f.input : f.output, f.bytes);
       }},
      {"all_reduce_ring", 3, true, false, false,
       [](auto& x, const Facts& f) { return all_reduce_ring(x, f.input, f.output, f.bytes); }},
      {"all_to_all", 7, false, false, false, all_to_all},
      {"barrier", 0, false, false, false, [](auto& x, const Facts&) { return barrier(x); }},
  };
  return kAll;
}

void trace(const Algorithm& algorithm, int world_size, bool in_place, int root) {
  for (int rank = 0; rank < world_size; ++rank) {
    std::printf("call %s %d %d %d %d\n", algorithm.name, world_size, in_place ? 1 : 0, root, rank);
    TracingExecutor x(rank, world_size, in_place);
    const std::size_t ranks = static_cast<std::size_t>(world_size);
    const std::size_t bytes = algorithm.lines * kCacheLine * (algorithm.times_ranks ? ranks : 1);
    std::array<Part, kMostRanks> inputs;
    std::array<Part, kMostRanks> outputs;
    for (std::size_t r = 0; r < ranks; ++r) {
      inputs[r] = {x.input_of(rank) + r * bytes, bytes / kElement};
      outputs[r] = {arena.output.data() + r * bytes, bytes / kElement};
    }
    const Facts facts{root,          bytes,         x.input_of(rank), arena.output.data(),
                      inputs.data(), outputs.data()};
    if (!algorithm.run(x, facts)) std::printf("failed\n");
  }
}

}  // namespace
}  // namespace symm

int main() {
  for (const symm::Algorithm& algorithm : symm::algorithms()) {
    for (int world_size = 2; world_size <= 3; ++world_size) {
      for (int root = 0; root < (algorithm.is_rooted ? world_size : 1); ++root) {
        symm::trace(algorithm, world_size, false, root);
        if (algorithm.may_be_in_place) symm::trace(algorithm, world_size, true, root);
      }
    }
  }
}
