#include "backend/engine/record/content_hash.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace symm {

namespace {

constexpr std::uint64_t kMultiplier = 0x9e3779b97f4a7c15;  // odd: 2^64 over the golden ratio
constexpr std::uint64_t kOfWord = 0xd1b54a32d192ed03;      // odd, unlike it
constexpr std::size_t kLanes = 4;
constexpr std::size_t kWord = sizeof(std::uint64_t);

// A multiplication carries a difference upwards only, and the rotation brings it down again. The
// word has one of its own, so that no few bits of a later word take back a change of its top bits.
constexpr std::uint64_t hash_step(std::uint64_t lane, std::uint64_t word) {
  return std::rotl(lane + word * kOfWord, 31) * kMultiplier;
}

std::uint64_t word_at(const std::byte* data) {
  std::uint64_t word;
  std::memcpy(&word, data, kWord);
  return word;
}

}  // namespace

void ContentHash::add(std::span<const std::byte> bytes) {
  std::array<std::uint64_t, kLanes> lanes = {1, 2, 3, 4};
  const std::byte* next = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= kLanes * kWord; left -= kLanes * kWord, next += kLanes * kWord) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = hash_step(lanes[lane], word_at(next + lane * kWord));
    }
  }
  for (std::size_t lane = 0; left > 0; ++lane) {
    std::array<std::byte, kWord> last{};  // zeros behind the end, whose place is in the hash
    const std::size_t some = std::min(left, kWord);
    std::memcpy(last.data(), next, some);
    lanes[lane] = hash_step(lanes[lane], word_at(last.data()));
    left -= some;
    next += some;
  }
  std::uint64_t value = hash_step(value_, bytes.size());
  for (const std::uint64_t lane : lanes) value = hash_step(value, lane);
  value_ = (value ^ (value >> 32)) * kMultiplier;
}

}  // namespace symm
