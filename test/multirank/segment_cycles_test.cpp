// Memory that is made, shared and let go of again and again: nothing of it may stay.
//
// SYMM_SEGMENT_CYCLES sets the number of cycles.
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "kernels/core/decimal.hpp"
#include "symm_mem/segment/segment.hpp"
#include "test/support/mesh_ranks.hpp"
#include "test/support/process_footprint.hpp"
#include "test/support/segment_ranks.hpp"

namespace symm {
namespace {

// A sanitizer keeps freed memory for a while.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kMemoryIsPlain = false;
#else
constexpr bool kMemoryIsPlain = true;
#endif

constexpr int kWorld = 2;
constexpr std::size_t kMiB = std::size_t{1} << 20;

std::uint64_t wanted_cycles() {
  const char* const value = std::getenv("SYMM_SEGMENT_CYCLES");
  return value == nullptr ? 1'000 : parse_decimal<std::uint64_t>(value).value_or(0);
}

struct Footprint {
  int descriptors = test::open_descriptors();
  int areas = test::mapped_areas();
  int memfds = test::memfd_mappings();
  test::MemoryUse memory = test::memory_use();
};

// What every rank does in one cycle; sizes from a byte to 2 MiB take turns.
void cycle(BootstrapMesh& mesh, std::uint64_t number) {
  const std::size_t bytes = 1 + (number % 8 == 0 ? 2 * kMiB - 1 : number * 4099 % (64 * 1024));
  const auto local = LocalSegment::allocate(host_runtime(), bytes);
  local->base()[bytes - 1] = static_cast<std::byte>(number + static_cast<unsigned>(mesh.rank()));
  const auto segment = Segment::rendezvous(mesh, local, {FrameStream::kSymmetricMemory, 2 * number},
                                           test::kMeshTimeout, nullptr);
  const auto view = segment->contiguous_view();
  for (int rank = 0; rank < kWorld; ++rank) {
    const auto expected = static_cast<std::byte>(number + static_cast<unsigned>(rank));
    const std::size_t at = static_cast<std::size_t>(rank) * view.stride_bytes + bytes - 1;
    ASSERT_EQ(segment->base(rank)[bytes - 1], expected);
    ASSERT_EQ(view.base[at], expected);
  }
  // The other rank has looked before this one lets go.
  mesh.exchange({FrameStream::kSymmetricMemory, 2 * number + 1}, std::vector<std::uint8_t>{1}, -1,
                test::kMeshTimeout, nullptr);
  mesh.restart({FrameStream::kSymmetricMemory, 2 * number + 2});
}

TEST(SegmentCycles, LeaveDescriptorsAddressesAndMemoryAsTheyWere) {
  const std::uint64_t cycles = wanted_cycles();
  ASSERT_GE(cycles, 100u) << "SYMM_SEGMENT_CYCLES";
  const auto meshes = test::connect_all(kWorld);
  std::uint64_t number = 0;
  const auto run = [&](std::uint64_t count) {
    const std::uint64_t end = number + count;
    test::run_ranks(kWorld, [&](int rank) {
      for (std::uint64_t n = number; n < end; ++n)
        cycle(*meshes[static_cast<std::size_t>(rank)], n);
    });
    number = end;
  };
  run(50);  // the allocator's stores and the threads' stacks
  const Footprint before;
  const auto start = std::chrono::steady_clock::now();
  run(cycles);
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
  const Footprint after;
  EXPECT_EQ(after.descriptors, before.descriptors);
  EXPECT_EQ(after.memfds, 0);
  // A thread's arena or stack may come or go, and a sanitizer maps areas of its own; nothing that
  // grows with every cycle.
  EXPECT_LE(after.areas, before.areas + (kMemoryIsPlain ? 4 : static_cast<int>(cycles / 20)));
  if (kMemoryIsPlain) {
    EXPECT_LE(after.memory.resident, before.memory.resident + kMiB);
    EXPECT_LE(after.memory.address_space, before.memory.address_space + 80 * kMiB);
  }
  std::printf(
      "%llu cycles of allocate, rendezvous, view, free with %d ranks: %.0f us each; descriptors "
      "%d -> %d, areas %d -> %d, address space %zu -> %zu KiB, resident %zu -> %zu KiB\n",
      static_cast<unsigned long long>(cycles), kWorld, took.count() / static_cast<double>(cycles),
      before.descriptors, after.descriptors, before.areas, after.areas,
      before.memory.address_space / 1024, after.memory.address_space / 1024,
      before.memory.resident / 1024, after.memory.resident / 1024);
}

}  // namespace
}  // namespace symm
