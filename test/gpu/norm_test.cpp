// all_reduce with an RMS norm: the sum against the host's reduction kernels, all bytes equal; the
// norm against one in double precision; and the kernels' bits against each other.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "kernels/core/numeric.hpp"
#include "kernels/cpu/reduce_kernels.hpp"
#include "kernels/plan/plan.hpp"
#include "test/gpu/device_rig.hpp"

namespace symm::test {
namespace {

using Bytes = std::vector<std::byte>;

template <class Body>
void with_element(Dtype dtype, const Body& body) {
  switch (dtype) {
    case Dtype::kFloat16:
      return body(ElementTraits<Half, float>{}, Half{});
    case Dtype::kBFloat16:
      return body(ElementTraits<BFloat16, float>{}, BFloat16{});
    case Dtype::kFloat32:
      return body(ElementTraits<float, float>{}, float{});
    default:
      return body(ElementTraits<double, double>{}, double{});
  }
}

Bytes stored(Dtype dtype, const std::vector<double>& values) {
  Bytes bytes(values.size() * dtype_bytes(dtype));
  with_element(dtype, [&](auto traits, auto zero) {
    using Storage = decltype(zero);
    for (std::size_t i = 0; i < values.size(); ++i) {
      using Wide = decltype(traits.widen(zero));
      const Storage element = traits.round(static_cast<Wide>(values[i]));
      std::memcpy(bytes.data() + i * sizeof(Storage), &element, sizeof(Storage));
    }
  });
  return bytes;
}

std::vector<double> loaded(Dtype dtype, const Bytes& bytes) {
  std::vector<double> values(bytes.size() / dtype_bytes(dtype));
  with_element(dtype, [&](auto traits, auto zero) {
    using Storage = decltype(zero);
    for (std::size_t i = 0; i < values.size(); ++i) {
      Storage element{};
      std::memcpy(&element, bytes.data() + i * sizeof(Storage), sizeof(Storage));
      values[i] = static_cast<double>(traits.widen(element));
    }
  });
  return values;
}

double spacing(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat16:
      return 0x1p-10;
    case Dtype::kBFloat16:
      return 0x1p-7;
    case Dtype::kFloat32:
      return 0x1p-23;
    default:
      return 0x1p-52;
  }
}

struct Shape {
  std::size_t rows;
  std::size_t columns;
};

class NormTest : public testing::TestWithParam<WireKind> {
 protected:
  void SetUp() override {
    if (!gpu_visible()) GTEST_SKIP() << "no GPU is visible";
  }

  std::vector<double> random_values(std::size_t count) {
    std::uniform_real_distribution<double> value(-2.0, 2.0);
    std::vector<double> values(count);
    for (double& each : values) each = value(random_);
    return values;
  }

  struct Results {
    Bytes total;
    Bytes normed;
  };
  // Which ranks have memory at addresses that are no multiples of 16: those go by the kernel for
  // any rows, where the others go straight on.
  enum class Shifted { kNone, kSome, kAll };

  // By rank. In place where there is a residual.
  std::vector<Results> run(DeviceRig& rig, const CollectiveArgs& call, Algorithm algorithm,
                           const std::vector<Bytes>& inputs, const Bytes& weight,
                           const Bytes* residual, Shifted shifted) {
    struct Memory {
      std::size_t shift;
      std::unique_ptr<DeviceBytes> input, weight, residual, total, normed;
      std::byte* output() const { return (residual != nullptr ? input : total)->at(shift); }
    };
    const std::size_t bytes = call.count * dtype_bytes(call.dtype);
    std::size_t shift = 0;
    const auto copied = [&](const Bytes& from) {
      auto memory = std::make_unique<DeviceBytes>(from.size());
      check(gpuMemcpy(memory->at(shift), from.data(), from.size(), gpuMemcpyHostToDevice),
            "Memcpy");
      return memory;
    };
    std::vector<Memory> memory;
    for (const Bytes& input : inputs) {
      const bool is_shifted =
          shifted == Shifted::kAll || (shifted == Shifted::kSome && memory.size() % 2 == 1);
      shift = is_shifted ? dtype_bytes(call.dtype) : 0;
      Memory& own = memory.emplace_back();
      own.shift = shift;
      own.input = copied(input);
      own.weight = copied(weight);
      if (residual != nullptr) own.residual = copied(*residual);
      own.total = std::make_unique<DeviceBytes>(bytes);
      own.normed = std::make_unique<DeviceBytes>(bytes);
    }
    finish_default_stream();
    Plan plan;
    plan.algorithm = algorithm;
    plan.channels = 8;
    for (int rank = 0; rank < rig.world(); ++rank) {
      const Memory& own = memory[static_cast<std::size_t>(rank)];
      CollectiveArgs args = call;
      args.input = own.input->at(own.shift);
      args.output = own.output();
      args.norm.weight = own.weight->at(own.shift);
      args.norm.residual = residual == nullptr ? nullptr : own.residual->at(own.shift);
      args.norm.result = own.normed->at(own.shift);
      rig.kernels(rank).launch(args, plan, rig.options(rank));
    }
    rig.finish();
    rig.expect_healthy();
    std::vector<Results> results;
    for (const Memory& own : memory) {
      Results& of_rank = results.emplace_back(Results{Bytes(bytes), Bytes(bytes)});
      check(gpuMemcpy(of_rank.total.data(), own.output(), bytes, gpuMemcpyDeviceToHost), "Copy");
      check(
          gpuMemcpy(of_rank.normed.data(), own.normed->at(own.shift), bytes, gpuMemcpyDeviceToHost),
          "Copy");
    }
    return results;
  }

  void compare(DeviceRig& rig, Dtype dtype, const Shape& shape, bool has_residual) {
    const std::size_t count = shape.rows * shape.columns;
    std::vector<Bytes> inputs;
    std::vector<const void*> sources;
    for (int rank = 0; rank < rig.world(); ++rank) {
      inputs.push_back(stored(dtype, random_values(count)));
    }
    for (const Bytes& input : inputs) sources.push_back(input.data());
    const Bytes weight = stored(dtype, random_values(shape.columns));
    const Bytes residual = stored(dtype, random_values(count));
    Bytes total(inputs[0].size());
    const ReduceKernels& sums = reduce_kernels(dtype, ReduceOp::kSum, Isa::kBaseline);
    sums.reduce(total.data(), sources.data(), rig.world(), nullptr, 0, count);
    if (has_residual) {
      const Bytes sum = total;
      const void* const both[] = {sum.data(), residual.data()};
      sums.reduce(total.data(), both, 2, nullptr, 0, count);
    }
    CollectiveArgs call;
    call.kind = CollectiveKind::kAllReduce;
    call.dtype = dtype;
    call.count = count;
    call.norm.columns = shape.columns;
    call.norm.eps = 1e-3;
    const Bytes* const added = has_residual ? &residual : nullptr;
    const auto results = run(rig, call, Algorithm::kLL, inputs, weight, added, Shifted::kNone);
    const std::string what = std::string(dtype_name(dtype)) + " " + std::to_string(shape.rows) +
                             " x " + std::to_string(shape.columns);
    for (const Results& of_rank : results) {
      EXPECT_EQ(of_rank.total, total) << what;
      EXPECT_EQ(of_rank.normed, results[0].normed) << what;
    }
    expect_norm(dtype, shape, total, weight, results[0].normed, what);
    const auto behind = run(rig, call, Algorithm::kBulk, inputs, weight, added, Shifted::kNone);
    EXPECT_EQ(behind[0].total, total) << what;
    EXPECT_EQ(behind[0].normed, results[0].normed) << what;
    for (const Results& of_rank :
         run(rig, call, Algorithm::kBulk, inputs, weight, added, Shifted::kSome)) {
      EXPECT_EQ(of_rank.total, total) << what;
      EXPECT_EQ(of_rank.normed, results[0].normed) << what;
    }
    expect_same_shifted(rig, call, inputs, weight, added, results[0], what);
  }

  // Of elements of 16 bits by lines, which alone go straight on: the same results where some ranks
  // or all launch the kernel for any rows.
  void expect_same_shifted(DeviceRig& rig, const CollectiveArgs& call,
                           const std::vector<Bytes>& inputs, const Bytes& weight,
                           const Bytes* residual, const Results& expected,
                           const std::string& what) {
    if (GetParam() != WireKind::kLine || dtype_bytes(call.dtype) != 2) return;
    for (const Shifted shifted : {Shifted::kSome, Shifted::kAll}) {
      for (const Results& of_rank :
           run(rig, call, Algorithm::kLL, inputs, weight, residual, shifted)) {
        EXPECT_EQ(of_rank.total, expected.total) << what;
        EXPECT_EQ(of_rank.normed, expected.normed) << what;
      }
    }
  }

  static void expect_norm(Dtype dtype, const Shape& shape, const Bytes& total, const Bytes& weight,
                          const Bytes& normed, const std::string& what) {
    const std::vector<double> x = loaded(dtype, total);
    const std::vector<double> w = loaded(dtype, weight);
    const std::vector<double> got = loaded(dtype, normed);
    for (std::size_t row = 0; row < shape.rows; ++row) {
      const std::size_t begin = row * shape.columns;
      double squares = 0;
      for (std::size_t i = 0; i < shape.columns; ++i) squares += x[begin + i] * x[begin + i];
      const double scale = 1 / std::sqrt(squares / static_cast<double>(shape.columns) + 1e-3);
      for (std::size_t i = 0; i < shape.columns; ++i) {
        const double expected = x[begin + i] * scale * w[i];
        // Of float32 sums of thousands of squares, a few units in the last place.
        const double slack = dtype == Dtype::kFloat32 || dtype == Dtype::kFloat64 ? 64 : 1;
        ASSERT_NEAR(got[begin + i], expected, slack * spacing(dtype) * std::abs(expected) + 1e-7)
            << what << ", row " << row << ", column " << i;
      }
    }
  }

  std::mt19937 random_{4711};
};

INSTANTIATE_TEST_SUITE_P(Wires, NormTest, testing::Values(WireKind::kLL, WireKind::kLine),
                         [](const auto& info) {
                           return info.param == WireKind::kLL ? "LL" : "Lines";
                         });

TEST_P(NormTest, EveryDtypeShapeAndWorld) {
  for (const int world : {1, 2, 3, 4, 8}) {
    DeviceRig rig(world, {.wire = GetParam()});
    bool has_residual = false;
    for (const Dtype dtype :
         {Dtype::kFloat16, Dtype::kBFloat16, Dtype::kFloat32, Dtype::kFloat64}) {
      for (const Shape& shape : {Shape{1, 8}, Shape{1, 4096}, Shape{5, 1000}, Shape{64, 256},
                                 Shape{130, 136}, Shape{3, 33}, Shape{2, 17000}, Shape{300, 264},
                                 Shape{1, 8192}, Shape{8, 10000}, Shape{2, 28672}}) {
        has_residual = !has_residual;
        compare(rig, dtype, shape, has_residual);
        if (HasFatalFailure()) return;
      }
      has_residual = !has_residual;  // the other half of the shapes next
    }
  }
}

// One dtype of those that go straight on, and shapes of each of their kernels: a row a block, of
// one tile a warp and of two, blocks that share a row, several rows a block, rows of several parts.
TEST_P(NormTest, RanksLaunchKernelsOfTheirOwnForOneCall) {
  for (const int world : {2, 4, 8}) {
    DeviceRig rig(world, {.wire = GetParam()});
    bool has_residual = false;
    for (const Shape& shape : {Shape{1, 4096}, Shape{3, 8}, Shape{1, 8192}, Shape{2, 10000},
                               Shape{20, 264}, Shape{8, 8200}}) {
      if (world == 8 && shape.columns > 4096) continue;  // which none of its kernels is for
      has_residual = !has_residual;
      compare(rig, Dtype::kBFloat16, shape, has_residual);
      if (HasFatalFailure()) return;
    }
  }
}

// What is no number is so in the same bits, whichever kernel finds it.
TEST_P(NormTest, NaNAndInfinity) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const Dtype dtype : {Dtype::kFloat16, Dtype::kBFloat16}) {
    DeviceRig rig(2, {.wire = GetParam()});
    const Shape shape{5, 512};
    std::vector<double> inputs[] = {random_values(5 * 512), random_values(5 * 512)};
    std::vector<double> residual = random_values(5 * 512);
    inputs[0][3] = std::nan("");
    inputs[1][512 + 510] = -std::nan("");
    inputs[0][2 * 512 + 7] = inputs[1][2 * 512 + 8] = kInfinity;
    inputs[0][3 * 512] = kInfinity;
    inputs[1][3 * 512] = -kInfinity;
    residual[4 * 512 + 31] = std::nan("");
    const std::vector<Bytes> stored_inputs = {stored(dtype, inputs[0]), stored(dtype, inputs[1])};
    const Bytes weight = stored(dtype, random_values(shape.columns));
    const Bytes added = stored(dtype, residual);
    CollectiveArgs call;
    call.kind = CollectiveKind::kAllReduce;
    call.dtype = dtype;
    call.count = shape.rows * shape.columns;
    call.norm.columns = shape.columns;
    call.norm.eps = 1e-3;
    const auto results =
        run(rig, call, Algorithm::kLL, stored_inputs, weight, &added, Shifted::kNone);
    const auto behind =
        run(rig, call, Algorithm::kBulk, stored_inputs, weight, &added, Shifted::kNone);
    EXPECT_EQ(behind[0].total, results[0].total) << dtype_name(dtype);
    EXPECT_EQ(behind[0].normed, results[0].normed) << dtype_name(dtype);
    expect_same_shifted(rig, call, stored_inputs, weight, &added, results[0],
                        std::string(dtype_name(dtype)));
  }
}

// A rank that never comes: the others end in time, and what they would have written is no number.
TEST_P(NormTest, ACallThatGivesUpLeavesNoNumbers) {
  // Whole rows in a block, and blocks that share a row.
  for (const Shape& shape : {Shape{3, 512}, Shape{2, 10000}}) {
    for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBFloat16}) {
      DeviceRig rig(2, {.wire = GetParam()});
      const std::size_t count = shape.rows * shape.columns;
      const DeviceBytes memory(5 * count * 4);
      const auto at = [&](std::size_t number) { return memory.at(number * count * 4); };
      check(gpuMemset(memory.at(0), 0, memory.bytes()), "Memset");
      finish_default_stream();
      CollectiveArgs args;
      args.kind = CollectiveKind::kAllReduce;
      args.dtype = dtype;
      args.count = count;
      args.input = at(0);
      args.output = at(1);
      args.norm = {.columns = shape.columns,
                   .eps = 1e-3,
                   .weight = at(2),
                   .residual = at(3),
                   .result = at(4)};
      Plan plan;
      plan.algorithm = Algorithm::kLL;
      plan.channels = 8;
      LaunchOptions options = rig.options(0);
      options.timeout = std::chrono::milliseconds(50);
      rig.kernels(0).launch(args, plan, options);
      check(gpuStreamSynchronize(rig.stream(0)), "StreamSynchronize");
      EXPECT_NE(load_acquire(&rig.page(0).report.fault), 0u);
      EXPECT_EQ(rig.page(0).report.peer, 1);
      for (const std::size_t output : {1, 4}) {
        Bytes got(count * dtype_bytes(dtype));
        check(gpuMemcpy(got.data(), at(output), got.size(), gpuMemcpyDeviceToHost), "Copy");
        for (const double value : loaded(dtype, got)) ASSERT_TRUE(std::isnan(value)) << output;
      }
    }
  }
}

}  // namespace
}  // namespace symm::test
