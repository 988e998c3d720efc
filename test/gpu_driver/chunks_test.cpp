// Memory that another library has made in chunks: found behind its addresses, shared with peers,
// and told apart from what was put at the same addresses later.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/error.hpp"
#include "symm_mem/segment/segment.hpp"
#include "test/gpu_driver/driver_fixture.hpp"
#include "test/support/environment.hpp"
#include "test/support/expect_error.hpp"
#include "test/support/foreign_range.hpp"
#include "test/support/mesh_ranks.hpp"
#include "test/support/segment_ranks.hpp"

namespace symm {
namespace {

using test::expect_error;
using test::fake_driver;
using test::ForeignRange;
using test::runtime;
using test::state;
using test::wrong_words;

constexpr int kPosix = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
constexpr int kFabric = CU_MEM_HANDLE_TYPE_FABRIC;

class GpuChunks : public test::GpuDriver {
 protected:
  void SetUp() override {
    GpuDriver::SetUp();
    use_devices(6);
  }

  // `sizes` in granules.
  std::unique_ptr<ForeignRange> range(int device, std::vector<std::size_t> sizes,
                                      int kinds = kPosix) const {
    for (std::size_t& size : sizes) size *= granule();
    return std::make_unique<ForeignRange>(fake_driver(), device, std::move(sizes), kinds);
  }

  // Adopts `bytes` bytes of `from` at `offset`.
  static std::shared_ptr<LocalSegment> from_user_buffer(
      int device, const ForeignRange& from, std::size_t offset, std::size_t bytes,
      std::function<bool()> still_there = [] { return true; }) {
    auto found = runtime(device).find_chunks(from.base() + offset, bytes);
    if (!found) throw std::runtime_error("no chunks");
    return LocalSegment::from_user_buffer(runtime(device), from.base() + offset, bytes,
                                          std::move(*found), std::move(still_there));
  }

  test::ScopedVariable unset_{"SYMM_HANDLE_TYPE", std::nullopt};
};

TEST_F(GpuChunks, AreThoseThatBackTheBytes) {
  const auto memory = range(0, {10, 1, 10, 3});
  const auto found_at = [&](std::size_t offset, std::size_t bytes) {
    auto found = runtime_->find_chunks(memory->base() + offset, bytes);
    std::vector<std::size_t> result;
    if (!found) return result;
    result.push_back(found->start);
    for (const auto& chunk : found->chunks) result.push_back(chunk->bytes() / granule());
    return result;
  };
  using Found = std::vector<std::size_t>;
  const std::size_t g = granule();
  EXPECT_EQ(found_at(0, 1), (Found{0, 10}));
  EXPECT_EQ(found_at(10 * g - 1, 1), (Found{10 * g - 1, 10}));
  EXPECT_EQ(found_at(10 * g - 1, 2), (Found{10 * g - 1, 10, 1}));
  EXPECT_EQ(found_at(10 * g, g), (Found{0, 1}));
  EXPECT_EQ(found_at(10 * g + 512, g), (Found{512, 1, 10}));
  EXPECT_EQ(found_at(3 * g + 7, 21 * g - 7), (Found{3 * g + 7, 10, 1, 10, 3}));
  EXPECT_EQ(found_at(0, 24 * g + 1), Found{}) << "beyond the last";
}

TEST_F(GpuChunks, TheirKindsAreWhatTheyWereMadeWith) {
  state().fabric_offered = state().fabric_permitted = 1;
  const auto kinds_of = [&](int kinds) {
    const auto memory = range(0, {1}, kinds);
    const auto found = runtime_->find_chunks(memory->base(), 1);
    if (!found) return std::string("none");
    const HandleKinds got = runtime_->handle_kinds(*found->chunks.front());
    return std::string(got.descriptor ? "descriptor " : "") + (got.fabric ? "fabric" : "");
  };
  EXPECT_EQ(kinds_of(kPosix), "descriptor ");
  EXPECT_EQ(kinds_of(kFabric), "fabric");
  EXPECT_EQ(kinds_of(kPosix | kFabric), "descriptor fabric");
  EXPECT_EQ(kinds_of(0), "none");
}

TEST_F(GpuChunks, OtherMemoryHasNone) {
  std::vector<std::byte> host(64);
  EXPECT_FALSE(runtime_->find_chunks(host.data(), host.size()));
  const auto elsewhere = range(1, {2});
  EXPECT_FALSE(runtime_->find_chunks(elsewhere->base(), 16)) << "of another device";
  EXPECT_TRUE(runtime(1).find_chunks(elsewhere->base(), 16));
  const auto holed = range(0, {1, 1, 1});
  holed->take_away(1);
  EXPECT_FALSE(runtime_->find_chunks(holed->base(), 2 * granule()));
  EXPECT_TRUE(runtime_->find_chunks(holed->base(), granule()));
  EXPECT_TRUE(runtime_->find_chunks(holed->base() + 2 * granule(), granule()));
}

TEST_F(GpuChunks, ADriverThatTellsMoreThanOneMappingIsNotTrusted) {
  const auto memory = range(0, {2, 2});
  state().ranges_whole = 1;
  EXPECT_FALSE(runtime_->find_chunks(memory->base(), 16));
  EXPECT_FALSE(runtime_->find_chunks(memory->base() + 2 * granule(), 16)) << "beyond the end";
}

TEST_F(GpuChunks, AreHeldForAsLongAsTheyAreKeptAndNoLonger) {
  auto memory = range(0, {1, 1});
  memory->base()[granule() + 3] = std::byte{77};
  const int held = state().handles;
  auto found = runtime_->find_chunks(memory->base() + 5, granule());
  ASSERT_TRUE(found);
  EXPECT_EQ(state().handles, held + 2);
  memory.reset();
  EXPECT_EQ(state().handles, held);
  const auto mapping = runtime_->map(found->chunks[1]);
  EXPECT_EQ(mapping->base()[3], std::byte{77}) << "outlives its maker";
  found.reset();
}

TEST_F(GpuChunks, NewMemoryAtTheSameAddressesIsAnother) {
  const auto memory = range(0, {1, 1, 1});
  const auto before = runtime_->find_chunks(memory->base(), 3 * granule());
  memory->exchange(1);
  const auto after = runtime_->find_chunks(memory->base(), 3 * granule());
  ASSERT_TRUE(before && after);
  std::vector<bool> same;
  for (std::size_t i = 0; i < 3; ++i) {
    same.push_back(runtime_->is_same(*before->chunks[i], *after->chunks[i]));
  }
  EXPECT_EQ(same, (std::vector<bool>{true, false, true}));
}

// Every rank has its memory cut in its own way, and its buffer begins somewhere else in it.
TEST_F(GpuChunks, RanksSeeEachOthersBuffersWhateverTheirChunks) {
  const std::size_t bytes = 4 * granule() + 512;
  const std::vector<std::vector<std::size_t>> sizes = {
      {10}, {1, 1, 1, 1, 1, 1}, {2, 1, 10}, {3, 3}};
  const std::vector<std::size_t> offsets = {512, granule() - 1024, granule() + 2048, 0};
  const auto meshes = test::connect_all(4);
  std::vector<std::unique_ptr<ForeignRange>> memory;
  test::Segments segments(4);
  for (int rank = 0; rank < 4; ++rank) memory.push_back(range(rank, sizes[rank]));
  test::run_ranks(4, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    segments[r] =
        Segment::rendezvous(*meshes[r], from_user_buffer(rank, *memory[r], offsets[r], bytes), 0,
                            test::kMeshTimeout, nullptr);
    test::fill(*segments[r]);
  });
  for (std::size_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(segments[rank]->base(static_cast<int>(rank)), memory[rank]->base() + offsets[rank]);
    for (int peer = 0; peer < 4; ++peer) {
      EXPECT_EQ(wrong_words(segments[rank]->base(peer), bytes, peer), 0u) << rank << peer;
    }
  }
  // What a peer writes lands in the owner's own memory.
  segments[3]->base(1)[bytes - 1] = std::byte{200};
  EXPECT_EQ((memory[1]->base() + offsets[1])[bytes - 1], std::byte{200});
  EXPECT_FALSE(segments[0]->multicast().available());
}

TEST_F(GpuChunks, AnAllocatedSegmentMeetsAUserBuffer) {
  const std::size_t bytes = granule() + 64;
  const auto meshes = test::connect_all(2);
  const auto memory = range(1, {1, 1, 1});
  test::Segments segments(2);
  test::run_ranks(2, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    auto local = rank == 0 ? LocalSegment::allocate(runtime(0), bytes)
                           : from_user_buffer(1, *memory, granule() / 2, bytes);
    segments[r] = Segment::rendezvous(*meshes[r], std::move(local), 0, test::kMeshTimeout, nullptr);
    test::fill(*segments[r]);
  });
  EXPECT_EQ(wrong_words(segments[0]->base(1), bytes, 1), 0u);
  EXPECT_EQ(wrong_words(segments[1]->base(0), bytes, 0), 0u);
}

TEST_F(GpuChunks, ContainsAsksWhetherTheMemoryIsStillThere) {
  const auto memory = range(0, {1, 1});
  bool there = true;
  const auto local = from_user_buffer(0, *memory, 512, granule(), [&there] { return there; });
  EXPECT_TRUE(local->contains(memory->base() + 512, granule()));
  EXPECT_FALSE(local->contains(memory->base() + 511, 1));
  EXPECT_FALSE(local->contains(memory->base() + 512, granule() + 1));
  there = false;
  EXPECT_FALSE(local->contains(memory->base() + 512, 1));
}

TEST_F(GpuChunks, BuffersOfDifferentSizesAreRefusedOnEveryRank) {
  const auto meshes = test::connect_all(3);
  std::vector<std::unique_ptr<ForeignRange>> memory;
  for (int rank = 0; rank < 3; ++rank) memory.push_back(range(rank, {1, 1, 1}));
  const auto errors = test::errors_of_ranks(3, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    const std::size_t bytes = 2 * granule() + (rank == 2 ? 8 : 0);
    Segment::rendezvous(*meshes[r], from_user_buffer(rank, *memory[r], 0, bytes), 0,
                        test::kMeshTimeout, nullptr);
  });
  for (const auto& error : errors) {
    expect_error(error, ErrorCode::kMismatch,
                 {"same size", "rank 0 brought " + std::to_string(2 * granule()),
                  "rank 2 brought " + std::to_string(2 * granule() + 8)});
  }
}

// The third chunk of rank 1 has no descriptor, and this is found when its turn has come.
TEST_F(GpuChunks, AFailureAtALaterChunkIsEveryRanksAndTheMeshGoesOn) {
  state().fabric_offered = state().fabric_permitted = 1;
  const auto meshes = test::connect_all(3);
  const std::size_t bytes = 3 * granule();
  std::vector<std::unique_ptr<ForeignRange>> memory;
  for (int rank = 0; rank < 3; ++rank) memory.push_back(range(rank, {1, 1, 1, 1}));
  const auto odd = range(1, {1}, kFabric);
  const auto mixed = [&](int rank) {
    auto chunks = runtime(rank).find_chunks(memory[static_cast<std::size_t>(rank)]->base(), bytes);
    if (rank == 1) {
      chunks->chunks[2] = runtime(1).find_chunks(odd->base(), granule())->chunks.front();
    }
    return LocalSegment::from_user_buffer(runtime(rank),
                                          memory[static_cast<std::size_t>(rank)]->base(), bytes,
                                          std::move(*chunks), [] { return true; });
  };
  const int held = state().handles;
  const auto errors = test::errors_of_ranks(3, [&](int rank) {
    Segment::rendezvous(*meshes[static_cast<std::size_t>(rank)], mixed(rank), 0, test::kMeshTimeout,
                        nullptr);
  });
  for (const auto& error : errors) {
    expect_error(error, ErrorCode::kUnsupported, {"rank 1 has no descriptor"});
  }
  EXPECT_EQ(state().handles, held);
  test::Segments segments(3);
  test::run_ranks(3, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    segments[r] = Segment::rendezvous(*meshes[r], from_user_buffer(rank, *memory[r], 8, bytes), 1,
                                      test::kMeshTimeout, nullptr);
    test::fill(*segments[r]);
  });
  EXPECT_EQ(wrong_words(segments[0]->base(2), bytes, 2), 0u);
}

TEST_F(GpuChunks, FabricHandlesCarryThemWhereThereAreNoDescriptors) {
  state().fabric_offered = state().fabric_permitted = 1;
  const auto meshes = test::connect_all(2);
  std::vector<std::unique_ptr<ForeignRange>> memory;
  memory.push_back(range(0, {1, 1}, kFabric));
  memory.push_back(range(1, {2, 1}, kFabric | kPosix));
  test::Segments segments(2);
  test::run_ranks(2, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    segments[r] =
        Segment::rendezvous(*meshes[r], from_user_buffer(rank, *memory[r], 64, granule() + 64), 0,
                            test::kMeshTimeout, nullptr);
    test::fill(*segments[r]);
  });
  EXPECT_EQ(wrong_words(segments[0]->base(1), granule() + 64, 1), 0u);
  EXPECT_EQ(wrong_words(segments[1]->base(0), granule() + 64, 0), 0u);
  EXPECT_EQ(state().fabric_imports - before_.fabric_imports, 3)
      << "two of rank 0's chunks and the first of rank 1's";
}

TEST_F(GpuChunks, AViewHasTheBuffersAtOneStrideWhereWholeGranulesAreBetweenTheirStarts) {
  const std::size_t bytes = 2 * granule();
  const std::vector<std::size_t> offsets = {512, 3 * granule() + 512, granule() + 512};
  const auto meshes = test::connect_all(3);
  std::vector<std::unique_ptr<ForeignRange>> memory;
  test::Segments segments(3);
  for (int rank = 0; rank < 3; ++rank) memory.push_back(range(rank, {4, 1, 1, 1}));
  test::run_ranks(3, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    segments[r] =
        Segment::rendezvous(*meshes[r], from_user_buffer(rank, *memory[r], offsets[r], bytes), 0,
                            test::kMeshTimeout, nullptr);
    test::fill(*segments[r]);
  });
  for (const auto& segment : segments) {
    const auto view = segment->contiguous_view();
    EXPECT_EQ(view.stride_bytes % granule(), 0u);
    for (std::size_t peer = 0; peer < 3; ++peer) {
      EXPECT_EQ(wrong_words(view.base + peer * view.stride_bytes, bytes, static_cast<int>(peer)),
                0u);
    }
  }
}

TEST_F(GpuChunks, AViewThatNoMappingCanGiveIsRefusedOnEveryRank) {
  const auto meshes = test::connect_all(2);
  std::vector<std::unique_ptr<ForeignRange>> memory;
  for (int rank = 0; rank < 2; ++rank) memory.push_back(range(rank, {1, 1}));
  const auto errors = test::errors_of_ranks(2, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    const auto local = from_user_buffer(rank, *memory[r], rank == 0 ? 512 : 1024, granule());
    Segment::rendezvous(*meshes[r], local, 0, test::kMeshTimeout, nullptr)->contiguous_view();
  });
  for (const auto& error : errors) {
    expect_error(error, ErrorCode::kUnsupported,
                 {"contiguous_view", "byte 512", "byte 1024", "torch_symm.empty"});
  }
}

}  // namespace
}  // namespace symm
