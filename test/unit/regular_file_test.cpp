// Files that a user names: what is read and what is refused, without waiting for anybody.
#include "symm_mem/process/regular_file.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <string>

#include "test/support/expect_error.hpp"
#include "test/support/temporary_directory.hpp"

namespace symm {
namespace {

constexpr std::size_t kMost = 100'000;

std::string content_of(const std::string& path) { return read_regular_file(path, kMost, "OPTION"); }

void expect_refused(const std::string& path, const std::string& found) {
  test::expect_error(test::error_of([&] { content_of(path); }), ErrorCode::kInvalidArgument,
                     {"OPTION: expected", "at most 100000 bytes", found, "'" + path + "'"});
}

TEST(RegularFile, IsReadUpToItsLargestSize) {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/file";
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, kMost}) {
    const std::string content(bytes, 'x');
    std::ofstream(path) << content;
    EXPECT_EQ(content_of(path), content);
  }
  std::ofstream(path) << std::string(kMost + 1, 'x');
  expect_refused(path, "100001 bytes");
}

TEST(RegularFile, NothingElseIsRead) {
  const test::TemporaryDirectory directory;
  expect_refused(directory.path(), "a directory");
  expect_refused("/dev/zero", "a device");
  expect_refused(directory.path() + "/none", "No such file");
  const std::string fifo = directory.path() + "/fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  expect_refused(fifo, "a fifo");
}

// Files of /proc say that they are empty.
TEST(RegularFile, OfUnknownSizeIsReadUpToTheLargestSize) {
  EXPECT_FALSE(content_of("/proc/self/status").empty());
  test::expect_error(test::error_of([] { read_regular_file("/proc/self/status", 10, "OPTION"); }),
                     ErrorCode::kInvalidArgument, {"larger"});
}

}  // namespace
}  // namespace symm
