// What the ranks of a group on one host tell each other whatever they use the group for: one page
// of shared host memory a rank, written by that rank alone and read by all; it starts out zero.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/core/platform.hpp"
#include "kernels/protocol/signal.hpp"

namespace symm {

// Why a rank gave up: the first cause, wherever it arose. A rank that gives up because of a peer's
// record has `code`, `origin` and `text` of that one in its own. Written once, `state` last, before
// anything else that peers could read, and before this rank's user hears of it.
struct alignas(kCacheLine) FailureRecord {
  // Enough for 120 bytes a rank in the arrival report of the largest group; what is longer is cut.
  static constexpr std::size_t kTextBytes = 16 * 1024 - 3 * sizeof(std::uint32_t);
  std::uint32_t state;    // 0: none; 1: the rest is valid
  std::uint32_t code;     // ErrorCode
  std::uint32_t origin;   // the group rank on which the cause arose
  char text[kTextBytes];  // zero-terminated; without the group's name and the rank
};

enum class Lifecycle : std::uint32_t {
  kJoining = 0,
  kMember = 1,
  kLeft = 2,  // destroyed its group in good order
};

struct alignas(4096) GroupPage {
  static constexpr std::size_t kMessageBytes = 4096;

  // What a rank says in a metadata exchange. Two take turns (NOTE [Metadata exchange] in
  // symm_mem/group/local_group.hpp).
  struct Message {
    std::uint64_t purpose;
    std::uint64_t bytes;
    std::uint8_t data[kMessageBytes];
  };

  // A bit a rank.
  static constexpr int kMaskBits = 64;
  static constexpr int kMaskWords = (kMaxRanks + kMaskBits - 1) / kMaskBits;

  SignalLine exchange;    // number of the last metadata exchange that this rank has entered
  std::uint64_t gave_up;  // number of the last one that it has given up
  // Whom it was then waiting for, as far as it knew; written before `gave_up`. A reader may find
  // those of a later exchange: they are for messages.
  std::uint64_t missed[kMaskWords];
  std::uint32_t lifecycle;  // Lifecycle
  FailureRecord failure;
  alignas(kCacheLine) Message messages[2];
};

}  // namespace symm
