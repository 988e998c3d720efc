#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/error.hpp"
#include "symm_mem/device/device_runtime.hpp"
#include "symm_mem/process/fork_guard.hpp"
#include "symm_mem/process/guarded_descriptor.hpp"
#include "test/support/expect_error.hpp"
#include "test/support/forked_child.hpp"

namespace symm {
namespace {

using test::error_of;
using test::expect_error;
using test::ForkedChild;

const std::size_t kPage = host_runtime().granularity();
constexpr int kAllSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// True where every page of the range is mapped in this process. msync() asks without touching.
bool is_mapped(void* base, std::size_t bytes) { return ::msync(base, bytes, MS_ASYNC) == 0; }

// The line of /proc/self/maps that begins at `base`.
std::string map_line(const std::byte* base) {
  char start[32];
  std::snprintf(start, sizeof(start), "%lx-", reinterpret_cast<unsigned long>(base));
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.starts_with(start)) return line;
  }
  return "";
}

FileDescriptor make_memfd(std::size_t bytes, bool allocate, int seals) {
  FileDescriptor fd(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const auto size = static_cast<off_t>(bytes);
  EXPECT_EQ(allocate ? ::fallocate(fd.get(), 0, 0, size) : ::ftruncate(fd.get(), size), 0);
  if (seals != 0) {
    EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  }
  return fd;
}

TEST(HostMemory, RoundsUpToPagesAndIsZero) {
  for (const std::size_t bytes : {std::size_t{1}, kPage - 1, kPage, kPage + 1, 5 * kPage}) {
    const auto memory = host_runtime().allocate(bytes);
    EXPECT_EQ(memory->bytes(), (bytes + kPage - 1) / kPage * kPage);
    const auto mapping = host_runtime().map(memory);
    ASSERT_EQ(mapping->bytes(), memory->bytes());
    EXPECT_TRUE(std::all_of(mapping->base(), mapping->base() + mapping->bytes(),
                            [](std::byte b) { return b == std::byte{0}; }));
  }
  expect_error(error_of([] { host_runtime().allocate(0); }), ErrorCode::kInvalidArgument, {"0"});
}

TEST(HostMemory, TwoMappingsShowOneMemoryAndOutliveTheOwner) {
  auto memory = host_runtime().allocate(3 * kPage);
  const auto first = host_runtime().map(memory);
  const auto second = host_runtime().map(memory);
  memory.reset();
  ASSERT_NE(first->base(), second->base());
  first->base()[2 * kPage + 17] = std::byte{0x5a};
  EXPECT_EQ(second->base()[2 * kPage + 17], std::byte{0x5a});
}

TEST(HostMemory, MappingIsGoneWithItsOwner) {
  auto mapping = host_runtime().map(host_runtime().allocate(2 * kPage));
  std::byte* const base = mapping->base();
  ASSERT_TRUE(is_mapped(base, 2 * kPage));
  mapping.reset();
  EXPECT_FALSE(is_mapped(base, 2 * kPage));
}

TEST(HostMemory, IsAllocatedInFullAndSealed) {
  const auto memory = host_runtime().allocate(8 * kPage);
  const FileDescriptor fd = host_runtime().export_descriptor(*memory);
  struct stat status {};
  ASSERT_EQ(::fstat(fd.get(), &status), 0);
  EXPECT_EQ(static_cast<std::size_t>(status.st_size), 8 * kPage);
  EXPECT_GE(static_cast<std::size_t>(status.st_blocks) * 512, 8 * kPage);
  EXPECT_EQ(::fcntl(fd.get(), F_GET_SEALS), kAllSeals);
  EXPECT_EQ(::ftruncate(fd.get(), 0), -1);
  EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(9 * kPage)), -1);
  EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_WRITE), -1);
  EXPECT_NE(::fcntl(fd.get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(HostMemory, ExportAndImportShareBytes) {
  const auto memory = host_runtime().allocate(2 * kPage);
  const auto here = host_runtime().map(memory);
  FileDescriptor exported = host_runtime().export_descriptor(*memory);
  const FileDescriptor again = host_runtime().export_descriptor(*memory);
  EXPECT_NE(exported.get(), again.get());
  const auto imported = host_runtime().import_memory(std::move(exported), 2 * kPage);
  const auto there = host_runtime().map(imported);
  there->base()[kPage] = std::byte{42};
  EXPECT_EQ(here->base()[kPage], std::byte{42});
}

TEST(HostMemory, ImportRefusesWhatIsNotSealedMemory) {
  const auto refused = [](FileDescriptor fd, std::size_t bytes, const std::string& word) {
    expect_error(error_of([&] { host_runtime().import_memory(std::move(fd), bytes); }),
                 ErrorCode::kSecurity, {word});
  };
  refused(make_memfd(kPage, true, 0), kPage, "seals");
  refused(make_memfd(kPage, true, F_SEAL_SHRINK), kPage, "seals");
  refused(make_memfd(kPage, true, kAllSeals & ~F_SEAL_SEAL), kPage, "seals");
  refused(make_memfd(kPage, true, kAllSeals | F_SEAL_WRITE), kPage, "seals");
  refused(make_memfd(2 * kPage, true, kAllSeals), kPage, "expected 4096 bytes, it has 8192");
  refused(make_memfd(kPage, true, kAllSeals), 2 * kPage, "expected 8192 bytes, it has 4096");
  refused(make_memfd(4 * kPage, false, kAllSeals), 4 * kPage, "allocated");
  refused(make_memfd(kPage, true, kAllSeals), kPage - 1, "multiple");
  const FileDescriptor writable = make_memfd(kPage, true, kAllSeals);
  const std::string name = "/proc/self/fd/" + std::to_string(writable.get());
  refused(FileDescriptor(::open(name.c_str(), O_RDONLY | O_CLOEXEC)), kPage,
          "not open for reading and writing");
  refused(FileDescriptor(), kPage, "open descriptor");
  char path[] = "/tmp/symm-test-file-XXXXXX";
  FileDescriptor file(::mkstemp(path));
  ::unlink(path);
  ASSERT_EQ(::ftruncate(file.get(), static_cast<off_t>(kPage)), 0);
  refused(std::move(file), kPage, "");
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const FileDescriptor other_end(ends[1]);
  refused(FileDescriptor(ends[0]), kPage, "not a memfd");
  EXPECT_NO_THROW(host_runtime().import_memory(make_memfd(kPage, true, kAllSeals), kPage));
}

TEST(HostMemory, RangeShowsMemoriesAtTheirPlaces) {
  const auto range = host_runtime().reserve(4 * kPage);
  const auto one = host_runtime().allocate(kPage);
  const auto two = host_runtime().allocate(2 * kPage);
  const auto one_elsewhere = host_runtime().map(one);
  const auto at_zero = host_runtime().map_at(one, range, 0);
  auto at_two = host_runtime().map_at(two, range, 2 * kPage);
  EXPECT_EQ(at_zero->base(), range->base());
  EXPECT_EQ(at_two->base(), range->base() + 2 * kPage);
  one_elsewhere->base()[5] = std::byte{11};
  EXPECT_EQ(range->base()[5], std::byte{11});
  // Nothing else may come to stand where a mapping was: the reservation is put back.
  at_two.reset();
  EXPECT_NE(map_line(range->base() + kPage).find("---p"), std::string::npos);
  const auto again = host_runtime().map_at(two, range, kPage);
  EXPECT_EQ(again->base(), range->base() + kPage);
}

TEST(HostMemory, MapAtRefusesPlacesOutsideTheRange) {
  const auto range = host_runtime().reserve(4 * kPage);
  const auto memory = host_runtime().allocate(2 * kPage);
  for (const std::size_t offset :
       {std::size_t{1}, 3 * kPage, 4 * kPage, 5 * kPage, std::size_t{0} - kPage}) {
    expect_error(error_of([&] { host_runtime().map_at(memory, range, offset); }),
                 ErrorCode::kInvalidArgument, {std::to_string(offset)});
  }
}

TEST(HostMemory, RangeIsGoneWithItsOwner) {
  auto range = host_runtime().reserve(4 * kPage);
  std::byte* const base = range->base();
  auto mapping = host_runtime().map_at(host_runtime().allocate(kPage), range, kPage);
  range.reset();
  EXPECT_TRUE(is_mapped(base, 4 * kPage)) << "a mapping keeps its range";
  mapping.reset();
  EXPECT_FALSE(is_mapped(base, kPage));
}

TEST(HostMemory, ImpossibleSizesAreErrorsThatNameThem) {
  for (const std::size_t bytes :
       {std::numeric_limits<std::size_t>::max(), std::size_t{1} << 62, std::size_t{1} << 50}) {
    expect_error(error_of([&] { host_runtime().allocate(bytes); }), ErrorCode::kSystem,
                 {std::to_string(bytes)});
    expect_error(error_of([&] { host_runtime().reserve(bytes); }), ErrorCode::kSystem,
                 {std::to_string(bytes), "RLIMIT_AS"});
  }
}

// What an allocation says under a limit, told by the exit status of a child: 0 when it is an
// Error(kSystem) that holds all words.
int error_under_limit(decltype(RLIMIT_NOFILE) resource, rlim_t value, std::size_t bytes,
                      const std::vector<std::string>& words) {
  const rlimit limit{value, value};
  if (::setrlimit(resource, &limit) != 0) return 1;
  try {
    std::vector<std::shared_ptr<Mapping>> kept;
    constexpr int kMoreThanFit = 64;
    kept.reserve(kMoreThanFit);
    for (int i = 0; i < kMoreThanFit; ++i) {
      kept.push_back(host_runtime().map(host_runtime().allocate(bytes)));
    }
    return 2;
  } catch (const Error& error) {
    const std::string text = error.what();
    const bool all = std::all_of(words.begin(), words.end(), [&](const std::string& word) {
      return text.find(word) != std::string::npos;
    });
    if (!all) std::fprintf(stderr, "%s\n", error.what());
    return error.code() == ErrorCode::kSystem && all ? 0 : 3;
  }
}

TEST(HostMemoryLimits, DescriptorLimitIsNamed) {
  ForkedChild child([] {
    return error_under_limit(RLIMIT_NOFILE, 16, kPage, {"4096", "RLIMIT_NOFILE", "16", "ulimit"});
  });
  EXPECT_EQ(child.wait(), 0);
}

TEST(HostMemoryLimits, FileSizeLimitIsAnErrorAndNotASignal) {
  ForkedChild child([] {
    return error_under_limit(RLIMIT_FSIZE, 8 * 4096, 9 * 4096, {"36864", "RLIMIT_FSIZE", "32768"});
  });
  EXPECT_EQ(child.wait(), 0);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Sanitizers reserve more address space than this limit.
TEST(HostMemoryLimits, AddressSpaceLimitIsNamed) {
  ForkedChild child([] {
    constexpr std::size_t kBytes = std::size_t{8} << 20;
    return error_under_limit(RLIMIT_AS, std::size_t{256} << 20, kBytes,
                             {std::to_string(kBytes), "RLIMIT_AS"});
  });
  EXPECT_EQ(child.wait(), 0);
}
#endif

TEST(HostMemoryFork, ChildReadsWhatIsThereAndKeepsWhatItWrites) {
  auto memory = host_runtime().allocate(2 * kPage);
  auto mapping = host_runtime().map(memory);
  auto range = host_runtime().reserve(4 * kPage);
  auto inside = host_runtime().map_at(memory, range, kPage);
  mapping->base()[0] = std::byte{77};
  const std::uint32_t generation = fork_generation();
  ForkedChild child([&] {
    if (fork_generation() != generation + 1) return 1;
    if (mapping->base()[0] != std::byte{77}) return 2;
    if (inside->base()[0] != std::byte{77}) return 3;
    if (!error_of([&] { host_runtime().export_descriptor(*memory); })) return 4;
    mapping->base()[0] = inside->base()[0] = std::byte{5};
    ForkedChild grandchild([&] { return mapping->base()[0] == std::byte{5} ? 0 : 1; });
    if (grandchild.wait() != 0) return 5;
    // Tensors of the child may be there.
    volatile std::byte* const own = inside->base();
    inside.reset();
    range.reset();
    mapping.reset();
    memory.reset();
    if (own[0] != std::byte{5}) return 6;
    const auto fresh = host_runtime().map(host_runtime().allocate(kPage));
    fresh->base()[1] = std::byte{1};
    return fresh->base()[1] == std::byte{1} ? 0 : 7;
  });
  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(mapping->base()[0], std::byte{77});
  EXPECT_EQ(inside->base()[0], std::byte{77});
  EXPECT_EQ(fork_generation(), generation);
}

TEST(HostMemoryFork, NothingComesToLieWhereMemoryWithoutADescriptorIs) {
  auto memory = host_runtime().allocate(kPage);
  auto mapping = host_runtime().map(memory);
  memory->close_handle();
  mapping->base()[0] = std::byte{77};
  EXPECT_TRUE(error_of([&] { host_runtime().map(memory); }));
  std::byte* const base = mapping->base();
  ForkedChild child([&] {
    void* const other = ::mmap(base, kPage, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    return other == MAP_FAILED && errno == EEXIST ? 0 : 1;
  });
  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(mapping->base()[0], std::byte{77});
  mapping.reset();
  // Nothing is kept for the next child.
  ForkedChild later([&] { return is_mapped(base, kPage) ? 1 : 0; });
  EXPECT_EQ(later.wait(), 0);
}

TEST(HostMemoryFork, GuardedDescriptorIsClosedInTheChildAndLeftAloneThere) {
  const auto open_null = [] { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); };
  GuardedDescriptor kept = GuardedDescriptor::open(open_null);
  GuardedDescriptor closed = GuardedDescriptor::open(open_null);
  const int closed_number = closed.get();
  closed.reset();
  // Takes the number over; a child must keep it, as it is guarded no more.
  const FileDescriptor plain(open_null());
  ASSERT_EQ(plain.get(), closed_number);
  const int number = kept.get();
  ForkedChild child([&] {
    if (::fcntl(number, F_GETFD) != -1) return 1;
    if (kept.get() != -1 || kept.valid()) return 2;
    if (::fcntl(plain.get(), F_GETFD) == -1) return 3;
    const FileDescriptor reused(open_null());
    if (reused.get() != number) return 4;
    kept.reset();
    return ::fcntl(number, F_GETFD) != -1 ? 0 : 5;
  });
  EXPECT_EQ(child.wait(), 0);
  EXPECT_NE(::fcntl(number, F_GETFD), -1);
}

TEST(HostMemoryFork, GrandchildHasTheNextGeneration) {
  const std::uint32_t generation = fork_generation();
  ForkedChild child([&] {
    ForkedChild grandchild([&] { return fork_generation() == generation + 2 ? 0 : 1; });
    return grandchild.wait();
  });
  EXPECT_EQ(child.wait(), 0);
}

TEST(HostMemory, NothingIsLeftOver) {
  const auto descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  const auto mappings = [] {
    std::ifstream maps("/proc/self/maps");
    int lines = 0;
    for (std::string line; std::getline(maps, line);) lines += line.find("memfd") != line.npos;
    return lines;
  };
  const auto before = descriptors();
  for (int i = 0; i < 200; ++i) {
    const auto memory = host_runtime().allocate(kPage);
    const auto range = host_runtime().reserve(2 * kPage);
    const auto mapping = host_runtime().map_at(memory, range, kPage);
    const auto imported =
        host_runtime().import_memory(host_runtime().export_descriptor(*memory), kPage);
    error_of([&] { host_runtime().import_memory(make_memfd(kPage, true, 0), kPage); });
  }
  EXPECT_EQ(descriptors(), before);
  EXPECT_EQ(mappings(), 0);
}

}  // namespace
}  // namespace symm
