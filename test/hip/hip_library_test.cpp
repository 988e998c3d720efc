// libsymm_hip of this build on a machine without an AMD GPU.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "kernels/core/error.hpp"
#include "symm_mem/device/device_library.hpp"
#include "test/support/expect_error.hpp"
#include "test/support/symbols.hpp"
#include "test/support/temporary_directory.hpp"

namespace symm {
namespace {

using test::error_of;
using test::expect_error;

const std::string kLibrary = SYMM_TEST_HIP_DIRECTORY "/libsymm_hip.so";

const DeviceLibrary& library() {
  return open_device_library(SYMM_TEST_HIP_DIRECTORY, DeviceKind::kHip);
}

std::string runtime_needed() {
  const std::string major = std::to_string(SYMM_TEST_HIP_MAJOR);
  return "libamdhip64.so." + major;
}

// A stand-in for the HIP runtime that knows every function which the library links, tells a version
// of `major`, and answers everything else with hipErrorNoDevice. The loader takes it for the file
// that `name` names.
void load_stand_in(const test::TemporaryDirectory& directory, const std::string& name, int major) {
  const std::string base = directory.path() + "/stand_in";
  std::ofstream source(base + ".c");
  std::map<std::string, std::string> versions;  // what each one offers
  for (const std::string& symbol : test::symbols_of(kLibrary, "--undefined-only")) {
    const std::string function = symbol.substr(0, symbol.find('@'));
    if (!function.starts_with("hip") && !function.starts_with("__hip")) continue;
    versions[symbol.substr(symbol.find('@') + 1)] += function + ";";
    if (function == "hipRuntimeGetVersion") {
      source << "int " << function << "(int* version) { *version = " << major
             << " * 10000000 + 300000; return 0; }\n";
    } else {
      source << "int " << function << "(void) { return 100; }\n";
    }
  }
  source.close();
  std::ofstream script(base + ".map");
  for (const auto& [version, names] : versions) {
    script << version << " { global: " << names << " };\n";
  }
  script.close();
  const std::string command = "cc -shared -fPIC -Wl,-soname," + name +
                              " -Wl,--version-script=" + base + ".map -o " + base + ".so " + base +
                              ".c";
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  ASSERT_NE(::dlopen((base + ".so").c_str(), RTLD_NOW | RTLD_GLOBAL), nullptr) << ::dlerror();
}

std::string refusal_of_first_device() {
  const auto error = error_of([] { library().runtime(0); });
  expect_error(error, ErrorCode::kUnsupported, {"symm cannot use "});
  return error ? error->what() : "";
}

TEST(HipLibrary, OpensAndSaysThatThereIsNoGpu) {
  EXPECT_EQ(library().interface_version, kDeviceLibraryVersion);
  EXPECT_EQ(library().kind, DeviceKind::kHip);
  for (int attempt = 0; attempt < 2; ++attempt) {
    const auto error = error_of([] { library().runtime(100'000); });
    expect_error(error, ErrorCode::kUnsupported, {"symm cannot use "});
    const std::string text = error->what();
    const bool clear = text.find("no GPU is visible to this process; see HIP_VISIBLE_DEVICES") !=
                           std::string::npos ||
                       text.find("there is no such GPU; this process sees ") != std::string::npos;
    EXPECT_TRUE(clear) << text;
  }
}

TEST(HipLibrary, ExportsOneSymbol) {
  EXPECT_EQ(test::symbols_of(kLibrary, "--defined-only"),
            std::vector<std::string>{kDeviceLibrarySymbol});
}

void expect_refused_version(int major) {
  const test::TemporaryDirectory directory;
  ASSERT_NO_FATAL_FAILURE(load_stand_in(directory, runtime_needed(), major));
  EXPECT_EQ(refusal_of_first_device(),
            "symm cannot use a GPU: the HIP runtime serves HIP " + std::to_string(major) +
                ".3, and this build of symm is for HIP " + std::to_string(SYMM_TEST_HIP_MAJOR) +
                ".0 and the minor versions that follow it; build it with the one of this machine");
}

TEST(HipLibrary, RefusesARuntimeOfANewerMajorVersion) {
  expect_refused_version(SYMM_TEST_HIP_MAJOR + 1);
}

TEST(HipLibrary, RefusesARuntimeOfAnOlderMajorVersion) {
  expect_refused_version(SYMM_TEST_HIP_MAJOR - 1);
}

// The version passes, so the entries are looked for that are not linked; the stand-in has none.
TEST(HipLibrary, TakesARuntimeOfItsOwnMajorVersion) {
  const test::TemporaryDirectory directory;
  ASSERT_NO_FATAL_FAILURE(load_stand_in(directory, runtime_needed(), SYMM_TEST_HIP_MAJOR));
  EXPECT_EQ(refusal_of_first_device(), "symm cannot use a GPU: " + runtime_needed() +
                                           " has no entry hipDeviceGet; install a newer driver");
}

TEST(HipLibrary, RefusesAProcessThatUsesAnotherMajorVersion) {
  const test::TemporaryDirectory directory;
  const std::string other = "libamdhip64.so." + std::to_string(SYMM_TEST_HIP_MAJOR + 1);
  ASSERT_NO_FATAL_FAILURE(load_stand_in(directory, other, SYMM_TEST_HIP_MAJOR + 1));
  EXPECT_EQ(refusal_of_first_device(), "symm cannot use a GPU: this process uses " + other +
                                           ", and this build of symm is for " + runtime_needed() +
                                           "; build symm with the HIP that PyTorch uses");
}

}  // namespace
}  // namespace symm
