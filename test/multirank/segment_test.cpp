#include "symm_mem/segment/segment.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/error.hpp"
#include "test/support/expect_error.hpp"
#include "test/support/file_store.hpp"
#include "test/support/forked_child.hpp"
#include "test/support/mesh_ranks.hpp"
#include "test/support/passing_runtime.hpp"
#include "test/support/segment_ranks.hpp"
#include "test/support/temporary_directory.hpp"

namespace symm {
namespace {

using test::allocate_all;
using test::connect_all;
using test::expect_error;
using test::fill;
using test::kMeshTimeout;
using test::kPage;
using test::rendezvous_all;
using test::wrong_words;

TEST(LocalSegment, SizesAndInteriorPointers) {
  const auto local = LocalSegment::allocate(host_runtime(), 1000);
  EXPECT_EQ(local->bytes(), 1000u);
  EXPECT_EQ(local->mapped_bytes(), kPage);
  std::byte* const base = local->base();
  EXPECT_TRUE(local->contains(base, 1000));
  EXPECT_TRUE(local->contains(base + 999, 1));
  EXPECT_TRUE(local->contains(base + 1000, 0));
  EXPECT_FALSE(local->contains(base, 1001));
  EXPECT_FALSE(local->contains(base + 999, 2));
  EXPECT_FALSE(local->contains(base + 1001, 0));
  EXPECT_FALSE(local->contains(base - 1, 1));
  EXPECT_FALSE(local->contains(base + 1, ~std::size_t{0}));
}

TEST(LocalSegment, EmptyOccupiesOneGranule) {
  const auto local = LocalSegment::allocate(host_runtime(), 0);
  EXPECT_EQ(local->bytes(), 0u);
  EXPECT_EQ(local->mapped_bytes(), kPage);
  EXPECT_TRUE(local->contains(local->base(), 0));
  EXPECT_FALSE(local->contains(local->base(), 1));
}

class SegmentWorlds : public ::testing::TestWithParam<int> {};

TEST_P(SegmentWorlds, EveryRankSeesAndWritesEveryBuffer) {
  const int world_size = GetParam();
  constexpr std::size_t kBytes = 3 * 4096 + 8;
  const auto meshes = connect_all(world_size);
  const auto segments = rendezvous_all(meshes, allocate_all(world_size, kBytes));
  for (const auto& segment : segments) fill(*segment);
  for (int rank = 0; rank < world_size; ++rank) {
    const Segment& segment = *segments[static_cast<std::size_t>(rank)];
    EXPECT_EQ(segment.rank(), rank);
    ASSERT_EQ(segment.world_size(), world_size);
    EXPECT_EQ(segment.bytes(), kBytes);
    EXPECT_EQ(segment.mapped_bytes(), 4 * kPage);
    EXPECT_EQ(segment.base(rank), segment.local()->base());
    for (int peer = 0; peer < world_size; ++peer) {
      EXPECT_EQ(segment.bases()[peer], segment.base(peer));
      EXPECT_EQ(wrong_words(segment.base(peer), kBytes, peer), 0u) << rank << " of " << peer;
    }
  }
  // An interior place written through a peer's mapping is what the owner reads.
  for (int rank = 0; rank < world_size; ++rank) {
    const int next = (rank + 1) % world_size;
    segments[static_cast<std::size_t>(rank)]->base(next)[kPage + 13] =
        std::byte{static_cast<unsigned char>(100 + rank)};
  }
  for (int rank = 0; rank < world_size; ++rank) {
    const int previous = (rank + world_size - 1) % world_size;
    EXPECT_EQ(segments[static_cast<std::size_t>(rank)]->local()->base()[kPage + 13],
              std::byte{static_cast<unsigned char>(100 + previous)});
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, SegmentWorlds, ::testing::Range(1, 6));

TEST(Segment, EmptySegmentsMeet) {
  const auto meshes = connect_all(3);
  const auto segments = rendezvous_all(meshes, allocate_all(3, 0));
  EXPECT_EQ(segments[2]->bytes(), 0u);
  EXPECT_EQ(segments[2]->mapped_bytes(), kPage);
  EXPECT_EQ(segments[2]->contiguous_view().stride_bytes, kPage);
}

TEST(Segment, DifferentSizesRaiseOnEveryRankAndNameBoth) {
  const auto meshes = connect_all(3);
  auto local = allocate_all(3, kPage);
  local[2] = LocalSegment::allocate(host_runtime(), kPage + 1);
  const auto attempt = [&](std::uint64_t sequence) {
    return test::errors_of_ranks(3, [&](int rank) {
      const auto r = static_cast<std::size_t>(rank);
      Segment::rendezvous(*meshes[r], local[r], sequence, kMeshTimeout, nullptr);
    });
  };
  for (const auto& error : attempt(0)) {
    expect_error(error, ErrorCode::kMismatch,
                 {"rank 0", "rank 2", "4096 bytes", "4097 bytes (8192 mapped)"});
  }
  // The mesh is still of use.
  local[2] = LocalSegment::allocate(host_runtime(), kPage - 1);
  for (const auto& error : attempt(1)) EXPECT_FALSE(error.has_value());
}

TEST(Segment, SeveralGroupsShareOneLocalSegment) {
  // Ranks 0, 1, 2 of the first group; the second has its ranks 2 and 0, in that order.
  const auto all = connect_all(3);
  const auto pair = connect_all(2);
  const auto local = allocate_all(3, kPage);
  const auto wide = rendezvous_all(all, local);
  auto narrow = rendezvous_all(pair, {local[2], local[0]});
  for (const auto& segment : wide) fill(*segment);
  EXPECT_EQ(narrow[0]->local(), wide[2]->local());
  EXPECT_EQ(wrong_words(narrow[1]->base(0), kPage, 2), 0u);
  EXPECT_EQ(wrong_words(narrow[0]->base(1), kPage, 0), 0u);
  narrow.clear();
  EXPECT_EQ(wrong_words(wide[1]->base(2), kPage, 2), 0u) << "the other group is not touched";
}

TEST(Segment, MemoryStaysWhenItsOwnerIsGone) {
  const test::TemporaryDirectory directory;
  const auto take_part = [&](int rank) {
    test::FileStore store(directory.path());
    const auto mesh = BootstrapMesh::connect(store, test::mesh_config(rank, 2));
    auto segment = Segment::rendezvous(*mesh, LocalSegment::allocate(host_runtime(), 2 * kPage), 0,
                                       kMeshTimeout, nullptr);
    fill(*segment);
    mesh->exchange(1, std::vector<std::uint8_t>{1}, -1, kMeshTimeout, nullptr);
    return segment;
  };
  test::ForkedChild peer([&] {
    const auto segment = take_part(1);
    return ::pause();
  });
  const auto segment = take_part(0);
  peer.kill();
  EXPECT_EQ(peer.wait(), -SIGKILL);
  EXPECT_EQ(wrong_words(segment->base(1), 2 * kPage, 1), 0u);
  segment->base(1)[3] = std::byte{1};
  const auto view = segment->contiguous_view();
  EXPECT_EQ(view.base[2 * kPage + 3], std::byte{1});
}

TEST(Segment, ARankThatCannotTakePartRaisesOnEveryRank) {
  test::ForkedChild child([] {
    const auto meshes = connect_all(2);
    const auto local = allocate_all(2, kPage);
    const FileDescriptor highest(::dup(0));
    const rlimit limit{static_cast<rlim_t>(highest.get()) + 1, 4096};
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
    const auto errors = test::errors_of_ranks(2, [&](int rank) {
      const auto r = static_cast<std::size_t>(rank);
      Segment::rendezvous(*meshes[r], local[r], 0, kMeshTimeout, nullptr);
    });
    for (const auto& error : errors) {
      if (!error || error->code() != ErrorCode::kSystem) return 2;
      if (std::string(error->what()).find("RLIMIT_NOFILE") == std::string::npos) return 3;
    }
    return 0;
  });
  EXPECT_EQ(child.wait(), 0);
}

TEST(Segment, ForgedMemoryIsRefusedOnEveryRank) {
  // Rank 1 claims more bytes than its descriptor has.
  class Liar final : public test::PassingRuntime {
   public:
    MemoryHandle export_memory(const PhysicalMemory&, HandleKind kind) override {
      return host_runtime().export_memory(*host_runtime().allocate(kPage), kind);
    }
  } liar;
  const auto meshes = connect_all(3);
  auto local = allocate_all(3, 4 * kPage);
  local[1] = LocalSegment::allocate(liar, 4 * kPage);
  const auto errors = test::errors_of_ranks(3, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    Segment::rendezvous(*meshes[r], local[r], 0, kMeshTimeout, nullptr);
  });
  for (const auto& error : errors) {
    expect_error(error, ErrorCode::kSecurity, {"rank 1", "expected 16384 bytes, it has 4096"});
  }
}

}  // namespace
}  // namespace symm
