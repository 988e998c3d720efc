#include "symm_mem/device/device_library.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "kernels/core/error.hpp"
#include "test/support/expect_error.hpp"
#include "test/support/symbols.hpp"
#include "test/support/temporary_directory.hpp"

namespace symm {
namespace {

using test::error_of;
using test::expect_error;

class DeviceLibraryTest : public ::testing::Test {
 protected:
  // Builds libsymm_cuda.so in the test's own directory from C: the interface is plain data.
  void build(const std::string& source) {
    const std::string base = directory_.path() + "/libsymm_cuda";
    std::ofstream(base + ".c") << source;
    const std::string command = "cc -shared -fPIC -o " + base + ".so " + base + ".c";
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
  }
  static std::string library_source(const std::string& version, const std::string& kind,
                                    const std::string& runtime) {
    return "struct library { int interface_version; int kind; void *(*runtime)(int); };\n"
           "static void *device(int index) { static int devices[2]; return &devices[index]; }\n"
           "static const struct library self = {" +
           version + ", " + kind + ", " + runtime +
           "};\n"
           "const void *symm_device_library(void) { (void)device; return &self; }\n";
  }
  std::string file() const { return directory_.path() + "/libsymm_cuda.so"; }
  void expect_refused(const std::string& word) {
    expect_error(error_of([&] { open_device_library(directory_.path(), DeviceKind::kCuda); }),
                 ErrorCode::kUnsupported, {"cuda", file(), word});
  }

  test::TemporaryDirectory directory_;
  const std::string version_ = std::to_string(kDeviceLibraryVersion);
};

TEST_F(DeviceLibraryTest, MissingFileIsNamed) { expect_refused("libsymm_cuda.so"); }

TEST_F(DeviceLibraryTest, FileThatIsNoLibrary) {
  std::ofstream(file()) << "not a shared object";
  expect_refused("does not load");
}

TEST_F(DeviceLibraryTest, LibraryWithoutTheSymbol) {
  build("int something_else(void) { return 1; }\n");
  expect_refused(kDeviceLibrarySymbol);
}

TEST_F(DeviceLibraryTest, WrongVersionNamesBoth) {
  build(library_source("77", "1", "device"));
  expect_refused("version 77, expected " + version_);
}

TEST_F(DeviceLibraryTest, WrongKindAndNoRuntime) {
  build(library_source(version_, "2", "device"));
  expect_refused("another kind");
  // Another file, as the loader knows the first one by its name.
  test::TemporaryDirectory second;
  std::ofstream(second.path() + "/l.c") << library_source(version_, "1", "0");
  ASSERT_EQ(std::system(("cc -shared -fPIC -o " + second.path() + "/libsymm_cuda.so " +
                         second.path() + "/l.c")
                            .c_str()),
            0);
  expect_error(error_of([&] { open_device_library(second.path(), DeviceKind::kCuda); }),
               ErrorCode::kUnsupported, {"another kind"});
}

TEST_F(DeviceLibraryTest, RightLibraryOpensOnce) {
  build(library_source(version_, "1", "device"));
  const DeviceLibrary& library = open_device_library(directory_.path(), DeviceKind::kCuda);
  EXPECT_EQ(library.interface_version, kDeviceLibraryVersion);
  EXPECT_EQ(library.kind, DeviceKind::kCuda);
  EXPECT_NE(&library.runtime(0), &library.runtime(1));
  EXPECT_EQ(&open_device_library(directory_.path(), DeviceKind::kCuda), &library);
}

#ifdef SYMM_TEST_CUDA_DIRECTORY

// The library of this build, on a machine without a GPU: it loads, and says in one sentence what is
// missing; so it does for a device that no machine has.
TEST(DeviceLibrary, TheCudaLibraryOfThisBuildOpensWithoutAGpu) {
  const std::string directory = SYMM_TEST_CUDA_DIRECTORY;
  const DeviceLibrary& library = open_device_library(directory, DeviceKind::kCuda);
  EXPECT_EQ(library.interface_version, kDeviceLibraryVersion);
  EXPECT_EQ(library.kind, DeviceKind::kCuda);
  for (int attempt = 0; attempt < 2; ++attempt) {
    const auto error = error_of([&] { library.runtime(100'000); });
    expect_error(error, ErrorCode::kUnsupported, {"symm cannot use "});
    const std::string text = error->what();
    const bool clear =
        text.find("the NVIDIA driver is not installed: libcuda.so.1") != std::string::npos ||
        text.find("no GPU is visible to this process") != std::string::npos ||
        text.find("there is no such GPU; this process sees ") != std::string::npos;
    EXPECT_TRUE(clear) << text;
  }
}

// Else the CUDA runtime inside it could be taken for another library's.
TEST(DeviceLibrary, TheCudaLibraryOfThisBuildExportsOneSymbol) {
  EXPECT_EQ(test::symbols_of(SYMM_TEST_CUDA_DIRECTORY "/libsymm_cuda.so", "--defined-only"),
            std::vector<std::string>{kDeviceLibrarySymbol});
}

#else

TEST(DeviceLibrary, TheCudaLibraryOfThisBuildOpensWithoutAGpu) {
  GTEST_SKIP() << "libsymm_cuda was not built (SYMM_BUILD_CUDA)";
}

#endif

TEST(DeviceLibrary, HostNeedsNone) {
  expect_error(error_of([] { device_library(DeviceKind::kHost); }), ErrorCode::kUnsupported,
               {"host memory"});
  EXPECT_NE(device_library_problem(DeviceKind::kHost), "");
}

TEST(DeviceLibrary, NamesOfKinds) {
  EXPECT_EQ(device_kind_name(DeviceKind::kHost), "cpu");
  EXPECT_EQ(device_kind_name(DeviceKind::kCuda), "cuda");
  EXPECT_EQ(device_kind_name(DeviceKind::kHip), "hip");
}

}  // namespace
}  // namespace symm
