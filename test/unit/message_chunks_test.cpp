// How a message is cut, and where its chunks stand in a segment.
#include <gtest/gtest.h>

#include <set>

#include "kernels/protocol/device_layout.hpp"

namespace symm {
namespace {

const std::uint64_t kWorkspaces[] = {kLeastDeviceWorkspace, 64u << 20};

TEST(MessageChunks, AllOfAMessageInChunksThatFitInSlots) {
  for (const std::uint64_t workspace : kWorkspaces) {
    for (const int world : {2, 3, 4, 8, 16, kMaxDeviceRanks}) {
      const DeviceLayout layout = DeviceLayout::of(world, workspace);
      for (int tag = 0; tag < kTagChannels; ++tag) {
        for (std::uint64_t bytes = 0; bytes < 1u << 30; bytes = bytes * 7 / 4 + 1) {
          const MessageCut cut = layout.message_cut(bytes, tag);
          ASSERT_GE(cut.chunks, 1u);
          ASSERT_GT(cut.chunk, 0u);
          ASSERT_EQ(cut.chunk % kChunkUnit, 0u);
          ASSERT_LE(cut.chunk, layout.message_slot_bytes(tag));
          ASSERT_GE(std::uint64_t{cut.chunk} * cut.chunks, bytes);
          ASSERT_LT(std::uint64_t{cut.chunk} * (cut.chunks - 1), bytes == 0 ? 1 : bytes);
          // More of them than slots only where they are as large as slots.
          if (cut.chunks > layout.message_slots_of_tag) {
            ASSERT_EQ(cut.chunk, layout.message_slot_bytes(tag));
          }
        }
      }
    }
  }
}

TEST(MessageChunks, SlotsAndSignalsAreApartAndInside) {
  for (const std::uint64_t workspace : kWorkspaces) {
    for (const int world : {2, 3, 8, kMaxDeviceRanks}) {
      const DeviceLayout layout = DeviceLayout::of(world, workspace);
      const std::uint32_t slots = layout.message_slots_of_tag;
      ASSERT_EQ(slots & (slots - 1), 0u);
      std::uint64_t end = layout.message_slots;
      for (int sender = 0; sender < world - 1; ++sender) {
        for (int tag = 0; tag < kTagChannels; ++tag) {
          for (std::uint32_t number = 0; number < slots; ++number) {
            ASSERT_EQ(layout.message_slot(sender, tag, number), end);
            ASSERT_EQ(layout.message_slot(sender, tag, number + 3 * slots), end);
            end += layout.message_slot_bytes(tag);
          }
        }
      }
      EXPECT_LE(end, layout.bulk_signals);
      std::set<std::uint64_t> signals;
      for (int peer = 0; peer < world; ++peer) {
        for (int tag = 0; tag < kTagChannels; ++tag) {
          for (std::uint32_t number = 0; number < slots; ++number) {
            signals.insert(layout.message_signal(peer, tag, number));
          }
        }
      }
      EXPECT_EQ(signals.size(), static_cast<std::size_t>(world) * kTagChannels * slots);
      EXPECT_EQ(*signals.begin(), layout.message_signals);
      EXPECT_LE(*signals.rbegin() + sizeof(MessageSignal), layout.message_slots);
    }
  }
}

}  // namespace
}  // namespace symm
