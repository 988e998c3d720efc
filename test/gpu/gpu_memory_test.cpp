// Memory of the CUDA device library in one process: allocating, mapping, sharing, errors, and what
// is left behind.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/error.hpp"
#include "symm_mem/segment/segment.hpp"
#include "test/support/expect_error.hpp"
#include "test/support/gpu.hpp"

namespace symm {
namespace {

using test::error_of;
using test::expect_error;
using test::gpu_words;
using test::read_gpu;
using test::write_gpu;
using Word = std::uint64_t;

// Of device 0, whatever their type is called.
template <typename Properties>
Properties properties_by(gpuError_t (*get)(Properties*, int)) {
  Properties properties{};
  SYMM_GPU_CHECK(get(&properties, 0));
  return properties;
}

class GpuMemory : public test::GpuTest {
 protected:
  std::size_t granule() const { return runtime_->granularity(); }
  std::size_t free_bytes() const {
    std::size_t free = 0;
    std::size_t total = 0;
    SYMM_GPU_CHECK(SYMM_GPU_NAME(MemGetInfo)(&free, &total));
    return free;
  }
  // Bytes in [base, base + bytes) that are not `expected`.
  static std::size_t bytes_other_than(std::uint8_t expected, const std::byte* base,
                                      std::size_t bytes) {
    constexpr std::size_t kPiece = std::size_t{64} << 20;
    std::size_t others = 0;
    for (std::size_t at = 0; at < bytes; at += kPiece) {
      const auto piece = read_gpu<std::uint8_t>(base + at, std::min(kPiece, bytes - at));
      others +=
          piece.size() - static_cast<std::size_t>(std::count(piece.begin(), piece.end(), expected));
    }
    return others;
  }
};

// Counts the free memory of the whole GPU.
class GpuMemoryAlone : public GpuMemory {};

TEST_F(GpuMemory, IdentityIsThatOfTheRuntimesOwnDevice) {
  const auto properties = properties_by(&SYMM_GPU_NAME(GetDeviceProperties));
  const GpuIdentity& identity = runtime_->identity();
  EXPECT_EQ(identity.name, properties.name);
  EXPECT_EQ(identity.index, 0);
  EXPECT_EQ(identity.multiprocessors, properties.multiProcessorCount);
  EXPECT_EQ(identity.architecture, 10 * properties.major + properties.minor);
  EXPECT_TRUE(std::equal(identity.uuid.begin(), identity.uuid.end(),
                         reinterpret_cast<const std::uint8_t*>(properties.uuid.bytes)));
  EXPECT_EQ(runtime_->kind(), DeviceKind::kCuda);
  EXPECT_EQ(&test::gpu_library().runtime(0), runtime_) << "one object a device";
}

TEST_F(GpuMemory, SizesAreRoundedUpAndNewMemoryIsZero) {
  for (const std::size_t bytes : {std::size_t{1}, granule(), granule() + 1, 32 * granule()}) {
    const std::size_t rounded = (bytes + granule() - 1) / granule() * granule();
    // The second round likely gets the memory that the first one has written.
    for (int round = 0; round < 2; ++round) {
      const auto memory = runtime_->allocate(bytes);
      EXPECT_EQ(memory->bytes(), rounded);
      const auto mapping = runtime_->map(memory);
      EXPECT_EQ(mapping->bytes(), rounded);
      EXPECT_EQ(bytes_other_than(0, mapping->base(), rounded), 0u) << bytes << " round " << round;
      SYMM_GPU_CHECK(SYMM_GPU_NAME(Memset)(mapping->base(), 0xa5, rounded));
      EXPECT_EQ(bytes_other_than(0xa5, mapping->base(), rounded), 0u);
    }
  }
}

TEST_F(GpuMemory, TwoMappingsShowOneMemory) {
  const auto memory = runtime_->allocate(2 * granule());
  const auto first = runtime_->map(memory);
  auto second = runtime_->map(memory);
  ASSERT_NE(first->base(), second->base());
  const auto words = gpu_words(3, granule() / 4);
  write_gpu(second->base(), words);
  EXPECT_EQ(read_gpu<Word>(first->base(), words.size()), words);
  second.reset();
  EXPECT_EQ(read_gpu<Word>(first->base(), words.size()), words) << "the other one stays";
}

TEST_F(GpuMemory, AMappingKeepsItsMemory) {
  auto memory = runtime_->allocate(1);
  const auto mapping = runtime_->map(memory);
  write_gpu(mapping->base(), gpu_words(1, 8));
  memory.reset();
  EXPECT_EQ(read_gpu<Word>(mapping->base(), 8), gpu_words(1, 8));
}

TEST_F(GpuMemory, ARangeShowsSeveralMemoriesSideBySide) {
  constexpr int kParts = 3;
  const std::size_t part = 2 * granule();
  auto range = runtime_->reserve(kParts * part);
  ASSERT_EQ(range->bytes(), kParts * part);
  std::byte* const base = range->base();
  std::vector<std::shared_ptr<Mapping>> own;
  std::vector<std::shared_ptr<Mapping>> side_by_side;
  for (int i = 0; i < kParts; ++i) {
    auto memory = runtime_->allocate(part);
    own.push_back(runtime_->map(memory));
    write_gpu(own.back()->base(), gpu_words(i, part / 8));
    side_by_side.push_back(runtime_->map_at(memory, range, static_cast<std::size_t>(i) * part));
    EXPECT_EQ(side_by_side.back()->base(), base + static_cast<std::size_t>(i) * part);
  }
  range.reset();  // its mappings keep it
  // One copy across all parts.
  const auto all = read_gpu<Word>(base, kParts * part / 8);
  for (int i = 0; i < kParts; ++i) {
    const auto begin =
        all.begin() + static_cast<std::ptrdiff_t>(i) * static_cast<std::ptrdiff_t>(part / 8);
    EXPECT_TRUE(std::equal(begin, begin + static_cast<std::ptrdiff_t>(part / 8),
                           gpu_words(i, part / 8).begin()))
        << "part " << i;
  }
  write_gpu(base + part + 8, std::vector<Word>{42});
  EXPECT_EQ(read_gpu<Word>(own[1]->base() + 8, 1)[0], 42u);
}

TEST_F(GpuMemory, MapAtChecksTheRange) {
  const auto memory = runtime_->allocate(2 * granule());
  const auto range = runtime_->reserve(3 * granule());
  for (const std::size_t offset : {granule() / 2, 2 * granule(), 100 * granule()}) {
    expect_error(error_of([&] { runtime_->map_at(memory, range, offset); }),
                 ErrorCode::kInvalidArgument, {std::to_string(offset)});
  }
  EXPECT_EQ(runtime_->map_at(memory, range, granule())->base(), range->base() + granule());
}

TEST_F(GpuMemory, ExportedMemoryIsTheSameMemory) {
  auto memory = runtime_->allocate(2 * granule());
  auto mapping = runtime_->map(memory);
  FileDescriptor first = runtime_->export_descriptor(*memory);
  const FileDescriptor second = runtime_->export_descriptor(*memory);
  ASSERT_TRUE(first.valid());
  EXPECT_NE(first.get(), second.get());
  auto imported = runtime_->import_memory(std::move(first), 2 * granule());
  EXPECT_EQ(imported->bytes(), 2 * granule());
  const auto seen = runtime_->map(imported);
  ASSERT_NE(seen->base(), mapping->base());
  write_gpu(mapping->base(), gpu_words(5, granule() / 4));
  EXPECT_EQ(read_gpu<Word>(seen->base(), granule() / 4), gpu_words(5, granule() / 4));
  mapping.reset();
  memory.reset();
  imported.reset();
  EXPECT_EQ(read_gpu<Word>(seen->base(), granule() / 4), gpu_words(5, granule() / 4))
      << "imported memory outlives its owner";
}

TEST_F(GpuMemoryAlone, BeyondFourGiB) {
  const std::size_t bytes = (std::size_t{4} << 30) + 3 * granule();
  if (free_bytes() < bytes + (std::size_t{1} << 30)) {
    GTEST_SKIP() << "needs 5 GiB of free GPU memory, there are " << free_bytes() << " bytes";
  }
  const auto memory = runtime_->allocate(bytes);
  const auto mapping = runtime_->map(memory);
  EXPECT_EQ(bytes_other_than(0, mapping->base(), bytes), 0u);
  write_gpu(mapping->base() + bytes - 80, gpu_words(1, 10));
  write_gpu(mapping->base() + (std::size_t{4} << 30), gpu_words(2, 10));
  const auto seen =
      runtime_->map(runtime_->import_memory(runtime_->export_descriptor(*memory), bytes));
  EXPECT_EQ(read_gpu<Word>(seen->base() + bytes - 80, 10), gpu_words(1, 10));
  EXPECT_EQ(read_gpu<Word>(seen->base() + (std::size_t{4} << 30), 10), gpu_words(2, 10));
  EXPECT_EQ(bytes_other_than(0, seen->base(), std::size_t{1} << 20), 0u) << "nothing wraps round";
}

TEST_F(GpuMemoryAlone, CyclesLeaveNothingBehind) {
  const auto cycle = [&] {
    auto memory = runtime_->allocate(3 * granule());
    const auto mapping = runtime_->map(memory);
    const auto again = runtime_->map(memory);
    const auto imported =
        runtime_->import_memory(runtime_->export_descriptor(*memory), memory->bytes());
    const auto range = runtime_->reserve(8 * granule());
    const auto left = runtime_->map_at(memory, range, 0);
    const auto right = runtime_->map_at(imported, range, 4 * granule());
    runtime_->allocate(granule());  // never mapped by its owner
  };
  const auto mapped_lines = [] {
    std::ifstream maps("/proc/self/maps");
    return std::count(std::istreambuf_iterator<char>(maps), {}, '\n');
  };
  const auto descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  for (int i = 0; i < 20; ++i) cycle();
  const std::size_t free = free_bytes();
  const auto lines = mapped_lines();
  const auto open = descriptors();
  for (int i = 0; i < 200; ++i) cycle();
  EXPECT_EQ(free_bytes(), free);
  EXPECT_EQ(mapped_lines(), lines);
  EXPECT_EQ(descriptors(), open);
}

TEST_F(GpuMemory, SegmentsWork) {
  const auto segment = LocalSegment::allocate(*runtime_, 1000);
  EXPECT_EQ(segment->bytes(), 1000u);
  EXPECT_EQ(segment->mapped_bytes(), granule());
  EXPECT_TRUE(segment->contains(segment->base() + 999, 1));
  EXPECT_FALSE(segment->contains(segment->base() + 999, 2));
  write_gpu(segment->base(), gpu_words(1, 125));
  EXPECT_EQ(read_gpu<Word>(segment->base(), 125), gpu_words(1, 125));
  EXPECT_EQ(LocalSegment::allocate(*runtime_, 0)->mapped_bytes(), granule());
}

TEST_F(GpuMemory, AllocationErrorsNameSizeAndDevice) {
  const std::string& name = runtime_->identity().name;
  expect_error(error_of([&] { runtime_->allocate(0); }), ErrorCode::kInvalidArgument, {"0"});
  constexpr std::size_t kHuge = std::size_t{1} << 46;
  expect_error(error_of([&] { runtime_->allocate(kHuge); }), ErrorCode::kSystem,
               {std::to_string(kHuge), name, "cuda:0", "bytes are free"});
  expect_error(error_of([&] { runtime_->allocate(~std::size_t{0}); }), ErrorCode::kSystem, {name});
  expect_error(error_of([&] { runtime_->reserve(~std::size_t{0}); }), ErrorCode::kSystem, {name});
  expect_error(error_of([&] { runtime_->reserve(0); }), ErrorCode::kSystem, {name});
  // The device is as good as before.
  EXPECT_EQ(bytes_other_than(0, runtime_->map(runtime_->allocate(1))->base(), granule()), 0u);
}

TEST_F(GpuMemory, ForeignDescriptorsAreRefused) {
  const auto refused = [&](FileDescriptor fd, std::size_t bytes) {
    const auto error = error_of([&] { runtime_->import_memory(std::move(fd), bytes); });
    ASSERT_TRUE(error.has_value());
    EXPECT_NE(std::string(error->what()).find("refused a peer's memory"), std::string::npos)
        << error->what();
  };
  refused(FileDescriptor(), granule());
  FileDescriptor file(::memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(file.get(), static_cast<off_t>(granule())), 0);
  refused(std::move(file), granule());
  const auto memory = runtime_->allocate(granule());
  refused(runtime_->export_descriptor(*memory), granule() - 1);
  refused(runtime_->export_descriptor(*memory), 0);
}

TEST_F(GpuMemory, APeerThatClaimsTooManyBytesIsFoundOutByMapping) {
  const auto memory = runtime_->allocate(granule());
  const auto error = error_of([&] {
    runtime_->map(runtime_->import_memory(runtime_->export_descriptor(*memory), 4 * granule()));
  });
  ASSERT_TRUE(error.has_value());
  EXPECT_NE(std::string(error->what()).find("a peer's memory"), std::string::npos) << error->what();
  EXPECT_NE(std::string(error->what()).find(runtime_->identity().name), std::string::npos);
}

TEST_F(GpuMemory, DevicesThatAreNotThereAreNamed) {
  const DeviceLibrary& library = test::gpu_library();
  for (const int index : {-1, gpu_count_}) {
    expect_error(
        error_of([&] { library.runtime(index); }), ErrorCode::kUnsupported,
        {"cuda:" + std::to_string(index), "this process sees " + std::to_string(gpu_count_)});
  }
}

}  // namespace
}  // namespace symm
