// Every (dtype, op) of every instruction set against a sequential model, and against each other.
#include "kernels/cpu/reduce_kernels.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/core/error.hpp"
#include "test/unit/reduce_model.hpp"

namespace symm {
namespace {

using test::ElementBytes;
using test::model_element;

constexpr std::size_t kMaxCount = 5000;
constexpr std::size_t kCounts[] = {0, 1, 7, 511, 513, kMaxCount};
constexpr int kSourceCounts[] = {1, 2, 3, 5, 8};
constexpr unsigned char kPoison = 0xa5;
constexpr std::size_t kGuard = 64;

std::vector<Isa> available_isas() {
  std::vector<Isa> isas;
  for (const Isa isa : {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512}) {
    if (isa_available(isa)) isas.push_back(isa);
  }
  return isas;
}

std::vector<ReduceOp> ops_of(Dtype dtype) {
  std::vector<ReduceOp> ops;
  for (int op = 0; op < kReduceOpCount; ++op) {
    if (op_supports(static_cast<ReduceOp>(op), dtype)) ops.push_back(static_cast<ReduceOp>(op));
  }
  return ops;
}

// A buffer whose payload starts at an odd address and is surrounded by poison.
class Buffer {
 public:
  Buffer(std::size_t bytes, std::size_t misalignment)
      : bytes_(bytes), offset_(kGuard + misalignment), storage_(bytes + 2 * kGuard + 8, kPoison) {}

  unsigned char* data() { return storage_.data() + offset_; }
  const unsigned char* data() const { return storage_.data() + offset_; }

  // Whether every byte outside the first `used` ones of the payload is still poison.
  bool rest_untouched(std::size_t used) const {
    for (std::size_t i = 0; i < storage_.size(); ++i) {
      const bool inside = i >= offset_ && i < offset_ + used;
      if (!inside && storage_[i] != kPoison) return false;
    }
    return true;
  }

  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_;
  std::size_t offset_;
  std::vector<unsigned char> storage_;
};

// One element in four has random bits, so that NaN, infinities, subnormals and extremes meet
// everything else; the others have magnitudes at which the order of summation shows in the bits.
void fill_element(Dtype dtype, std::mt19937& random, unsigned char* out) {
  const std::size_t bytes = dtype_bytes(dtype);
  for (std::size_t b = 0; b < bytes; ++b) out[b] = static_cast<unsigned char>(random() >> 11);
  if (dtype == Dtype::kBool && random() % 8 != 0) *out &= 1;
  if (!is_floating(dtype) && !is_complex(dtype)) return;
  if (random() % 8 == 0) {  // zeros of both signs meet, so that the order shows in MIN and MAX
    std::memset(out, 0, bytes);
    out[bytes - 1] = random() % 2 == 0 ? 0x80 : 0;
    return;
  }
  if (random() % 4 == 0) return;
  const auto value = [&random] {
    const double unit = static_cast<double>(random()) / 4294967296.0 - 0.5;
    return std::ldexp(unit, static_cast<int>(random() % 14) - 5);
  };
  const auto put = [&](auto element) { std::memcpy(out, &element, sizeof(element)); };
  const auto single = static_cast<float>(value());
  switch (dtype) {
    case Dtype::kFloat16:
      return put(Half::from_float32(single));
    case Dtype::kBFloat16:
      return put(BFloat16::from_float32(single));
    case Dtype::kFloat32:
      return put(single);
    case Dtype::kFloat64:
      return put(value());
    case Dtype::kComplex64: {
      const float parts[] = {single, static_cast<float>(value())};
      return put(std::bit_cast<std::uint64_t>(parts));
    }
    case Dtype::kComplex128: {
      const double parts[] = {value(), value()};
      std::memcpy(out, parts, sizeof(parts));
      return;
    }
    default:  // random bits cover the 8-bit formats
      return;
  }
}

// Sources with different contents and different misalignment, and the model's result.
struct Case {
  Case(Dtype the_dtype, ReduceOp the_op, int n) : dtype(the_dtype), op(the_op), divisor(n) {
    const std::size_t bytes = dtype_bytes(dtype);
    std::mt19937 random(static_cast<unsigned>(1000 * n + 10 * static_cast<int>(dtype)));
    for (int j = 0; j < n; ++j) {
      sources.emplace_back(kMaxCount * bytes, static_cast<std::size_t>(2 * j + 1) % 8);
      for (std::size_t i = 0; i < kMaxCount; ++i) {
        fill_element(dtype, random, sources[static_cast<std::size_t>(j)].data() + i * bytes);
      }
      factors.push_back(0.3 + 0.7 * j);
    }
    expected.resize(kMaxCount * bytes);
    for (std::size_t i = 0; i < kMaxCount; ++i) {
      ElementBytes elements;
      for (const Buffer& source : sources) elements.push_back(source.data() + i * bytes);
      model_element(dtype, op, elements, factors, divisor, expected.data() + i * bytes);
    }
  }

  int n() const { return static_cast<int>(sources.size()); }
  const double* factors_or_null() const {
    return op == ReduceOp::kPreMulSum ? factors.data() : nullptr;
  }
  double factor(int j) const { return factors[static_cast<std::size_t>(j)]; }
  const unsigned char* source(int j) const { return sources[static_cast<std::size_t>(j)].data(); }

  std::vector<const void*> pointers() const {
    std::vector<const void*> result;
    for (const Buffer& source : sources) result.push_back(source.data());
    return result;
  }

  // Empty when the first `count` elements are right, else where the first wrong one is.
  std::string compare(const unsigned char* actual, std::size_t count, Isa isa) const {
    const std::size_t bytes = dtype_bytes(dtype);
    for (std::size_t i = 0; i < count; ++i) {
      if (std::memcmp(actual + i * bytes, expected.data() + i * bytes, bytes) == 0) continue;
      return std::string(reduce_op_name(op)) + " of " + std::string(dtype_name(dtype)) + ", " +
             std::string(isa_name(isa)) + ", n " + std::to_string(n()) + ", count " +
             std::to_string(count) + ": element " + std::to_string(i) + " is " +
             testing::PrintToString(
                 std::vector<int>(actual + i * bytes, actual + (i + 1) * bytes)) +
             ", expected " +
             testing::PrintToString(
                 std::vector<int>(expected.begin() + static_cast<long>(i * bytes),
                                  expected.begin() + static_cast<long>((i + 1) * bytes)));
    }
    return "";
  }

  Dtype dtype;
  ReduceOp op;
  int divisor;
  std::vector<Buffer> sources;
  std::vector<double> factors;
  std::vector<unsigned char> expected;
};

class ReduceKernelsTest : public testing::TestWithParam<int> {
 protected:
  Dtype dtype() const { return static_cast<Dtype>(GetParam()); }
  std::size_t bytes() const { return dtype_bytes(dtype()); }
};

INSTANTIATE_TEST_SUITE_P(Dtypes, ReduceKernelsTest, testing::Range(0, kDtypeCount),
                         [](const testing::TestParamInfo<int>& info) {
                           return std::string(dtype_name(static_cast<Dtype>(info.param)));
                         });

TEST_P(ReduceKernelsTest, ReduceMatchesTheModelForEveryCountAndAlignment) {
  for (const ReduceOp op : ops_of(dtype())) {
    for (const int n : kSourceCounts) {
      const Case data(dtype(), op, n);
      for (const Isa isa : available_isas()) {
        for (const std::size_t count : kCounts) {
          Buffer out(kMaxCount * bytes(), 3);
          reduce_kernels(dtype(), op, isa)
              .reduce(out.data(), data.pointers().data(), n, data.factors_or_null(), n, count);
          ASSERT_EQ(data.compare(out.data(), count, isa), "");
          ASSERT_TRUE(out.rest_untouched(count * bytes()))
              << reduce_op_name(op) << " wrote outside its " << count << " elements";
        }
      }
    }
  }
}

TEST_P(ReduceKernelsTest, DestinationMayBeAnySource) {
  for (const ReduceOp op : ops_of(dtype())) {
    for (const int n : kSourceCounts) {
      const Case data(dtype(), op, n);
      for (const Isa isa : available_isas()) {
        for (int k = 0; k < n; ++k) {
          Buffer shared = data.sources[static_cast<std::size_t>(k)];
          std::vector<const void*> pointers = data.pointers();
          pointers[static_cast<std::size_t>(k)] = shared.data();
          reduce_kernels(dtype(), op, isa)
              .reduce(shared.data(), pointers.data(), n, data.factors_or_null(), n, kMaxCount);
          ASSERT_EQ(data.compare(shared.data(), kMaxCount, isa), "") << "source " << k;
        }
      }
    }
  }
}

// The hops of a ring: start, steps in turn in place and into another buffer, then the last one,
// once into a buffer of its own and once over its own source.
TEST_P(ReduceKernelsTest, ChainOfHopsGivesTheBitsOfReduce) {
  for (const ReduceOp op : ops_of(dtype())) {
    for (const int n : {2, 3, 5, 8}) {
      const Case data(dtype(), op, n);
      for (const Isa isa : available_isas()) {
        const ReduceKernels& kernels = reduce_kernels(dtype(), op, isa);
        for (const std::size_t count : kCounts) {
          Buffer acc(kMaxCount * kernels.accumulate_bytes, 1);
          Buffer other(kMaxCount * kernels.accumulate_bytes, 5);
          kernels.accumulate(acc.data(), nullptr, data.source(0), data.factor(0), count);
          Buffer* current = &acc;
          for (int j = 1; j < n - 1; ++j) {
            Buffer* next = j % 2 == 0 ? current : (current == &acc ? &other : &acc);
            kernels.accumulate(next->data(), current->data(), data.source(j), data.factor(j),
                               count);
            current = next;
          }
          ASSERT_TRUE(current->rest_untouched(count * kernels.accumulate_bytes));
          Buffer out(kMaxCount * bytes(), 7);
          kernels.finish(out.data(), current->data(), data.source(n - 1), data.factor(n - 1), n,
                         count);
          ASSERT_EQ(data.compare(out.data(), count, isa), "");
          ASSERT_TRUE(out.rest_untouched(count * bytes()));
          Buffer own = data.sources[static_cast<std::size_t>(n - 1)];
          kernels.finish(own.data(), current->data(), own.data(), data.factor(n - 1), n, count);
          ASSERT_EQ(data.compare(own.data(), count, isa), "") << "over its own source";
        }
      }
    }
  }
}

// Random bits only, so that NaNs of all payloads and signs meet in every position of a vector.
TEST_P(ReduceKernelsTest, EveryInstructionSetGivesTheSameBits) {
  std::mt19937 random(99);
  std::vector<Buffer> sources;
  std::vector<const void*> pointers;
  for (std::size_t j = 0; j < 3; ++j) {
    sources.emplace_back(kMaxCount * bytes(), j);
    for (std::size_t b = 0; b < kMaxCount * bytes(); ++b) {
      // Exponents of all ones in every third element.
      const bool extreme = (b / bytes()) % 3 == j;
      sources[j].data()[b] = static_cast<unsigned char>(random() >> 9) | (extreme ? 0x78 : 0);
    }
    pointers.push_back(sources[j].data());
  }
  const double factors[] = {1.5, -0.1, 1e30};
  for (const ReduceOp op : ops_of(dtype())) {
    Buffer baseline(kMaxCount * bytes(), 1);
    reduce_kernels(dtype(), op, Isa::kBaseline)
        .reduce(baseline.data(), pointers.data(), 3, factors, 3, kMaxCount);
    for (const Isa isa : available_isas()) {
      Buffer out(kMaxCount * bytes(), 2);
      reduce_kernels(dtype(), op, isa)
          .reduce(out.data(), pointers.data(), 3, factors, 3, kMaxCount);
      ASSERT_EQ(std::memcmp(out.data(), baseline.data(), kMaxCount * bytes()), 0)
          << reduce_op_name(op) << " on " << isa_name(isa);
    }
  }
}

TEST_P(ReduceKernelsTest, AnOperatorWithoutMeaningIsRefusedByName) {
  for (int o = 0; o < kReduceOpCount; ++o) {
    const auto op = static_cast<ReduceOp>(o);
    for (const Isa isa : available_isas()) {
      if (op_supports(op, dtype())) {
        EXPECT_NE(reduce_kernels(dtype(), op, isa).reduce, nullptr);
        continue;
      }
      try {
        reduce_kernels(dtype(), op, isa);
        FAIL() << reduce_op_name(op) << " of " << dtype_name(dtype()) << " was accepted";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
        const std::string message = error.what();
        EXPECT_NE(message.find(reduce_op_name(op)), std::string::npos) << message;
        EXPECT_NE(message.find(dtype_name(dtype())), std::string::npos) << message;
      }
    }
  }
}

TEST(ReduceKernels, BoolReadsAnyByteAndWritesZeroOrOne) {
  const unsigned char a[] = {0, 2, 0, 0x80, 1};
  const unsigned char b[] = {0, 0, 4, 0xff, 1};
  const void* sources[] = {a, b};
  const unsigned char sum[] = {0, 1, 1, 1, 1};
  const unsigned char product[] = {0, 0, 0, 1, 1};
  for (const Isa isa : available_isas()) {
    unsigned char out[5];
    std::memset(out, kPoison, sizeof(out));
    reduce_kernels(Dtype::kBool, ReduceOp::kSum, isa).reduce(out, sources, 2, nullptr, 2, 5);
    EXPECT_EQ(std::memcmp(out, sum, 5), 0);
    reduce_kernels(Dtype::kBool, ReduceOp::kProduct, isa).reduce(out, sources, 2, nullptr, 2, 5);
    EXPECT_EQ(std::memcmp(out, product, 5), 0);
  }
}

// One rounding at the end, not one a source: 2048 + 1 + 1 is 2050 in float16, and 2048 if each
// sum were rounded; the average of four 60000 does not overflow on the way.
TEST(ReduceKernels, NarrowFloatsRoundOnceAfterTheDivision) {
  const float first[] = {2048.0f, 1.0f, 1.0f, 60000.0f};
  std::uint16_t half[4];
  for (int j = 0; j < 4; ++j) half[j] = Half::from_float32(first[j]).bits;
  for (const Isa isa : available_isas()) {
    std::uint16_t out = 0xffff;
    const void* sum[] = {&half[0], &half[1], &half[2]};
    reduce_kernels(Dtype::kFloat16, ReduceOp::kSum, isa).reduce(&out, sum, 3, nullptr, 3, 1);
    EXPECT_EQ(Half::to_float32(Half{out}), 2050.0f);
    const void* average[] = {&half[3], &half[3], &half[3], &half[3]};
    reduce_kernels(Dtype::kFloat16, ReduceOp::kAvg, isa).reduce(&out, average, 4, nullptr, 4, 1);
    EXPECT_EQ(Half::to_float32(Half{out}), 60000.0f);
  }
}

TEST(ReduceKernels, TheSelectedInstructionSetIsAvailable) {
  EXPECT_TRUE(isa_available(Isa::kBaseline));
  EXPECT_TRUE(isa_available(selected_isa()));
  EXPECT_EQ(isa_name(Isa::kBaseline), "baseline");
  EXPECT_EQ(isa_name(Isa::kAvx2), "avx2");
  EXPECT_EQ(isa_name(Isa::kAvx512), "avx512");
}

}  // namespace
}  // namespace symm
