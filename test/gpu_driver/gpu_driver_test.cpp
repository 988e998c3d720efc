// The memory half of the CUDA device library against a stand-in for the driver: what it asks for,
// in which context, what it gives back, and what it says when something is missing. It shows
// nothing about a real driver; test/gpu does.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/error.hpp"
#include "symm_mem/segment/segment.hpp"
#include "test/gpu_driver/driver_fixture.hpp"
#include "test/support/expect_error.hpp"
#include "test/support/forked_child.hpp"
#include "test/support/mesh_ranks.hpp"

namespace symm {
namespace {

using test::driver_entry;
using test::error_of;
using test::expect_error;
using test::FakeGpuDriverState;
using test::GpuDriver;
using test::runtime;
using test::state;

// Named so that GoogleTest runs it first: the driver is looked for until it is found.
class GpuDriverDeathTest : public ::testing::Test {
 protected:
  static void expect_unsupported(const std::vector<std::string>& words, int index = 0) {
    expect_error(error_of([&] { runtime(index); }), ErrorCode::kUnsupported, words);
  }
};

TEST_F(GpuDriverDeathTest, SaysWhatIsMissingAndLooksAgain) {
  test::ForkedChild child([] {
    state().version = 12080;
    expect_unsupported({"too old", "CUDA 12.8", "CUDA 13.0"});
    state().version = 13020;
    state().device_count = 0;
    expect_unsupported({"no GPU is visible", "CUDA_VISIBLE_DEVICES"});
    state().device_count = 2;
    expect_unsupported({"cuda:2", "no such GPU", "sees 2"}, 2);
    expect_unsupported({"cuda:-1", "no such GPU"}, -1);
    state().vmm_supported = 0;
    expect_unsupported({"cuda:1", "Fake GPU B", "virtual memory"}, 1);
    state().vmm_supported = 1;
    state().posix_offered = 0;
    expect_unsupported({"cuda:1", "neither by file descriptors nor by fabric handles"}, 1);
    state().posix_offered = 1;
    return ::testing::Test::HasFailure() || runtime(1).identity().index != 1 ? 1 : 0;
  });
  EXPECT_EQ(child.wait(), 0);
}

TEST_F(GpuDriver, IdentityIsTheDevices) {
  const GpuIdentity& second = runtime(1).identity();
  EXPECT_EQ(second.name, "Fake GPU B");
  EXPECT_EQ(second.index, 1);
  EXPECT_EQ(second.multiprocessors, 132);
  EXPECT_EQ(second.architecture, 90);
  EXPECT_EQ(second.uuid[3], 19);
  EXPECT_EQ(runtime_->identity().uuid[15], 15);
  EXPECT_EQ(&runtime(0), runtime_);
  EXPECT_NE(&runtime(1), runtime_);
}

TEST_F(GpuDriver, LinesAreWholeOnTheGpuItselfAndOverNvlinkToOneThatIsSeen) {
  const GpuUuid own = runtime_->identity().uuid;
  const GpuUuid other = runtime(1).identity().uuid;
  EXPECT_EQ(runtime_->gpus_with_lines(), (std::vector{own, other}));
  state().unlinked_devices = 2;
  EXPECT_EQ(runtime_->gpus_with_lines(), std::vector{own});
  EXPECT_EQ(runtime(1).gpus_with_lines(), std::vector{other});
  state().unlinked_devices = 0;
}

TEST_F(GpuDriver, AllocatedMemoryIsClearedAndMappedOnceOnly) {
  const auto memory = runtime_->allocate(granule() + 1);
  EXPECT_EQ(memory->bytes(), 2 * granule());
  EXPECT_EQ(state().mappings, before_.mappings + 1);
  const auto mapping = runtime_->map(memory);
  EXPECT_EQ(state().mappings, before_.mappings + 1) << "the place in which it was cleared";
  EXPECT_EQ(std::count(mapping->base(), mapping->base() + mapping->bytes(), std::byte{0}),
            static_cast<std::ptrdiff_t>(2 * granule()));
  const auto second = runtime_->map(memory);
  EXPECT_NE(second->base(), mapping->base());
  second->base()[granule() + 5] = std::byte{7};
  EXPECT_EQ(mapping->base()[granule() + 5], std::byte{7});
}

TEST_F(GpuDriver, AddressesStayWhereTheirRangeIsKeptAndGetOtherMemory) {
  auto memory = runtime_->allocate(granule());
  auto mapping = runtime_->map(memory);
  std::byte* const base = mapping->base();
  base[3] = std::byte{5};
  auto seen =
      runtime_->map(runtime_->import_memory(runtime_->export_descriptor(*memory), granule()));
  const auto range = mapping->range();
  const auto peers_range = seen->range();
  ASSERT_NE(range, nullptr);
  EXPECT_EQ(range->base(), base);
  for (int time = 0; time < 2; ++time) {
    std::byte* const peers_base = seen->base();
    mapping.reset();
    memory.reset();
    seen.reset();
    EXPECT_EQ(state().handles, before_.handles);
    EXPECT_EQ(state().mappings, before_.mappings);
    EXPECT_EQ(state().ranges, before_.ranges + 2);
    memory = runtime_->allocate(granule());
    mapping = runtime_->map_at(memory, range, 0);
    seen = runtime_->map_at(
        runtime_->import_memory(runtime_->export_descriptor(*memory), granule()), peers_range, 0);
    EXPECT_EQ(mapping->base(), base);
    EXPECT_EQ(mapping->range(), range);
    EXPECT_EQ(seen->base(), peers_base);
    EXPECT_EQ(base[3], std::byte{0});
    base[3] = std::byte{6};
    EXPECT_EQ(peers_base[3], std::byte{6});
  }
}

TEST_F(GpuDriver, EveryOrderOfLettingGoFreesAll) {
  for (int order = 0; order < 3; ++order) {
    auto memory = runtime_->allocate(1);
    auto range = runtime_->reserve(2 * granule());
    auto placed = runtime_->map_at(memory, range, granule());
    EXPECT_EQ(placed->base(), range->base() + granule());
    auto mapping = runtime_->map(memory);
    if (order == 0) memory.reset();
    if (order == 1) placed.reset();
    range.reset();
    if (order == 2) mapping.reset();
    if (order != 1) {
      placed->base()[9] = std::byte{1};
    }
  }
}

TEST_F(GpuDriver, ImportedMemoryIsTheSame) {
  auto memory = runtime_->allocate(1);
  const auto mapping = runtime_->map(memory);
  FileDescriptor exported = runtime_->export_descriptor(*memory);
  EXPECT_EQ(::fcntl(exported.get(), F_GETFD), FD_CLOEXEC);
  const auto seen = runtime_->map(runtime_->import_memory(std::move(exported), granule()));
  mapping->base()[100] = std::byte{3};
  EXPECT_EQ(seen->base()[100], std::byte{3});
}

TEST_F(GpuDriver, AccessThatIsRefusedNamesTheGpuAndLeavesNothing) {
  const auto memory = runtime_->allocate(1);
  const auto imported = runtime_->import_memory(runtime_->export_descriptor(*memory), granule());
  const int mappings = state().mappings;
  state().fail_access = 1;
  const auto error = error_of([&] { runtime_->map(imported); });
  state().fail_access = 0;
  expect_error(error, ErrorCode::kSystem,
               {"a peer's memory", "Fake GPU A", "cuda:0",
                "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f", "no access"});
  EXPECT_EQ(state().mappings, mappings);
}

TEST_F(GpuDriver, ErrorsNameSizeAndDevice) {
  expect_error(error_of([&] { runtime_->allocate(0); }), ErrorCode::kInvalidArgument, {"got 0"});
  expect_error(error_of([&] { runtime_->allocate(std::size_t{1} << 40); }), ErrorCode::kSystem,
               {"1099511627776", "Fake GPU A", "out of memory", "1073741824"});
  expect_error(error_of([&] { runtime_->allocate(~std::size_t{0}); }), ErrorCode::kSystem,
               {"Fake GPU A"});
  expect_error(error_of([&] { runtime_->reserve(0); }), ErrorCode::kSystem, {"Fake GPU A"});
  expect_error(error_of([&] { runtime_->import_memory(FileDescriptor(), granule()); }),
               ErrorCode::kSecurity, {"not an open descriptor"});
  expect_error(error_of([&] {
                 runtime_->import_memory(FileDescriptor(::memfd_create("x", MFD_CLOEXEC)),
                                         granule());
               }),
               ErrorCode::kSecurity, {"cannot import", "Fake GPU A"});
  const auto memory = runtime_->allocate(1);
  expect_error(error_of([&] {
                 runtime_->import_memory(runtime_->export_descriptor(*memory), granule() + 1);
               }),
               ErrorCode::kSecurity, {"multiple"});
  const auto larger = runtime_->import_memory(runtime_->export_descriptor(*memory), 3 * granule());
  expect_error(error_of([&] { runtime_->map(larger); }), ErrorCode::kSystem,
               {"a peer's memory", "Fake GPU A"});
  const auto range = runtime_->reserve(1);
  for (const std::size_t offset : {std::size_t{1}, granule(), 5 * granule()}) {
    expect_error(error_of([&] { runtime_->map_at(memory, range, offset); }),
                 ErrorCode::kInvalidArgument, {"map_at", std::to_string(offset)});
  }
}

TEST_F(GpuDriver, AnotherCurrentContextStays) {
  runtime(1);
  const auto push = driver_entry<int (*)(void*)>("cuCtxPushCurrent_v2");
  const auto pop = driver_entry<int (*)(void**)>("cuCtxPopCurrent_v2");
  void* const other = reinterpret_cast<void*>(0x1001);  // of device 1
  push(other);
  const auto memory = runtime_->allocate(1);
  EXPECT_EQ(current_context(), other);
  const auto here = runtime(1).allocate(1);
  EXPECT_EQ(current_context(), other);
  runtime_->synchronize();
  EXPECT_EQ(state().device_waits, before_.device_waits + 1) << "only where it is asked for";
  EXPECT_EQ(current_context(), other);
  void* popped = nullptr;
  pop(&popped);
  EXPECT_EQ(popped, other);
}

TEST_F(GpuDriver, CaptureModeIsExchanged) {
  const int before = runtime_->relax_capture_mode();
  const int relaxed = runtime_->relax_capture_mode();
  EXPECT_NE(relaxed, before);
  runtime_->restore_capture_mode(before);
  EXPECT_EQ(runtime_->relax_capture_mode(), before);
  runtime_->restore_capture_mode(before);
}

TEST_F(GpuDriver, AForkedChildFreesAndMakesNothing) {
  auto memory = runtime_->allocate(1);
  auto mapping = runtime_->map(memory);
  test::ForkedChild child([&] {
    const FakeGpuDriverState before = state();
    mapping.reset();
    memory.reset();
    if (state().handles != before.handles || state().mappings != before.mappings) return 1;
    const auto error = error_of([&] { runtime_->allocate(1); });
    return error && error->code() == ErrorCode::kUnsupported ? 0 : 2;
  });
  EXPECT_EQ(child.wait(), 0);
}

TEST_F(GpuDriver, RanksMeetOnSegments) {
  const auto meshes = test::connect_all(3);
  std::vector<std::shared_ptr<Segment>> segments(3);
  test::run_ranks(3, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    auto local = LocalSegment::allocate(runtime(rank % 2), granule() + 8);
    local->base()[granule() + 7] = static_cast<std::byte>(50 + rank);
    segments[r] = Segment::rendezvous(*meshes[r], local, 0, test::kMeshTimeout, nullptr);
  });
  for (const auto& segment : segments) {
    const Segment::ContiguousView view = segment->contiguous_view();
    EXPECT_EQ(view.stride_bytes, 2 * granule());
    for (int rank = 0; rank < 3; ++rank) {
      const std::size_t at = granule() + 7;
      EXPECT_EQ(segment->base(rank)[at], static_cast<std::byte>(50 + rank));
      EXPECT_EQ(view.base[static_cast<std::size_t>(rank) * view.stride_bytes + at],
                static_cast<std::byte>(50 + rank));
    }
  }
}

TEST_F(GpuDriver, ContiguousViewsKeepTheGranularityAndOutliveTheSegment) {
  const auto meshes = test::connect_all(2);
  std::vector<std::shared_ptr<Segment>> segments(2);
  test::run_ranks(2, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    auto local = LocalSegment::allocate(runtime(1 - rank), 5);
    local->base()[4] = static_cast<std::byte>(90 + rank);
    segments[r] = Segment::rendezvous(*meshes[r], local, 0, test::kMeshTimeout, nullptr);
  });
  const int mappings = state().mappings;
  const int ranges = state().ranges;
  const std::uint64_t made = mappings_made();
  Segment::ContiguousView view = segments[1]->contiguous_view();
  EXPECT_EQ(segments[1]->contiguous_view().base, view.base);
  EXPECT_EQ(view.stride_bytes, granule());
  EXPECT_EQ(state().mappings, mappings + 2);
  EXPECT_EQ(state().ranges, ranges + 1) << "one range for all ranks";
  EXPECT_EQ(mappings_made(), made + 2) << "the second call maps nothing";
  segments.clear();
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(view.base[static_cast<std::size_t>(rank) * granule() + 4],
              static_cast<std::byte>(90 + rank));
  }
  EXPECT_EQ(state().ranges, before_.ranges + 1);
  view.owner.reset();  // the fixture sees that nothing is left
}

}  // namespace
}  // namespace symm
