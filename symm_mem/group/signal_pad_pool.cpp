#include "symm_mem/group/signal_pad_pool.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "kernels/core/atomics.hpp"
#include "kernels/core/platform.hpp"

namespace symm {
namespace {

// Of a pad segment where granules are small: a page would hold no pad of PyTorch's size.
constexpr std::size_t kLeastBytes = std::size_t{256} << 10;

// A message names pads by records of two words: a key, of a segment and a group of 64 of its pads,
// and a mask.
constexpr std::size_t kMaskBits = 64;
constexpr std::size_t kMasks = 16;  // of a segment
constexpr std::size_t kMostPads = kMasks * kMaskBits;
constexpr std::size_t kRecordWords = 2;

// Two pads share no cache line.
std::size_t stride_of(std::size_t pad_bytes) {
  return align_up(std::max<std::size_t>(pad_bytes, 1), kCacheLine);
}

std::uint64_t mask_in(std::span<const std::uint64_t> words, std::uint64_t key) {
  for (std::size_t at = 0; at + kRecordWords <= words.size(); at += kRecordWords) {
    if (words[at] == key) return words[at + 1];
  }
  return 0;
}

}  // namespace

std::size_t SignalPadPool::segment_bytes(const DeviceRuntime& runtime, std::size_t pad_bytes) {
  return std::max({runtime.granularity(), kLeastBytes, stride_of(pad_bytes)});
}

std::vector<std::uint64_t> SignalPadPool::unused(const DeviceRuntime& runtime,
                                                 std::size_t pad_bytes, std::size_t most) const {
  std::vector<std::uint64_t> words;
  for (const PadSegment& one : segments_) {
    if (&one.segment->local()->runtime() != &runtime || one.stride != stride_of(pad_bytes)) {
      continue;
    }
    for (std::size_t first = 0; first < one.uses.size(); first += kMaskBits) {
      if (words.size() + kRecordWords > most) break;
      std::uint64_t mask = 0;
      const std::size_t count = std::min(kMaskBits, one.uses.size() - first);
      for (std::size_t bit = 0; bit < count; ++bit) {
        if (one.uses[first + bit].by.expired()) mask |= std::uint64_t{1} << bit;
      }
      if (mask == 0) continue;
      words.push_back(one.number * kMasks + first / kMaskBits);
      words.push_back(mask);
    }
  }
  fence_after_reads();  // what the last users did here was before
  return words;
}

std::optional<SignalPadPool::Pad> SignalPadPool::take(
    std::span<const std::span<const std::uint64_t>> words) {
  const std::span<const std::uint64_t> first = words.front();
  for (std::size_t at = 0; at + kRecordWords <= first.size(); at += kRecordWords) {
    const std::uint64_t key = first[at];
    std::uint64_t mask = first[at + 1];
    for (const auto& theirs : words) mask &= mask_in(theirs, key);
    if (mask == 0) continue;
    const auto found = std::ranges::find(segments_, key / kMasks, &PadSegment::number);
    const std::size_t index =
        key % kMasks * kMaskBits + static_cast<std::size_t>(std::countr_zero(mask));
    if (found != segments_.end() && index < found->uses.size()) return take(*found, index);
  }
  return std::nullopt;
}

SignalPadPool::Pad SignalPadPool::add(std::uint64_t number, std::shared_ptr<Segment> segment,
                                      std::size_t pad_bytes) {
  const std::size_t stride = stride_of(pad_bytes);
  const std::size_t pads = std::min(segment->bytes() / stride, kMostPads);
  segments_.push_back({number, std::move(segment), stride, std::vector<Use>(pads)});
  return take(segments_.back(), 0);
}

SignalPadPool::Pad SignalPadPool::take(PadSegment& from, std::size_t index) {
  Use& use = from.uses[index];
  Pad pad{{from.segment.get(), [held = from.segment](Segment*) {}},
          index * from.stride,
          std::exchange(use.before, true)};
  use.by = pad.segment;
  return pad;
}

}  // namespace symm
