// What a group's memory costs, and that no two mailboxes of a rank share a byte.
#include "kernels/protocol/mailbox.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace symm {
namespace {

TEST(MailboxLayout, ControlRegionAndMailboxesFitTwoMebibytes) {
  for (int world_size = 2; world_size <= kMaxRanks; ++world_size) {
    EXPECT_LE(sizeof(ControlRegion) + MailboxLayout(world_size).bytes(), std::size_t{2} << 20)
        << "world size " << world_size;
  }
}

// [first, last) as offsets from the start of the mailboxes.
struct Range {
  std::size_t first;
  std::size_t last;
};

std::vector<Range> ranges_in_order(const MailboxLayout& layout, std::byte* base, int owner,
                                   int world_size) {
  std::vector<Range> ranges;
  const auto add = [&](const void* data, std::size_t bytes) {
    const auto first = static_cast<std::size_t>(static_cast<const std::byte*>(data) - base);
    ranges.push_back({first, first + bytes});
  };
  for (int peer = 0; peer < world_size; ++peer) add(&layout.inbox(base, peer), sizeof(Inbox));
  for (int peer = 0; peer < world_size; ++peer) {
    if (peer == owner) continue;
    add(&layout.outbox(base, owner, peer), sizeof(OutboxHeader));
    for (std::uint64_t i = 0; i < layout.envelopes(); ++i) {
      add(&layout.envelope(base, owner, peer, i), sizeof(Envelope));
    }
    for (std::uint64_t i = 0; i < kTrays; ++i) {
      add(layout.tray(base, owner, peer, i), layout.tray_bytes());
    }
    add(layout.ring(base, owner, peer), layout.ring_bytes());
  }
  return ranges;
}

TEST(MailboxLayout, NothingOverlapsAndAllLiesInside) {
  for (const int world_size : {2, 3, 4, 7, 8, 33, 127, kMaxRanks}) {
    const MailboxLayout layout(world_size);
    ASSERT_GE(layout.envelopes(), 2U);
    ASSERT_GE(layout.ring_bytes(), kEnvelopeBytes);
    ASSERT_LT(layout.ring_bytes(), MailboxLayout::kOutboxesBytes);
    ASSERT_GT(layout.tray_bytes(), kInlineBytes);
    ASSERT_LE(layout.tray_bytes(), kMostTrayBytes);
    const std::unique_ptr<std::byte[]> memory(new std::byte[layout.bytes()]);
    for (const int owner : {0, world_size / 2, world_size - 1}) {
      SCOPED_TRACE("world size " + std::to_string(world_size) + ", owner " + std::to_string(owner));
      std::size_t end = 0;
      for (const Range& range : ranges_in_order(layout, memory.get(), owner, world_size)) {
        ASSERT_GE(range.first, end);
        end = range.last;
      }
      EXPECT_LE(end, layout.bytes());
    }
  }
}

}  // namespace
}  // namespace symm
