// Which kinds of handle the device library asks the driver for, and what it does where the driver
// refuses.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/error.hpp"
#include "symm_mem/segment/segment.hpp"
#include "test/gpu_driver/driver_fixture.hpp"
#include "test/support/environment.hpp"
#include "test/support/expect_error.hpp"
#include "test/support/mesh_ranks.hpp"

namespace symm {
namespace {

using test::error_of;
using test::expect_error;
using test::runtime;
using test::state;

constexpr char kVariable[] = "SYMM_HANDLE_TYPE";

class GpuHandles : public test::GpuDriver {
 protected:
  void SetUp() override {
    GpuDriver::SetUp();
    use_devices(6);
  }
  static void offer_fabric() { state().fabric_offered = state().fabric_permitted = 1; }
  int fabric_tries() const { return state().fabric_tries - before_.fabric_tries; }
  int fabric_imports() const { return state().fabric_imports - before_.fabric_imports; }
  int posix_imports() const { return state().posix_imports - before_.posix_imports; }

  // Each rank marks its own memory and looks for the marks of the others.
  std::vector<std::optional<Error>> meet(int world_size, std::size_t marked_byte) {
    const auto meshes = test::connect_all(world_size);
    return test::errors_of_ranks(world_size, [&](int rank) {
      auto local = LocalSegment::allocate(runtime(rank), 3 * granule());
      local->base()[marked_byte] = static_cast<std::byte>(70 + rank);
      BootstrapMesh& mesh = *meshes[static_cast<std::size_t>(rank)];
      const auto segment = Segment::rendezvous(mesh, local, 0, test::kMeshTimeout, nullptr);
      for (int peer = 0; peer < world_size; ++peer) {
        EXPECT_EQ(segment->base(peer)[marked_byte], static_cast<std::byte>(70 + peer));
      }
      mesh.exchange(1, std::vector<std::uint8_t>{1}, -1, test::kMeshTimeout, nullptr);
    });
  }
  static void expect_all_well(const std::vector<std::optional<Error>>& errors) {
    for (const auto& error : errors) EXPECT_FALSE(error) << error->what();
  }

  test::ScopedVariable unset_{kVariable, std::nullopt};
};

TEST_F(GpuHandles, FabricHandlesAreAskedForOnceAndLeftOutWhereRefused) {
  state().fabric_offered = 1;
  GpuRuntime& third = runtime(2);
  const auto first = third.allocate(1);
  const auto second = third.allocate(1);
  EXPECT_EQ(fabric_tries(), 1);
  EXPECT_TRUE(third.handle_kinds(*second).descriptor);
  EXPECT_FALSE(third.handle_kinds(*second).fabric);
}

TEST_F(GpuHandles, FabricHandlesAreNotAskedForWithoutTheAttributeOrAgainstTheVariable) {
  const auto plain = runtime_->allocate(1);
  offer_fabric();
  const test::ScopedVariable posix(kVariable, "posix");
  const auto memory = runtime_->allocate(1);
  EXPECT_EQ(fabric_tries(), 0);
  EXPECT_FALSE(runtime_->handle_kinds(*plain).fabric);
  EXPECT_FALSE(runtime_->handle_kinds(*memory).fabric);
  EXPECT_TRUE(runtime_->handle_kinds(*memory).descriptor);
}

TEST_F(GpuHandles, FabricHandleGivesTheSameMemory) {
  offer_fabric();
  const auto memory = runtime_->allocate(1);
  const auto mapping = runtime_->map(memory);
  MemoryHandle handle = runtime_->export_memory(*memory, HandleKind::kFabric);
  ASSERT_TRUE(std::holds_alternative<FabricHandle>(handle));
  FabricHandle forged = std::get<FabricHandle>(handle);
  forged.bytes[63] ^= 1;
  const auto seen = runtime(1).map(runtime(1).import_memory(std::move(handle), granule()));
  mapping->base()[11] = std::byte{9};
  EXPECT_EQ(seen->base()[11], std::byte{9});
  expect_error(error_of([&] { runtime(1).import_memory(forged, granule()); }), ErrorCode::kSecurity,
               {"cannot import", "Fake GPU B"});
}

TEST_F(GpuHandles, AnExplicitWishThatCannotBeMetIsOneSentence) {
  const test::ScopedVariable fabric(kVariable, "fabric");
  expect_error(error_of([&] { runtime_->allocate(1); }), ErrorCode::kUnsupported,
               {"SYMM_HANDLE_TYPE=fabric", "Fake GPU A", "has no fabric handles"});
  state().fabric_offered = 1;
  expect_error(error_of([&] { runtime_->allocate(1); }), ErrorCode::kUnsupported,
               {"cannot make memory with fabric handles", "SYMM_HANDLE_TYPE=fabric", "Fake GPU A",
                "channel"});
  // It is tried again each time: the service may have been started.
  state().fabric_permitted = 1;
  EXPECT_TRUE(runtime_->handle_kinds(*runtime_->allocate(1)).fabric);
}

TEST_F(GpuHandles, AnUnknownWishListsTheLegalOnes) {
  const test::ScopedVariable wrong(kVariable, "Fabric");
  expect_error(error_of([&] { runtime_->allocate(1); }), ErrorCode::kInvalidArgument,
               {"SYMM_HANDLE_TYPE", "auto, posix or fabric", "\"Fabric\""});
}

TEST_F(GpuHandles, ADeviceWithoutDescriptorsUsesFabricHandles) {
  state().posix_offered = 0;
  offer_fabric();
  const auto memory = runtime(3).allocate(1);
  EXPECT_FALSE(runtime(3).handle_kinds(*memory).descriptor);
  EXPECT_TRUE(runtime(3).handle_kinds(*memory).fabric);
  state().fabric_permitted = 0;
  expect_error(error_of([&] { runtime(3).allocate(1); }), ErrorCode::kUnsupported,
               {"cannot make memory with fabric handles", "all that it could be shared by"});
  const test::ScopedVariable posix(kVariable, "posix");
  expect_error(error_of([&] { runtime(3).allocate(1); }), ErrorCode::kUnsupported,
               {"SYMM_HANDLE_TYPE=posix", "Fake GPU D", "file descriptors"});
}

TEST_F(GpuHandles, RanksMeetByDescriptorsUnlessTheyAreAskedNotTo) {
  offer_fabric();
  expect_all_well(meet(3, granule() + 5));
  EXPECT_EQ(fabric_imports(), 0);
  EXPECT_EQ(posix_imports(), 6);
  const test::ScopedVariable fabric(kVariable, "fabric");
  expect_all_well(meet(3, granule() + 6));
  EXPECT_EQ(fabric_imports(), 6);
  EXPECT_EQ(posix_imports(), 6);
}

TEST_F(GpuHandles, RanksMeetByFabricHandlesWhereDescriptorsCannotBeHad) {
  state().posix_offered = 0;
  offer_fabric();
  expect_all_well(meet(4, 7));
  EXPECT_EQ(fabric_imports(), 12);
  EXPECT_EQ(posix_imports(), 0);
}

TEST_F(GpuHandles, MemoryFromBeforeTheWishIsRefusedOnEveryRank) {
  offer_fabric();
  std::shared_ptr<LocalSegment> plain;
  {
    const test::ScopedVariable posix(kVariable, "posix");
    plain = LocalSegment::allocate(runtime(1), 1);
  }
  const test::ScopedVariable fabric(kVariable, "fabric");
  const auto meshes = test::connect_all(3);
  const auto errors = test::errors_of_ranks(3, [&](int rank) {
    const auto local = rank == 1 ? plain : LocalSegment::allocate(runtime(rank), 1);
    Segment::rendezvous(*meshes[static_cast<std::size_t>(rank)], local, 0, test::kMeshTimeout,
                        nullptr);
  });
  for (const auto& error : errors) {
    expect_error(error, ErrorCode::kUnsupported,
                 {"SYMM_HANDLE_TYPE=fabric on rank 0", "memory of rank 1 has no fabric handle"});
  }
  EXPECT_EQ(fabric_imports(), 0);
}

}  // namespace
}  // namespace symm
