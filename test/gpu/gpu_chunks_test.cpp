// What finding another library's chunks relies on, of a driver: see gpu_chunks.hpp.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "symm_mem/segment/segment.hpp"
#include "test/support/foreign_range.hpp"
#include "test/support/gpu.hpp"

namespace symm {
namespace {

using test::ForeignRange;
using test::gpu_words;
using test::read_gpu;
using test::write_gpu;
using Word = std::uint64_t;

class GpuChunks : public test::GpuTest {
 protected:
  // `sizes` in granules.
  std::unique_ptr<ForeignRange> range(std::vector<std::size_t> sizes) const {
    void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    for (std::size_t& size : sizes) size *= granule();
    return std::make_unique<ForeignRange>(driver, 0, std::move(sizes));
  }
  std::size_t granule() const { return runtime_->granularity(); }
};

TEST_F(GpuChunks, EachMappingIsOneChunkOfItsOwnSize) {
  const auto memory = range({10, 1, 10});
  const auto found = runtime_->find_chunks(memory->base() + 512, 20 * granule());
  ASSERT_TRUE(found);
  EXPECT_EQ(found->start, 512u);
  std::vector<std::size_t> sizes;
  for (const auto& chunk : found->chunks) sizes.push_back(chunk->bytes() / granule());
  EXPECT_EQ(sizes, (std::vector<std::size_t>{10, 1, 10}));
  EXPECT_FALSE(runtime_->find_chunks(memory->base(), 21 * granule() + 1)) << "beyond the last";
}

TEST_F(GpuChunks, MemoryOfTheRuntimesOwnAllocatorHasNone) {
  std::byte* plain = nullptr;
  SYMM_GPU_CHECK(SYMM_GPU_NAME(Malloc)(reinterpret_cast<void**>(&plain), std::size_t{4} << 20));
  EXPECT_FALSE(runtime_->find_chunks(plain, 64));
  SYMM_GPU_CHECK(SYMM_GPU_NAME(Free)(plain));
  std::vector<std::byte> host(64);
  EXPECT_FALSE(runtime_->find_chunks(host.data(), host.size()));
}

TEST_F(GpuChunks, MappedSideBySideTheyShowTheSameMemory) {
  const auto memory = range({2, 1, 3});
  const std::size_t count = 6 * granule() / sizeof(Word);
  write_gpu(memory->base(), gpu_words(5, count));
  auto found = runtime_->find_chunks(memory->base(), 6 * granule());
  ASSERT_TRUE(found);
  const auto addresses = runtime_->reserve(6 * granule());
  std::vector<std::shared_ptr<Mapping>> mappings;
  std::size_t at = 0;
  for (const auto& chunk : found->chunks) {
    // As a peer would get it.
    auto imported = runtime_->import_memory(runtime_->export_descriptor(*chunk), chunk->bytes());
    mappings.push_back(runtime_->map_at(std::move(imported), addresses, at));
    at += chunk->bytes();
  }
  EXPECT_EQ(read_gpu<Word>(addresses->base(), count), gpu_words(5, count));
  write_gpu(addresses->base() + 2 * granule() - 64, gpu_words(7, 16));
  EXPECT_EQ(read_gpu<Word>(memory->base() + 2 * granule() - 64, 16), gpu_words(7, 16));
}

TEST_F(GpuChunks, TheSameHandleIsTheSameMemoryAndOutlivesItsMaker) {
  auto memory = range({1, 1, 1});
  const auto before = runtime_->find_chunks(memory->base(), 3 * granule());
  write_gpu(memory->base() + granule(), gpu_words(3, 100));
  memory->exchange(1);
  write_gpu(memory->base() + granule(), gpu_words(4, 100));
  const auto after = runtime_->find_chunks(memory->base(), 3 * granule());
  ASSERT_TRUE(before && after);
  std::vector<bool> same;
  for (std::size_t i = 0; i < 3; ++i) {
    same.push_back(runtime_->is_same(*before->chunks[i], *after->chunks[i]));
  }
  EXPECT_EQ(same, (std::vector<bool>{true, false, true}));
  memory.reset();
  EXPECT_EQ(read_gpu<Word>(runtime_->map(before->chunks[1])->base(), 100), gpu_words(3, 100));
  EXPECT_EQ(read_gpu<Word>(runtime_->map(after->chunks[1])->base(), 100), gpu_words(4, 100));
}

}  // namespace
}  // namespace symm
