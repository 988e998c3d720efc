// Conversions of the narrow floats against a slow reference that searches all encodings in double
// precision, and the rules of numeric.hpp that a kernel test cannot isolate.
#include "kernels/core/numeric.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace symm {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// A format as its specification states it, independent of the code under test.
struct FormatSpec {
  int width;
  int mantissa_bits;
  int bias;
  bool has_infinity;   // exponent all ones is infinity or NaN
  bool all_ones_nan;   // only the all-ones magnitude is NaN
  bool unsigned_zero;  // the encoding of negative zero is NaN
  bool saturates;      // overflow gives the largest finite value
  std::uint32_t nan;   // what +NaN becomes
  bool nan_keeps_sign;
};

double decode(const FormatSpec& spec, std::uint32_t code) {
  const std::uint32_t sign_bit = 1u << (spec.width - 1);
  const std::uint32_t magnitude = code & (sign_bit - 1);
  const int exponent = static_cast<int>(magnitude >> spec.mantissa_bits);
  const int mantissa = static_cast<int>(magnitude & ((1u << spec.mantissa_bits) - 1));
  const int largest_exponent = (1 << (spec.width - 1 - spec.mantissa_bits)) - 1;
  const double sign = (code & sign_bit) != 0 ? -1.0 : 1.0;
  if (spec.unsigned_zero && code == sign_bit) return kNan;
  if (spec.all_ones_nan && magnitude == sign_bit - 1) return kNan;
  if (spec.has_infinity && exponent == largest_exponent) {
    return mantissa == 0 ? sign * kInfinity : kNan;
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - spec.bias - spec.mantissa_bits);
  return sign * std::ldexp((1 << spec.mantissa_bits) + mantissa,
                           exponent - spec.bias - spec.mantissa_bits);
}

// The values of the non-negative finite codes are ascending, so the nearest is found by bisection;
// of two equally near ones the even code wins. One step past the largest finite value stands for
// overflow.
class Reference {
 public:
  explicit Reference(const FormatSpec& spec) : spec_(spec) {
    for (std::uint32_t code = 0; code < (1u << (spec.width - 1)); ++code) {
      const double value = decode(spec, code);
      if (!std::isfinite(value)) break;
      finite_.push_back(value);
    }
  }

  std::uint32_t encode(float value) const {
    const std::uint32_t sign = std::signbit(value) ? 1u << (spec_.width - 1) : 0u;
    if (std::isnan(value)) return spec_.nan | (spec_.nan_keeps_sign ? sign : 0u);
    const std::uint32_t code = nearest(std::fabs(static_cast<double>(value)));
    const auto count = static_cast<std::uint32_t>(finite_.size());
    if (code >= count) {
      if (spec_.unsigned_zero) return spec_.nan;
      return sign | (spec_.saturates ? count - 1 : count);  // infinity follows the largest
    }
    return spec_.unsigned_zero && code == 0 ? 0u : sign | code;
  }

 private:
  std::uint32_t nearest(double magnitude) const {
    const std::size_t last = finite_.size() - 1;
    const double step = finite_[last] - finite_[last - 1];
    const double beyond = finite_[last] + step;
    if (magnitude >= beyond) return static_cast<std::uint32_t>(last + 1);
    const auto above = std::upper_bound(finite_.begin(), finite_.end(), magnitude);
    const auto low = static_cast<std::uint32_t>(above - finite_.begin()) - 1;
    const double next = low == last ? beyond : finite_[low + 1];
    const double below_gap = magnitude - finite_[low];
    const double above_gap = next - magnitude;
    if (below_gap == above_gap) return low % 2 == 0 ? low : low + 1;
    return below_gap < above_gap ? low : low + 1;
  }

  FormatSpec spec_;
  std::vector<double> finite_;
};

template <class T>
FormatSpec spec_of();
template <>
FormatSpec spec_of<Half>() {
  return {16, 10, 15, true, false, false, false, 0x7e00, true};
}
template <>
FormatSpec spec_of<BFloat16>() {
  return {16, 7, 127, true, false, false, false, 0x7fc0, false};
}
template <>
FormatSpec spec_of<Float8E4M3Fn>() {
  return {8, 3, 7, false, true, false, true, 0x7f, true};
}
template <>
FormatSpec spec_of<Float8E5M2>() {
  return {8, 2, 15, true, false, false, false, 0x7f, true};
}
template <>
FormatSpec spec_of<Float8E4M3FnUz>() {
  return {8, 3, 8, false, false, true, false, 0x80, false};
}
template <>
FormatSpec spec_of<Float8E5M2FnUz>() {
  return {8, 2, 16, false, false, true, false, 0x80, false};
}

template <class T>
T from_code(std::uint32_t code) {
  return T{static_cast<decltype(T::bits)>(code)};
}

template <class T>
class NarrowFloatTest : public testing::Test {};
using NarrowFloats =
    testing::Types<Half, BFloat16, Float8E4M3Fn, Float8E5M2, Float8E4M3FnUz, Float8E5M2FnUz>;
TYPED_TEST_SUITE(NarrowFloatTest, NarrowFloats);

TYPED_TEST(NarrowFloatTest, EveryEncodingDecodesToItsValueAndBack) {
  const FormatSpec spec = spec_of<TypeParam>();
  for (std::uint32_t code = 0; code < (1u << spec.width); ++code) {
    const double expected = decode(spec, code);
    const float value = TypeParam::to_float32(from_code<TypeParam>(code));
    const std::uint32_t back = TypeParam::from_float32(value).bits;
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << "code " << code;
      ASSERT_TRUE(std::isnan(decode(spec, back))) << "code " << code;
      continue;
    }
    ASSERT_EQ(std::bit_cast<std::uint32_t>(value),
              std::bit_cast<std::uint32_t>(static_cast<float>(expected)))
        << "code " << code;
    ASSERT_EQ(back, code);
  }
}

// Around every midpoint of two neighbouring encodings: the tie and the float on each side of it.
TYPED_TEST(NarrowFloatTest, TiesGoToEvenAndTheirNeighboursToTheNearest) {
  const FormatSpec spec = spec_of<TypeParam>();
  const Reference reference(spec);
  for (std::uint32_t code = 0; code + 1 < (1u << (spec.width - 1)); ++code) {
    const double low = decode(spec, code);
    const double high = decode(spec, code + 1);
    if (!std::isfinite(low) || !std::isfinite(high)) continue;
    const float tie = static_cast<float>((low + high) / 2);
    for (const float value : {std::nextafterf(tie, 0.0f), tie, std::nextafterf(tie, 1e38f)}) {
      ASSERT_EQ(TypeParam::from_float32(value).bits, reference.encode(value)) << value;
      ASSERT_EQ(TypeParam::from_float32(-value).bits, reference.encode(-value)) << -value;
    }
  }
}

TYPED_TEST(NarrowFloatTest, LimitsMatchTheReference) {
  const Reference reference(spec_of<TypeParam>());
  std::vector<float> values = {0.0f,
                               1e-45f,
                               1e-40f,
                               1.17549435e-38f,
                               1e-10f,
                               3.4028235e38f,
                               static_cast<float>(kInfinity),
                               static_cast<float>(kNan),
                               std::bit_cast<float>(0x7f800001u)};
  // The last finite values, their overflow thresholds and the powers of two beyond.
  for (const float edge :
       {240.0f, 248.0f, 256.0f, 448.0f, 464.0f, 480.0f, 512.0f, 57344.0f, 61440.0f, 65504.0f,
        65520.0f, 65536.0f, 131072.0f, 3.3895314e38f, 3.3961775e38f}) {
    values.insert(values.end(),
                  {std::nextafterf(edge, 0.0f), edge, std::nextafterf(edge, 3.4028235e38f)});
  }
  for (const float value : values) {
    EXPECT_EQ(TypeParam::from_float32(value).bits, reference.encode(value)) << value;
    EXPECT_EQ(TypeParam::from_float32(-value).bits, reference.encode(-value)) << -value;
  }
}

TYPED_TEST(NarrowFloatTest, RandomFloatsMatchTheReference) {
  const Reference reference(spec_of<TypeParam>());
  std::mt19937 random(20240611);
  for (int i = 0; i < 200000; ++i) {
    const float any = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    const float near = std::ldexp(static_cast<float>(random() % 1000003) / 1000003.0f,
                                  static_cast<int>(random() % 48) - 26);
    ASSERT_EQ(TypeParam::from_float32(any).bits, reference.encode(any)) << any;
    ASSERT_EQ(TypeParam::from_float32(near).bits, reference.encode(near)) << near;
  }
}

TEST(Numeric, StorageHasTheSizeOfItsDtype) {
  EXPECT_EQ(sizeof(DtypeTraits<Dtype::kFloat16>::Storage), dtype_bytes(Dtype::kFloat16));
  EXPECT_EQ(sizeof(DtypeTraits<Dtype::kBFloat16>::Storage), dtype_bytes(Dtype::kBFloat16));
  EXPECT_EQ(sizeof(DtypeTraits<Dtype::kFloat8E5M2>::Storage), dtype_bytes(Dtype::kFloat8E5M2));
  EXPECT_EQ(sizeof(DtypeTraits<Dtype::kBool>::Storage), dtype_bytes(Dtype::kBool));
  EXPECT_EQ(sizeof(DtypeTraits<Dtype::kComplex64>::Storage), dtype_bytes(Dtype::kComplex64));
  EXPECT_EQ(sizeof(DtypeTraits<Dtype::kComplex128>::Storage), dtype_bytes(Dtype::kComplex128));
}

TEST(Numeric, NanOfEitherSideWinsMinAndMaxAndLeavesCanonical) {
  const float nan = std::bit_cast<float>(0xffc12345u);
  using Min = Reduction<ReduceOp::kMin, float>;
  using Max = Reduction<ReduceOp::kMax, float>;
  for (const float result : {Min::combine(nan, 1.0f), Min::combine(1.0f, nan),
                             Max::combine(nan, 1.0f), Max::combine(1.0f, nan)}) {
    EXPECT_TRUE(std::isnan(result));
    EXPECT_EQ(std::bit_cast<std::uint32_t>(Min::finish(result, 1)), 0x7fc00000u);
  }
  EXPECT_EQ(Min::combine(-2.0f, 1.0f), -2.0f);
  EXPECT_EQ(Max::combine(-2.0f, 1.0f), 1.0f);
}

TEST(Numeric, IntegersWrapAndAverageTruncatesTowardZero) {
  constexpr auto kMax32 = std::numeric_limits<std::int32_t>::max();
  constexpr auto kMin64 = std::numeric_limits<std::int64_t>::min();
  EXPECT_EQ((Reduction<ReduceOp::kSum, std::int32_t>::combine(kMax32, 1)),
            std::numeric_limits<std::int32_t>::min());
  EXPECT_EQ((Reduction<ReduceOp::kSum, std::int64_t>::combine(kMin64, -1)),
            std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ((Reduction<ReduceOp::kProduct, std::int16_t>::combine(-32768, -32768)), 0);
  EXPECT_EQ((Reduction<ReduceOp::kAvg, std::int32_t>::finish(-7, 2)), -3);
  EXPECT_EQ((Reduction<ReduceOp::kAvg, std::int32_t>::finish(7, 2)), 3);
  EXPECT_EQ((Reduction<ReduceOp::kAvg, std::int64_t>::finish(-7, 2)), -3);
}

// The quotient of two int32 taken in double against integer division, near every multiple.
TEST(Numeric, AverageOfInt32IsIntegerDivision) {
  using Avg = Reduction<ReduceOp::kAvg, std::int32_t>;
  std::mt19937 random(7);
  for (int divisor = 1; divisor <= 128; ++divisor) {
    for (int i = 0; i < 500; ++i) {
      const std::int32_t quotient = static_cast<std::int32_t>(random()) / divisor;
      for (const int delta : {-1, 0, 1}) {
        const std::int64_t sum = std::int64_t{quotient} * divisor + delta;
        if (sum != static_cast<std::int32_t>(sum)) continue;
        ASSERT_EQ(Avg::finish(static_cast<std::int32_t>(sum), divisor), sum / divisor);
      }
    }
  }
}

TEST(Numeric, ComplexProductIsTheTextbookFormWithoutRepair) {
  using Product = Reduction<ReduceOp::kProduct, Complex<float>>;
  const Complex<float> plain = Product::combine({1.0f, 2.0f}, {3.0f, -5.0f});
  EXPECT_EQ(plain.re, 13.0f);
  EXPECT_EQ(plain.im, 1.0f);
  const float inf = static_cast<float>(kInfinity);
  const Complex<float> infinite = Product::combine({inf, 0.0f}, {1.0f, 0.0f});
  EXPECT_EQ(infinite.re, inf);
  EXPECT_TRUE(std::isnan(infinite.im));
}

}  // namespace
}  // namespace symm
