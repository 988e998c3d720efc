// Multicast objects, and how the ranks of a group agree on one, against the stand-in for the
// driver. Multicast is not run on hardware: no test here gets past the stand-in.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/core/error.hpp"
#include "symm_mem/device/multicast.hpp"
#include "symm_mem/segment/segment.hpp"
#include "test/gpu_driver/driver_fixture.hpp"
#include "test/support/environment.hpp"
#include "test/support/expect_error.hpp"
#include "test/support/forked_child.hpp"
#include "test/support/mesh_ranks.hpp"

namespace symm {
namespace {

using test::error_of;
using test::expect_error;
using test::FakeMulticastStep;
using test::runtime;
using test::state;
using Segments = std::vector<std::shared_ptr<Segment>>;

constexpr const char* kSwitches[] = {"SYMM_DISABLE_MULTICAST", "TORCH_SYMM_MEM_DISABLE_MULTICAST",
                                     "NVSHMEM_DISABLE_NVLS"};

// Whether whoever opens the driver in this process gets the stand-in.
bool driver_is_the_stand_in() {
  void* const handle = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  return handle != nullptr && ::dlsym(handle, "fake_gpu_driver_state") != nullptr &&
         ::dlsym(handle, "cuMulticastCreate") == ::dlsym(test::fake_driver(), "cuMulticastCreate");
}

class GpuMulticastTest : public test::GpuDriver {
 protected:
  // The switches are on where multicast must not be used; they are turned off for the stand-in
  // alone.
  void SetUp() override {
    GpuDriver::SetUp();
    ASSERT_TRUE(driver_is_the_stand_in());
    for (const char* name : kSwitches) off_.emplace_back(std::make_unique<Off>(name, std::nullopt));
    use_devices(4);
    state().multicast_devices = 0xf;
    calls_ = state().multicast_calls;
  }
  void TearDown() override {
    off_.clear();
    GpuDriver::TearDown();
  }
  int multicast_calls() const { return state().multicast_calls - calls_; }

  // Rank r uses device devices[r] and brings `bytes` bytes.
  static Segments meet(const std::vector<int>& devices, std::size_t bytes) {
    const auto world = static_cast<int>(devices.size());
    const auto meshes = test::connect_all(world);
    Segments segments(devices.size());
    test::run_ranks(world, [&](int rank) {
      const auto r = static_cast<std::size_t>(rank);
      auto local = LocalSegment::allocate(runtime(devices[r]), bytes);
      segments[r] = Segment::rendezvous(*meshes[r], local, 0, test::kMeshTimeout, nullptr);
    });
    return segments;
  }
  // No rank has an object, the segments are of use, and every rank gives the same reason.
  static void expect_none(const Segments& segments, const std::vector<std::string>& words) {
    for (const auto& segment : segments) {
      EXPECT_FALSE(segment->multicast().available());
      EXPECT_EQ(segment->multicast().why_not(), segments[0]->multicast().why_not());
      expect_error(error_of([&] { segment->multicast().base(); }), ErrorCode::kUnsupported, words);
    }
    segments[0]->base(0)[1] = std::byte{0x21};
    EXPECT_EQ(segments.back()->base(0)[1], std::byte{0x21});
    EXPECT_EQ(state().multicast_bindings, 0);
  }

  using Off = test::ScopedVariable;
  std::vector<std::unique_ptr<Off>> off_;
  int calls_ = 0;
};

TEST_F(GpuMulticastTest, EveryRankHasTheObject) {
  for (const int world : {2, 3, 4}) {
    std::vector<int> devices;
    for (int device = world - 1; device >= 0; --device) devices.push_back(device);
    const int creates = state().multicast_creates;
    const std::uint64_t mappings = mappings_made();
    auto segments = meet(devices, granule() + 1);
    EXPECT_EQ(state().multicast_creates, creates + 1) << "one object for the group";
    EXPECT_EQ(state().multicast_bindings, world);
    EXPECT_EQ(mappings_made() - mappings, static_cast<std::uint64_t>(world * (world + 1)));
    segments[0]->multicast().base()[3] = std::byte{0x77};
    for (const auto& segment : segments) {
      ASSERT_TRUE(segment->multicast().available()) << segment->multicast().why_not();
      EXPECT_EQ(segment->multicast().why_not(), "");
      std::byte* const base = segment->multicast().base();
      EXPECT_EQ(base[3], std::byte{0x77}) << "the same object on every rank";
      base[2 * granule() - 1] = std::byte{1};  // mapped in full
      EXPECT_NE(base, segment->local()->base());
    }
    segments.pop_back();
    EXPECT_EQ(state().multicast_bindings, world - 1);
    segments.clear();
    EXPECT_EQ(state().multicast_bindings, 0);
    EXPECT_EQ(state().handles, before_.handles);
  }
}

// A segment with a multicast address is one that multimem kernels of every rank can use.
TEST_F(GpuMulticastTest, NeedsTheInstructionsOnEveryRank) {
  constexpr int kOld = 5;  // that no other test uses: a device is asked once in a process
  state().old_devices = 1u << kOld;
  state().multicast_devices = 0x3f;
  use_devices(6);
  const int creates = state().multicast_creates;
  expect_none(meet({0, kOld, 1}, granule()),
              {"rank 1: ", "compute capability 8.0", "multimem instructions need 9.0"});
  EXPECT_EQ(state().multicast_creates, creates);
  for (const auto& segment : meet({0, 1}, granule())) {
    EXPECT_TRUE(segment->multicast().available());
  }
}

TEST_F(GpuMulticastTest, GoesByFabricHandlesWhereTheMemoryDoes) {
  state().fabric_offered = state().fabric_permitted = 1;
  state().posix_offered = 0;
  const auto segments = meet({0, 1, 2}, 1);
  for (const auto& segment : segments) EXPECT_TRUE(segment->multicast().available());
  EXPECT_EQ(state().posix_imports, before_.posix_imports);
  EXPECT_EQ(state().fabric_imports - before_.fabric_imports, 6 + 2);
}

TEST_F(GpuMulticastTest, SeveralGroupsOnOneAllocation) {
  const auto all = test::connect_all(3);
  const auto pair = test::connect_all(2);
  Segments wide(3);
  Segments narrow(2);
  std::vector<std::shared_ptr<LocalSegment>> local;
  for (int rank = 0; rank < 3; ++rank) local.push_back(LocalSegment::allocate(runtime(rank), 1));
  test::run_ranks(3, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    wide[r] = Segment::rendezvous(*all[r], local[r], 0, test::kMeshTimeout, nullptr);
  });
  test::run_ranks(2, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    narrow[r] = Segment::rendezvous(*pair[r], local[2 * r], 0, test::kMeshTimeout, nullptr);
  });
  EXPECT_EQ(state().multicast_bindings, 5);
  narrow.clear();
  EXPECT_EQ(state().multicast_bindings, 3);
  EXPECT_TRUE(wide[2]->multicast().available());
}

TEST_F(GpuMulticastTest, EachSwitchKeepsTheDriverFromBeingAsked) {
  for (const char* name : kSwitches) {
    const test::ScopedVariable on(name, "1");
    const std::string why = std::string(name) + "=1";
    expect_none(meet({0, 1}, 1), {"rank 0: " + why, "rank 1: " + why, "no multicast pointer"});
    EXPECT_EQ(multicast_problem(runtime(0)), why);
    MulticastDevice& device = *runtime(0).multicast();
    const std::vector<std::string> words{"multicast", why};
    expect_error(error_of([&] { device.create(2, granule(), HandleKind::kDescriptor); }),
                 ErrorCode::kUnsupported, words);
    expect_error(error_of([&] { device.import_object(FileDescriptor(), granule()); }),
                 ErrorCode::kUnsupported, words);
    expect_error(error_of([&] { device.granularity(2, granule()); }), ErrorCode::kUnsupported,
                 words);
  }
  EXPECT_EQ(multicast_calls(), 0);
}

TEST_F(GpuMulticastTest, OneGpuWithoutMulticastIsEnough) {
  state().multicast_devices = 0xb;  // all but device 2
  const auto segments = meet({0, 1, 2, 3}, 1);
  expect_none(segments, {"rank 2: Fake GPU C", "has no multicast"});
  EXPECT_EQ(segments[0]->multicast().why_not().find("rank 0"), std::string::npos);
  EXPECT_EQ(state().multicast_creates, before_.multicast_creates);
  EXPECT_EQ(multicast_problem(runtime(0)), "");
  EXPECT_NE(multicast_problem(runtime(2)), "");
}

TEST_F(GpuMulticastTest, RanksThatShareAGpuHaveNone) {
  expect_none(meet({0, 1, 0}, 1), {"rank 0 and rank 2 use one GPU"});
  EXPECT_EQ(state().multicast_creates, before_.multicast_creates);
}

TEST_F(GpuMulticastTest, AGroupOfOneHasNone) {
  expect_none(meet({1}, 1), {"one rank"});
  EXPECT_EQ(multicast_calls(), 0);
}

TEST_F(GpuMulticastTest, SegmentsThatAreNoWholeChunksHaveNone) {
  state().multicast_granule = 2 * granule();
  expect_none(meet({0, 1}, granule()), {"rank 0: ", "rank 1: ", std::to_string(2 * granule()),
                                        "the segment has " + std::to_string(granule())});
  EXPECT_TRUE(meet({0, 1}, 2 * granule())[1]->multicast().available());
}

using FailingStep = std::tuple<FakeMulticastStep, int, int, std::string>;
class GpuMulticastFailure : public GpuMulticastTest,
                            public ::testing::WithParamInterface<FailingStep> {};

TEST_P(GpuMulticastFailure, OnOneRankLeavesNobodyWithAnything) {
  const auto& [step, failing_rank, creates, word] = GetParam();
  const std::vector<int> devices{3, 1, 0};
  state().fail_step = step;
  state().fail_device = devices[static_cast<std::size_t>(failing_rank)];
  const int handles = state().handles;
  const int ranges = state().ranges;
  const int mappings = state().mappings;
  {
    const auto segments = meet(devices, granule());
    expect_none(segments, {"rank " + std::to_string(failing_rank) + ": ", word, "FAKE_ERROR"});
    for (int other = 0; other < 3; ++other) {
      const std::string name = "rank " + std::to_string(other) + ": ";
      EXPECT_EQ(segments[0]->multicast().why_not().find(name) != std::string::npos,
                other == failing_rank);
    }
    EXPECT_EQ(state().multicast_creates - before_.multicast_creates, creates);
    // The segments' own: 3 of memory and 6 of peers'.
    EXPECT_EQ(state().handles - handles, 9);
    EXPECT_EQ(state().mappings - mappings, 9);
    EXPECT_EQ(state().ranges - ranges, 9);
  }
  // The same ranks can try again.
  state().fail_step = FakeMulticastStep::kNone;
  EXPECT_TRUE(meet(devices, granule())[2]->multicast().available());
}

INSTANTIATE_TEST_SUITE_P(
    Steps, GpuMulticastFailure,
    ::testing::Values(FailingStep{FakeMulticastStep::kGranularity, 1, 0, "granularity"},
                      FailingStep{FakeMulticastStep::kCreate, 0, 0, "creating"},
                      FailingStep{FakeMulticastStep::kExport, 0, 1, "exporting"},
                      FailingStep{FakeMulticastStep::kImport, 1, 1, "import"},
                      FailingStep{FakeMulticastStep::kImport, 2, 1, "import"},
                      FailingStep{FakeMulticastStep::kAddDevice, 0, 1, "adding"},
                      FailingStep{FakeMulticastStep::kAddDevice, 2, 1, "adding"},
                      FailingStep{FakeMulticastStep::kBind, 0, 1, "binding"},
                      FailingStep{FakeMulticastStep::kBind, 1, 1, "binding"},
                      FailingStep{FakeMulticastStep::kMap, 2, 1, "mapping"},
                      FailingStep{FakeMulticastStep::kAccess, 1, 1, "no access"}));

TEST_F(GpuMulticastTest, AForkedChildUndoesNothing) {
  auto segments = meet({0, 1}, 1);
  test::ForkedChild child([&] {
    const test::FakeGpuDriverState before = state();
    segments.clear();
    return state().multicast_bindings == before.multicast_bindings &&
                   state().handles == before.handles && state().mappings == before.mappings
               ? 0
               : 1;
  });
  EXPECT_EQ(child.wait(), 0);
  EXPECT_TRUE(segments[0]->multicast().available());
}

}  // namespace
}  // namespace symm
