// The algorithms of the collectives, and their names.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace symm {

enum class Algorithm : std::uint8_t {
  kAuto,        // the table decides
  kOneShot,     // host: through the small slots, every rank reads every contribution that it needs
  kTwoShot,     // host: all_reduce, reduce: each rank reduces its share, then shares are gathered
  kRing,        // host: all_reduce by an ordered ring, partial sums 0 -> N-1, results round again
  kPipelined,   // host: chunks through the workspace; GPU: all_to_all, over the wire and by lanes
  kLL,          // GPU: over a wire, one hop: epoch and data in one store
  kLLTwoShot,   // GPU: all_reduce over a wire: shares to their owner, results to all ranks
  kBulk,        // GPU: chunks through slots at the peers, by lanes of warps
  kCopyEngine,  // GPU: copy engines between two barriers; needs symmetric registration
  kMultimem,    // GPU: multicast addresses; needs symmetric registration and a multicast object
};
inline constexpr int kAlgorithmCount = 10;

inline constexpr std::array<std::string_view, kAlgorithmCount> kAlgorithmNames = {
    "auto", "one_shot",    "two_shot", "ring",        "pipelined",
    "ll",   "ll_two_shot", "bulk",     "copy_engine", "multimem"};

constexpr std::string_view algorithm_name(Algorithm algorithm) {
  return kAlgorithmNames[static_cast<std::size_t>(algorithm)];
}

// Throws Error(kInvalidArgument) that lists the names. `source`: the origin of the text in messages
// (an environment variable, an option).
Algorithm parse_algorithm(std::string_view text, std::string_view source);

}  // namespace symm
