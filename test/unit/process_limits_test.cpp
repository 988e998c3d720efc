// Room in a process for what it is about to take.
#include "symm_mem/process/process_limits.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "test/support/expect_error.hpp"
#include "test/support/forked_child.hpp"

namespace symm {
namespace {

using test::error_of;
using test::ForkedChild;

constexpr std::size_t kMiB = std::size_t{1} << 20;

// The exit status of a child with this limit: 0 where `fits` passes and `exceeds` is an
// Error(kSystem) that holds all words.
int status_under(decltype(RLIMIT_AS) resource, rlim_t value, const ProcessNeeds& fits,
                 const ProcessNeeds& exceeds, const std::vector<std::string>& words) {
  ForkedChild child([&] {
    const rlimit limit{value, value};
    if (::setrlimit(resource, &limit) != 0) return 1;
    check_process_limits("a test", fits);
    const auto error = error_of([&] { check_process_limits("a test", exceeds); });
    if (!error || error->code() != ErrorCode::kSystem) return 2;
    for (const std::string& word : words) {
      if (std::string(error->what()).find(word) != std::string::npos) continue;
      std::fprintf(stderr, "no '%s' in: %s\n", word.c_str(), error->what());
      return 3;
    }
    return 0;
  });
  return child.wait();
}

TEST(ProcessLimits, DescriptorsBesideThoseThatAreOpen) {
  std::vector<int> open;
  for (int i = 0; i < 10; ++i) open.push_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(status_under(RLIMIT_NOFILE, 50, {.descriptors = 20}, {.descriptors = 40},
                         {"a test needs 40 descriptors", "RLIMIT_NOFILE allows 50", "ulimit -n"}),
            0);
  for (const int fd : open) ::close(fd);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Sanitizers reserve more address space than this limit.
TEST(ProcessLimits, AddressSpaceBesideWhatIsMapped) {
  EXPECT_EQ(
      status_under(RLIMIT_AS, 1024 * kMiB, {.address_space = 100 * kMiB},
                   {.address_space = 1020 * kMiB},
                   {"a test needs 1069547520 bytes of address space", "RLIMIT_AS", "ulimit -v"}),
      0);
}
#endif

TEST(ProcessLimits, MemoryThatNobodyHas) {
  test::expect_error(
      error_of([] { check_process_limits("a test", {.memory = std::size_t{1} << 60}); }),
      ErrorCode::kSystem, {"1152921504606846976 bytes of a test", "bytes available"});
}

TEST(ProcessLimits, NoNeedsAreAlwaysThere) { check_process_limits("a test", {}); }

}  // namespace
}  // namespace symm
