// What counts as memory available, by the files of fake machines.
#include "symm_mem/process/available_memory.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <string>

#include "test/support/temporary_directory.hpp"

namespace symm {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

std::string mib(std::size_t count) { return std::to_string(count * kMiB); }

class AvailableMemoryTest : public testing::Test {
 protected:
  void write(const std::map<std::string, std::string>& files) const {
    for (const auto& [path, content] : files) {
      const std::filesystem::path whole = root_.path() + path;
      std::filesystem::create_directories(whole.parent_path());
      std::ofstream(whole) << content << "\n";
    }
  }
  void write_machine(std::size_t free, std::size_t swap = 0) const {
    write({{"/proc/meminfo",
            "MemTotal:       99999999 kB\nMemAvailable:   " + std::to_string(free * 1024) +
                " kB\nSwapFree: " + std::to_string(swap * 1024) + " kB"}});
  }
  AvailableMemory available() const { return available_memory(root_.path()); }

  test::TemporaryDirectory root_;
};

TEST_F(AvailableMemoryTest, IsUnlimitedWhereNothingCanBeRead) {
  EXPECT_EQ(available().bytes, std::numeric_limits<std::size_t>::max());
}

TEST_F(AvailableMemoryTest, OfAMachineIsItsMemoryAndSwap) {
  write_machine(1000, 24);
  EXPECT_EQ(available().bytes, 1024 * kMiB);
  EXPECT_EQ(available().holder, "the machine");
}

TEST_F(AvailableMemoryTest, OfVersion2IsTheSmallestOfAllGroupsAbove) {
  write_machine(8000);
  const std::string base = "/sys/fs/cgroup";
  write({{"/proc/self/cgroup", "0::/jobs/one/task"},
         {base + "/jobs/memory.max", mib(4000)},
         {base + "/jobs/memory.current", mib(3000)},
         {base + "/jobs/one/memory.max", mib(400)},
         {base + "/jobs/one/memory.current", mib(100)},
         {base + "/jobs/one/task/memory.max", "max"},
         {base + "/jobs/one/task/memory.current", mib(90)}});
  EXPECT_EQ(available().bytes, 300 * kMiB);
  EXPECT_EQ(available().holder, "the control group /jobs/one (limit 419430400 bytes)");
  write({{base + "/jobs/memory.current", mib(3900)}});
  EXPECT_EQ(available().bytes, 100 * kMiB);
  write_machine(50);
  EXPECT_EQ(available().bytes, 50 * kMiB);
  EXPECT_EQ(available().holder, "the machine");
}

// A container's own group is the mount, under whatever name the process is shown.
TEST_F(AvailableMemoryTest, OfAContainerIsThatOfTheMount) {
  write_machine(8000);
  write({{"/sys/fs/cgroup/memory.max", mib(400)}, {"/sys/fs/cgroup/memory.current", mib(10)}});
  for (const char* const shown : {"0::/", "0::/docker/0123", "0::/../../other"}) {
    write({{"/proc/self/cgroup", shown}});
    EXPECT_EQ(available().bytes, 390 * kMiB) << shown;
  }
}

TEST_F(AvailableMemoryTest, CountsFilePagesThatCanBeDroppedAndSwap) {
  write_machine(8000, 70);
  const std::string base = "/sys/fs/cgroup/job";
  write({{"/proc/self/cgroup", "0::/job"},
         {base + "/memory.max", mib(400)},
         {base + "/memory.current", mib(300)},
         {base + "/memory.stat",
          "anon 5\nfile 104857600\ninactive_file " + mib(20) + "\nactive_file " + mib(30)},
         {base + "/memory.swap.max", "max"},
         {base + "/memory.swap.current", "0"}});
  EXPECT_EQ(available().bytes, (100 + 50 + 70) * kMiB);
  write({{base + "/memory.swap.max", mib(16)}, {base + "/memory.swap.current", mib(6)}});
  EXPECT_EQ(available().bytes, (100 + 50 + 10) * kMiB);
  // A group that uses more than its limit, since it was lowered.
  write({{base + "/memory.current", mib(500)}, {base + "/memory.swap.max", "0"}});
  EXPECT_EQ(available().bytes, 50 * kMiB);
}

TEST_F(AvailableMemoryTest, OfVersion1IsReadBesideOtherControllers) {
  write_machine(8000, 1000);
  const std::string base = "/sys/fs/cgroup/memory/docker/77";
  write({{"/proc/self/cgroup",
          "12:pids:/docker/77\n4:cpu,memory,io:/docker/77\n1:name=systemd:/docker/77\n0::/x"},
         {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712"},
         {"/sys/fs/cgroup/memory/memory.usage_in_bytes", mib(3000)},
         {base + "/memory.limit_in_bytes", mib(400)},
         {base + "/memory.usage_in_bytes", mib(350)},
         {base + "/memory.stat", "total_inactive_file " + mib(10)}});
  EXPECT_EQ(available().bytes, (60 + 1000) * kMiB);
  // Memory and swap together.
  write({{base + "/memory.memsw.limit_in_bytes", mib(500)},
         {base + "/memory.memsw.usage_in_bytes", mib(420)}});
  EXPECT_EQ(available().bytes, 90 * kMiB);
}

TEST_F(AvailableMemoryTest, DoesNotMindUnreadableFiles) {
  write_machine(100);
  write({{"/proc/self/cgroup", "nonsense\n3:memory\n0::relative\n0::/job"},
         {"/sys/fs/cgroup/job/memory.max", "many"},
         {"/sys/fs/cgroup/job/memory.current", "some"}});
  EXPECT_EQ(available().bytes, 100 * kMiB);
}

}  // namespace
}  // namespace symm
