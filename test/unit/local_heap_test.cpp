// Finding symmetric host memory again by address.
#include "symm_mem/segment/local_heap.hpp"

#include <gtest/gtest.h>

#include <memory>

#include "test/support/passing_runtime.hpp"

namespace symm {
namespace {

TEST(LocalHeap, FindsASegmentByAnyAddressInsideIt) {
  const auto first = allocate_on_local_heap(10'000);
  const auto second = allocate_on_local_heap(3);
  EXPECT_EQ(find_on_local_heap(first->base(), 10'000), first);
  EXPECT_EQ(find_on_local_heap(first->base() + 9'999, 1), first);
  EXPECT_EQ(find_on_local_heap(second->base() + 1, 2), second);
}

TEST(LocalHeap, RefusesARangeThatLeavesTheSegment) {
  const auto segment = allocate_on_local_heap(4'096);
  EXPECT_EQ(find_on_local_heap(segment->base() + 1, segment->mapped_bytes()), nullptr);
  EXPECT_EQ(find_on_local_heap(segment->base() - 1, 1), nullptr);
}

TEST(LocalHeap, KnowsNoOrdinaryMemory) {
  const int on_stack = 0;
  EXPECT_EQ(find_on_local_heap(&on_stack, sizeof(on_stack)), nullptr);
  EXPECT_EQ(find_on_local_heap(nullptr, 0), nullptr);
}

TEST(LocalHeap, ForgetsASegmentWithItsLastOwner) {
  auto segment = allocate_on_local_heap(4'096);
  const std::byte* const base = segment->base();
  auto second_owner = find_on_local_heap(base, 1);
  segment.reset();
  EXPECT_EQ(find_on_local_heap(base, 1), second_owner);
  second_owner.reset();
  EXPECT_EQ(find_on_local_heap(base, 1), nullptr);
}

TEST(LocalHeap, ZeroBytesAreLegal) {
  const auto segment = allocate_on_local_heap(0);
  EXPECT_EQ(find_on_local_heap(segment->base(), 0), segment);
}

// A device whose memory is the host's, to tell it from the host runtime.
class OtherRuntime final : public test::PassingRuntime {
 public:
  DeviceKind kind() const override { return DeviceKind::kCuda; }
};

TEST(LocalHeap, MemoryOfEveryDeviceIsFoundByAddressAlone) {
  OtherRuntime other;
  const auto on_host = allocate_on_local_heap(4'096);
  const auto on_device = allocate_on_local_heap(other, 4'096);
  EXPECT_EQ(&on_host->runtime(), &host_runtime());
  EXPECT_EQ(&on_device->runtime(), &other);
  EXPECT_EQ(find_on_local_heap(on_device->base() + 5, 7), on_device);
  EXPECT_EQ(find_on_local_heap(on_host->base() + 5, 7), on_host);
}

}  // namespace
}  // namespace symm
