// One range of addresses in which all ranks' buffers stand.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/core/error.hpp"
#include "symm_mem/segment/segment.hpp"
#include "test/support/expect_error.hpp"
#include "test/support/mesh_ranks.hpp"
#include "test/support/passing_runtime.hpp"
#include "test/support/process_footprint.hpp"
#include "test/support/segment_ranks.hpp"

namespace symm {
namespace {

using test::allocate_all;
using test::connect_all;
using test::fill;
using test::kPage;
using test::memfd_mappings;
using test::rendezvous_all;
using test::Segments;
using test::wrong_words;

// Rank `rank`'s slice of a view.
std::byte* slice(const Segment::ContiguousView& view, int rank) {
  return view.base + static_cast<std::size_t>(rank) * view.stride_bytes;
}

class ContiguousViewWorlds : public ::testing::TestWithParam<int> {};

TEST_P(ContiguousViewWorlds, HasEachRankAtItsStrideAndMapsOnce) {
  const int world_size = GetParam();
  constexpr std::size_t kBytes = 4096 + 512;
  const auto meshes = connect_all(world_size);
  auto segments = rendezvous_all(meshes, allocate_all(world_size, kBytes));
  for (const auto& segment : segments) fill(*segment);
  for (auto& segment : segments) {
    const int mapped = memfd_mappings();
    const std::uint64_t made = mappings_made();
    const Segment::ContiguousView view = segment->contiguous_view();
    EXPECT_EQ(view.stride_bytes, 2 * kPage);
    for (int rank = 0; rank < world_size; ++rank) {
      EXPECT_EQ(wrong_words(slice(view, rank), kBytes, rank), 0u) << rank;
    }
    EXPECT_EQ(memfd_mappings(), mapped + world_size);
    EXPECT_EQ(mappings_made() - made, static_cast<std::uint64_t>(world_size));
    const Segment::ContiguousView again = segment->contiguous_view();
    EXPECT_EQ(again.base, view.base);
    EXPECT_EQ(again.owner, view.owner);
    EXPECT_EQ(memfd_mappings(), mapped + world_size);
    EXPECT_EQ(mappings_made() - made, static_cast<std::uint64_t>(world_size))
        << "the second call maps nothing";
  }
}

// Every rank writes one place of every slice through its own view; after a barrier every rank finds
// all of them in its view, and the owner in its buffer.
TEST_P(ContiguousViewWorlds, WritesToEverySliceAreSeenByAll) {
  const int world_size = GetParam();
  const auto meshes = connect_all(world_size);
  const auto segments = rendezvous_all(meshes, allocate_all(world_size, kPage + 100));
  const auto mark = [](int writer, int owner) {
    return static_cast<std::byte>(16 * writer + owner + 1);
  };
  const auto place = [](int writer) { return kPage + 3 + static_cast<std::size_t>(writer); };
  test::run_ranks(world_size, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    const auto view = segments[r]->contiguous_view();
    for (int owner = 0; owner < world_size; ++owner) {
      slice(view, owner)[place(rank)] = mark(rank, owner);
    }
    meshes[r]->exchange(9, std::vector<std::uint8_t>{1}, -1, test::kMeshTimeout, nullptr);
    for (int owner = 0; owner < world_size; ++owner) {
      for (int writer = 0; writer < world_size; ++writer) {
        EXPECT_EQ(slice(view, owner)[place(writer)], mark(writer, owner));
      }
    }
    for (int writer = 0; writer < world_size; ++writer) {
      EXPECT_EQ(segments[r]->local()->base()[place(writer)], mark(writer, rank));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, ContiguousViewWorlds, ::testing::Range(1, 6));

TEST(ContiguousView, OutlivesTheSegmentAndShowsLiveMemory) {
  const auto meshes = connect_all(2);
  auto segments = rendezvous_all(meshes, allocate_all(2, kPage));
  for (const auto& segment : segments) fill(*segment);
  Segment::ContiguousView view = segments[0]->contiguous_view();
  segments[0].reset();
  EXPECT_EQ(wrong_words(slice(view, 1), kPage, 1), 0u);
  segments[1]->local()->base()[7] = std::byte{0xee};
  EXPECT_EQ(slice(view, 1)[7], std::byte{0xee});
  segments.clear();
  EXPECT_EQ(wrong_words(slice(view, 0), kPage, 0), 0u);
  view.owner.reset();
  EXPECT_EQ(memfd_mappings(), 0);
}

// Areas of a segment's memory, and bytes of address space. The runtimes of sanitizers map memory of
// their own while a test runs, so that the bytes say nothing of ours there.
std::pair<int, std::size_t> addresses_in_use() {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  return {memfd_mappings(), 0};
#else
  return {memfd_mappings(), test::memory_use().address_space};
#endif
}

TEST(ContiguousView, GivesBackItsAddresses) {
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  const auto meshes = connect_all(3);
  auto segments = rendezvous_all(meshes, allocate_all(3, kBytes));
  segments[0]->contiguous_view();  // so that what the C++ library keeps is there
  const auto [areas, bytes] = addresses_in_use();
  const std::size_t all = bytes == 0 ? 0 : 3 * kBytes;
  auto view = segments[1]->contiguous_view();
  EXPECT_EQ(addresses_in_use(), std::pair(areas + 3, bytes + all));
  segments[1].reset();  // its own memory and two peers', mapped one by one
  EXPECT_EQ(addresses_in_use(), std::pair(areas, bytes));
  view.owner.reset();
  EXPECT_EQ(addresses_in_use(), std::pair(areas - 3, bytes - all));
}

TEST(ContiguousView, OfStridedGroupsOnOneAllocation) {
  // World {0, 1, 2, 3} and the groups {0, 2} and {1, 3}, the latter in reverse order.
  const auto world = connect_all(4);
  const auto even = connect_all(2);
  const auto odd = connect_all(2);
  const auto local = allocate_all(4, 2 * kPage);
  const auto wide = rendezvous_all(world, local);
  for (const auto& segment : wide) fill(*segment);
  const auto evens = rendezvous_all(even, {local[0], local[2]});
  const auto odds = rendezvous_all(odd, {local[3], local[1]});
  const std::pair<const Segments&, std::vector<int>> groups[] = {
      {wide, {0, 1, 2, 3}}, {evens, {0, 2}}, {odds, {3, 1}}};
  for (const auto& [segments, owners] : groups) {
    for (const auto& segment : segments) {
      const auto view = segment->contiguous_view();
      for (std::size_t rank = 0; rank < owners.size(); ++rank) {
        EXPECT_EQ(wrong_words(slice(view, static_cast<int>(rank)), 2 * kPage, owners[rank]), 0u);
      }
    }
  }
  // One write, through the view of one group, at a place inside the allocation.
  slice(odds[1]->contiguous_view(), 0)[kPage + 21] = std::byte{0x3c};
  EXPECT_EQ(local[3]->base()[kPage + 21], std::byte{0x3c});
  EXPECT_EQ(slice(wide[0]->contiguous_view(), 3)[kPage + 21], std::byte{0x3c});
}

TEST(ContiguousView, ManyThreadsGetOneView) {
  const auto meshes = connect_all(2);
  const auto segments = rendezvous_all(meshes, allocate_all(2, kPage));
  const std::uint64_t made = mappings_made();
  std::vector<Segment::ContiguousView> views(8);
  test::run_ranks(8, [&](int thread) {
    views[static_cast<std::size_t>(thread)] = segments[0]->contiguous_view();
  });
  for (const auto& view : views) EXPECT_EQ(view.base, views[0].base);
  EXPECT_EQ(mappings_made() - made, 2u);
}

TEST(ContiguousView, FailingHalfWayLeavesNothingAndCanBeTriedAgain) {
  class Failing final : public test::PassingRuntime {
   public:
    std::shared_ptr<Mapping> map_at(std::shared_ptr<PhysicalMemory> memory,
                                    std::shared_ptr<AddressRange> range,
                                    std::size_t offset) override {
      reserved = range;
      if (offset >= fail_from) throw Error(ErrorCode::kSystem, "no more mappings");
      return PassingRuntime::map_at(std::move(memory), std::move(range), offset);
    }
    std::size_t fail_from = 2 * kPage;
    std::weak_ptr<AddressRange> reserved;
  } failing;
  const auto meshes = connect_all(3);
  std::vector<std::shared_ptr<LocalSegment>> local;
  for (int rank = 0; rank < 3; ++rank) local.push_back(LocalSegment::allocate(failing, kPage));
  const auto segments = rendezvous_all(meshes, local);
  for (const auto& segment : segments) fill(*segment);
  const int mapped = memfd_mappings();
  test::expect_error(test::error_of([&] { segments[2]->contiguous_view(); }), ErrorCode::kSystem,
                     {"no more mappings"});
  EXPECT_EQ(memfd_mappings(), mapped);
  EXPECT_TRUE(failing.reserved.expired());
  failing.fail_from = ~std::size_t{0};
  const auto view = segments[2]->contiguous_view();
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(wrong_words(slice(view, rank), kPage, rank), 0u);
}

TEST(ContiguousView, OfEmptySegments) {
  const auto meshes = connect_all(3);
  const auto segments = rendezvous_all(meshes, allocate_all(3, 0));
  EXPECT_EQ(segments[1]->contiguous_view().stride_bytes, kPage);
}

TEST(ContiguousView, ThatExceedsTheAddressSpaceSaysSo) {
  // A peer's size is taken as it is said, so memory of that size need not be there.
  class Huge final : public PhysicalMemory {
   public:
    std::size_t bytes() const override { return std::size_t{1} << 63; }
  };
  class Boasting final : public test::PassingRuntime {
   public:
    std::shared_ptr<PhysicalMemory> allocate(std::size_t) override {
      return std::make_shared<Huge>();
    }
    HandleKinds handle_kinds(const PhysicalMemory&) override { return {.descriptor = true}; }
    MemoryHandle export_memory(const PhysicalMemory&, HandleKind) override {
      return FileDescriptor(::dup(0));
    }
    std::shared_ptr<PhysicalMemory> import_memory(MemoryHandle, std::size_t) override {
      return std::make_shared<Huge>();
    }
    std::shared_ptr<Mapping> map(std::shared_ptr<PhysicalMemory>) override {
      class Nowhere final : public Mapping {
       public:
        std::byte* base() const override { return nullptr; }
        std::size_t bytes() const override { return std::size_t{1} << 63; }
      };
      return std::make_shared<Nowhere>();
    }
  } boasting;
  const auto meshes = connect_all(2);
  const auto segments = rendezvous_all(
      meshes, {LocalSegment::allocate(boasting, 1), LocalSegment::allocate(boasting, 1)});
  test::expect_error(test::error_of([&] { segments[0]->contiguous_view(); }), ErrorCode::kSystem,
                     {"contiguous_view", "2 times 9223372036854775808"});
}

}  // namespace
}  // namespace symm
