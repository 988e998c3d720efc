// Narrow floats by the GPU's own instructions have the bits of the portable conversions, for every
// input there is.
#include "test/gpu/conversions.hpp"

#include <gtest/gtest.h>

#include <string>

#include "test/support/gpu.hpp"

namespace symm::test {
namespace {

class ConversionsTest : public GpuTest, public ::testing::WithParamInterface<Dtype> {};

TEST_P(ConversionsTest, EveryCodeWidensToTheSameBits) {
  const ConversionCheck check = check_widening(GetParam());
  EXPECT_EQ(check.wrong, 0u) << "the first: " << check.first_wrong;
  EXPECT_GE(check.inputs, 256u);
}

TEST_P(ConversionsTest, EveryFloat32RoundsToTheSameBits) {
  const ConversionCheck check = check_rounding(GetParam());
  EXPECT_EQ(check.wrong, 0u) << "the first: " << check.first_wrong;
  EXPECT_EQ(check.inputs, std::uint64_t{1} << 32);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, ConversionsTest,
                         ::testing::Values(Dtype::kFloat16, Dtype::kBFloat16, Dtype::kFloat8E4M3Fn,
                                           Dtype::kFloat8E5M2),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

}  // namespace
}  // namespace symm::test
