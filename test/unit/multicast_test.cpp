#include "symm_mem/multicast.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

namespace symm {
namespace {

constexpr const char* kSwitches[] = {"SYMM_DISABLE_MULTICAST", "TORCH_SYMM_MEM_DISABLE_MULTICAST",
                                     "NVSHMEM_DISABLE_NVLS"};

class MulticastTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : kSwitches) ::unsetenv(name);
  }
  void TearDown() override { SetUp(); }
};

TEST_F(MulticastTest, IsNotDisabledByItself) { EXPECT_FALSE(multicast_disabled()); }

TEST_F(MulticastTest, EachSwitchAloneDisablesIt) {
  for (const char* name : kSwitches) {
    ::setenv(name, "1", 1);
    EXPECT_TRUE(multicast_disabled()) << name;
    ::setenv(name, "0", 1);
    EXPECT_FALSE(multicast_disabled()) << name;
    ::unsetenv(name);
  }
}

TEST_F(MulticastTest, AnotherSwitchThatIsOffDoesNotEnableIt) {
  ::setenv(kSwitches[0], "0", 1);
  ::setenv(kSwitches[2], "1", 1);
  EXPECT_TRUE(multicast_disabled());
}

}  // namespace
}  // namespace symm
