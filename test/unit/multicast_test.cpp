#include "symm_mem/device/multicast.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>

#include "test/support/environment.hpp"
#include "test/support/expect_error.hpp"

namespace symm {
namespace {

constexpr const char* kSwitches[] = {"SYMM_DISABLE_MULTICAST", "TORCH_SYMM_MEM_DISABLE_MULTICAST",
                                     "NVSHMEM_DISABLE_NVLS"};

// The switches may be on because multicast must not be used here, so they are put back.
class MulticastTest : public ::testing::Test {
 protected:
  const test::ScopedVariable saved_[3] = {
      {kSwitches[0], std::nullopt}, {kSwitches[1], std::nullopt}, {kSwitches[2], std::nullopt}};
};

TEST_F(MulticastTest, IsNotDisabledByItself) {
  EXPECT_FALSE(multicast_disabled());
  EXPECT_EQ(multicast_disabled_by(), "");
}

TEST_F(MulticastTest, EachSwitchAloneDisablesIt) {
  for (const char* name : kSwitches) {
    ::setenv(name, "1", 1);
    EXPECT_TRUE(multicast_disabled()) << name;
    EXPECT_EQ(multicast_disabled_by(), name);
    ::setenv(name, "0", 1);
    EXPECT_FALSE(multicast_disabled()) << name;
    ::unsetenv(name);
  }
}

TEST_F(MulticastTest, AWrongValueIsRefusedAndNamed) {
  for (const char* value : {"", "0"}) {
    ::setenv(kSwitches[0], value, 1);
    EXPECT_FALSE(multicast_disabled()) << value;
  }
  ::setenv(kSwitches[0], "yes", 1);
  test::expect_error(test::error_of([] { multicast_disabled(); }), ErrorCode::kInvalidArgument,
                     {"SYMM_DISABLE_MULTICAST: expected 0 or 1", "'yes'"});
}

TEST_F(MulticastTest, AnotherSwitchThatIsOffDoesNotEnableIt) {
  ::setenv(kSwitches[0], "0", 1);
  ::setenv(kSwitches[2], "1", 1);
  EXPECT_TRUE(multicast_disabled());
}

}  // namespace
}  // namespace symm
