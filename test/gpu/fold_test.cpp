// The fold of hosts' partial results against the host's reduction kernels: all bytes must be equal.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "kernels/core/reduce_op.hpp"
#include "kernels/cpu/reduce_kernels.hpp"
#include "kernels/gpu/interface/call_params.hpp"
#include "test/gpu/device_rig.hpp"

namespace symm::test {
namespace {

class FoldTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!gpu_visible()) GTEST_SKIP() << "no GPU is visible";
    rig_.emplace(1, DeviceRig::Options{});
  }

  // Sources that begin `shift` bytes from an aligned address; the result is a new array, or source
  // `in_place`.
  void compare(Dtype dtype, ReduceOp op, int sources, std::size_t count, std::size_t shift,
               int in_place = -1) {
    const std::size_t bytes = count * dtype_bytes(dtype);
    std::vector<std::vector<std::byte>> values;
    std::vector<std::unique_ptr<DeviceBytes>> memory;
    std::vector<const void*> on_host;
    std::vector<const void*> on_gpu;
    for (int source = 0; source < sources; ++source) {
      std::vector<std::byte>& value = values.emplace_back(bytes);
      for (std::byte& b : value) {
        b = static_cast<std::byte>(random_() & (dtype == Dtype::kBool ? 1 : 0xff));
      }
      memory.push_back(std::make_unique<DeviceBytes>(bytes + shift));
      check(gpuMemcpy(memory.back()->at(shift), value.data(), bytes, gpuMemcpyHostToDevice),
            "Memcpy");
      on_host.push_back(value.data());
      on_gpu.push_back(memory.back()->at(shift));
    }
    finish_default_stream();
    std::vector<std::byte> expected(bytes);
    reduce_kernels(dtype, op, Isa::kBaseline)
        .reduce(expected.data(), on_host.data(), sources, nullptr, 7, count);
    const DeviceBytes apart(bytes + shift);
    std::byte* const result =
        in_place < 0 ? apart.at(shift) : memory[static_cast<std::size_t>(in_place)]->at(shift);
    rig_->kernels(0).fold({.dtype = dtype,
                           .op = op,
                           .divisor = 7,
                           .sources = on_gpu,
                           .result = result,
                           .count = count},
                          rig_->stream(0));
    std::vector<std::byte> got(bytes);
    rig_->kernels(0).copy(got.data(), result, bytes, rig_->stream(0));
    check(gpuDeviceSynchronize(), "DeviceSynchronize");
    EXPECT_EQ(got, expected) << dtype_name(dtype) << " " << reduce_op_name(op) << " of " << sources
                             << " sources, " << count << " elements, shifted by " << shift;
  }

  std::optional<DeviceRig> rig_;
  std::mt19937 random_{12345};
};

TEST_F(FoldTest, EveryDtypeAndOperator) {
  for (int dtype = 0; dtype < kDtypeCount; ++dtype) {
    for (int op = 0; op < kReduceOpCount; ++op) {
      const auto type = static_cast<Dtype>(dtype);
      const auto with = static_cast<ReduceOp>(op);
      if (with == ReduceOp::kPreMulSum || !op_supports(with, type)) continue;
      compare(type, with, 3, 1027, 0);
      compare(type, with, 2, 1027, dtype_bytes(type));
    }
  }
}

TEST_F(FoldTest, EverySizeAndNumberOfSources) {
  for (const std::size_t count : {1u, 2u, 127u, 4096u, 40'001u, 3'000'001u}) {
    for (const int sources : {1, 2, 5, 8}) {
      compare(Dtype::kFloat32, ReduceOp::kSum, sources, count, 0);
      compare(Dtype::kBFloat16, ReduceOp::kAvg, sources, count, 2);
    }
  }
  compare(Dtype::kFloat32, ReduceOp::kSum, kMostFolded, 1027, 0);
}

TEST_F(FoldTest, TheResultMayBeASource) {
  for (const int source : {0, 1, 2}) {
    compare(Dtype::kFloat32, ReduceOp::kSum, 3, 70'001, 0, source);
    compare(Dtype::kFloat16, ReduceOp::kMax, 3, 70'001, 2, source);
  }
}

TEST_F(FoldTest, RefusesTooManySources) {
  const std::vector<const void*> sources(kMostFolded + 1);
  EXPECT_THROW(rig_->kernels(0).fold({.sources = sources}, rig_->stream(0)), Error);
}

}  // namespace
}  // namespace symm::test
