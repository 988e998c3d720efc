// Reading the memory of a process: what is read, and how a refusal is reported.
#include "symm_mem/process/process_memory.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <vector>

namespace symm {
namespace {

std::uint64_t address_of(const void* data) { return reinterpret_cast<std::uintptr_t>(data); }

TEST(ProcessMemory, TheProbeIsReadAsItIs) {
  const MemoryProbe probe = own_memory_probe();
  std::uint64_t word = 0;
  EXPECT_EQ(read_process_memory(::getpid(), probe.address, &word, sizeof(word)), 0);
  EXPECT_EQ(word, probe.word);
  EXPECT_NE(word, 0u);
  EXPECT_EQ(own_memory_probe().word, word);
}

TEST(ProcessMemory, AHoleEndsARead) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* const map =
      ::mmap(nullptr, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(map, MAP_FAILED);
  auto* const bytes = static_cast<unsigned char*>(map);
  std::fill_n(bytes, 3 * page, static_cast<unsigned char>(9));
  std::vector<unsigned char> copy(3 * page);
  EXPECT_EQ(read_process_memory(::getpid(), address_of(bytes), copy.data(), copy.size()), 0);
  EXPECT_EQ(copy, std::vector<unsigned char>(3 * page, 9));
  EXPECT_TRUE(is_readable_by_peers(bytes, 3 * page));
  ASSERT_EQ(::munmap(bytes + 2 * page, page), 0);
  EXPECT_EQ(read_process_memory(::getpid(), address_of(bytes), copy.data(), copy.size()), EFAULT);
  EXPECT_FALSE(is_readable_by_peers(bytes, 3 * page));
  EXPECT_FALSE(is_readable_by_peers(bytes + 2 * page, 1));
  EXPECT_TRUE(is_readable_by_peers(bytes, 2 * page));
  ::munmap(map, 2 * page);
}

TEST(ProcessMemory, NoProcessAndNoBytes) {
  constexpr std::int64_t kNobody = (std::int64_t{1} << 22) + 1;  // above the kernel's largest pid
  std::uint64_t word = 0;
  EXPECT_EQ(read_process_memory(kNobody, address_of(&word), &word, sizeof(word)), ESRCH);
  EXPECT_EQ(read_process_memory(::getpid(), 0, nullptr, 0), 0);
  EXPECT_TRUE(is_readable_by_peers(nullptr, 0));
}

}  // namespace
}  // namespace symm
