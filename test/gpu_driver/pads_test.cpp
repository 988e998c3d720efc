// What symmetric memory of a GPU takes: a buffer its granules, and signal pads a share of one.
#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "symm_mem/group/signal_pad_pool.hpp"
#include "symm_mem/segment/segment.hpp"
#include "test/gpu_driver/driver_fixture.hpp"
#include "test/support/local_groups.hpp"

namespace symm {
namespace {

using test::GpuDriver;
using test::runtime;
using test::state;
using Pad = SignalPadPool::Pad;

constexpr int kRanks = 2;
constexpr std::size_t kPadBytes = 9216;

struct Buffer {
  std::shared_ptr<Segment> buffers;
  Pad pad;
};

// Rank r on device r: an allocation that joins the group.
Buffer share(LocalGroup& group, SignalPadPool& pool, std::size_t bytes) {
  GpuRuntime& gpu = runtime(group.rank());
  const Deadline deadline(test::kTimeout);
  const auto all = group.exchange_words(LocalGroup::Purpose::kMessage,
                                        pool.unused(gpu, kPadBytes, 64), 0, deadline);
  const std::vector<std::span<const std::uint64_t>> words(all.messages.begin(), all.messages.end());
  std::optional<Pad> pad = pool.take(words);
  if (pad && pad->used_before) {
    gpu.clear(pad->segment->local()->base() + pad->offset, kPadBytes);
  }
  auto buffers = group.share(LocalSegment::allocate(gpu, bytes), deadline);
  if (!pad) {
    auto local = LocalSegment::allocate(gpu, SignalPadPool::segment_bytes(gpu, kPadBytes));
    pad = pool.add(all.number, group.share(std::move(local), deadline), kPadBytes);
  }
  return {std::move(buffers), std::move(*pad)};
}

std::byte* pad_of(const Buffer& buffer, int rank) {
  return buffer.pad.segment->base(rank) + buffer.pad.offset;
}

TEST_F(GpuDriver, BuffersOfWholeGranulesTakeNoMoreAndLieWithoutGaps) {
  constexpr std::size_t kBuffers = 30;
  const test::Groups groups = test::connect_groups(kRanks);
  test::run_ranks(kRanks, [&](int rank) {
    SignalPadPool pool;
    LocalGroup& group = test::of(groups, rank);
    std::vector<Buffer> held;
    for (std::size_t number = 0; number < kBuffers; ++number) {
      const std::size_t granules = 1 + number % 3;
      held.push_back(share(group, pool, granules * granule()));
      const Buffer& made = held.back();
      EXPECT_EQ(made.buffers->mapped_bytes(), granules * granule());
      EXPECT_EQ(made.buffers->contiguous_view().stride_bytes, granules * granule());
      EXPECT_EQ(made.pad.segment.get(), held.front().pad.segment.get());
      EXPECT_EQ(made.pad.segment->mapped_bytes(), granule());
      pad_of(made, 1 - rank)[number] = static_cast<std::byte>(1 + number);
    }
    group.exchange_words(LocalGroup::Purpose::kMessage, {}, 0, Deadline(test::kTimeout));
    for (std::size_t number = 0; number < kBuffers; ++number) {
      const std::byte* const pad = pad_of(held[number], rank);
      for (std::size_t at = 0; at < kBuffers; ++at) {
        EXPECT_EQ(pad[at], static_cast<std::byte>(at == number ? 1 + number : 0));
      }
    }
    group.exchange_words(LocalGroup::Purpose::kMessage, {}, 0, Deadline(test::kTimeout));
    // Each rank has made and imported the buffers and one pad segment.
    if (rank == 0) {
      const auto segments = static_cast<int>(kBuffers) + 1;
      EXPECT_EQ(state().handles, before_.handles + kRanks * kRanks * segments);
    }
    group.exchange_words(LocalGroup::Purpose::kMessage, {}, 0, Deadline(test::kTimeout));
  });
}

TEST_F(GpuDriver, PadsAreClearedWithoutWaitingForTheDevice) {
  const test::Groups groups = test::connect_groups(kRanks);
  const int waits = state().device_waits;
  test::run_ranks(kRanks, [&](int rank) {
    SignalPadPool pool;
    LocalGroup& group = test::of(groups, rank);
    std::byte* place = nullptr;
    {
      const Buffer first = share(group, pool, granule());
      place = pad_of(first, rank);
      pad_of(first, 1 - rank)[kPadBytes - 1] = std::byte{7};
      group.exchange_words(LocalGroup::Purpose::kMessage, {}, 0, Deadline(test::kTimeout));
      EXPECT_EQ(place[kPadBytes - 1], std::byte{7});
    }
    const Buffer second = share(group, pool, granule());
    EXPECT_EQ(pad_of(second, rank), place);
    EXPECT_EQ(place[kPadBytes - 1], std::byte{0});
    group.exchange_words(LocalGroup::Purpose::kMessage, {}, 0, Deadline(test::kTimeout));
  });
  EXPECT_EQ(state().device_waits, waits);
}

}  // namespace
}  // namespace symm
