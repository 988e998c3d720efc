// Ranks on GPU 0 whose kernels on multicast addresses are those over a stand-in for the
// instructions (stand_in.hpp), and calls whose results are compared with sequential sums and
// copies.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/core/narrow_float.hpp"
#include "kernels/core/numeric.hpp"
#include "kernels/plan/plan.hpp"
#include "test/gpu/device_rig.hpp"
#include "test/gpu/multimem/stand_in.hpp"

namespace symm::test {

using Bytes = std::vector<std::byte>;

inline constexpr std::byte kUntouchedByte{0xa5};
inline constexpr std::size_t kMultimemGuard = 48;     // behind every output
inline constexpr std::size_t kSymmetricOffset = 192;  // in symmetric memory

struct MultimemCall {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  Dtype dtype = Dtype::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  std::size_t count = 0;  // elements of the message or of a share
  int root = 0;
  int channels = 16;
  bool in_place = false;
  std::size_t shift = 0;  // of ordinary memory, bytes from an aligned address
};

inline std::string describe(const MultimemCall& call) {
  return std::string(collective_name(call.kind)) + " of " + std::to_string(call.count) + " " +
         std::string(dtype_name(call.dtype)) + " " + std::string(reduce_op_name(call.op)) +
         ", root " + std::to_string(call.root) + ", " + std::to_string(call.channels) +
         " channels" + (call.in_place ? ", in place" : "") + ", shifted by " +
         std::to_string(call.shift);
}

// An element of a dtype that is reduced, by its value.
inline float load_value(Dtype dtype, const std::byte* at) {
  if (dtype == Dtype::kFloat32) {
    float value = 0;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  const auto widen = [at]<class Narrow>(Narrow narrow) {
    std::memcpy(&narrow, at, sizeof(narrow));
    return Narrow::to_float32(narrow);
  };
  return dtype == Dtype::kFloat16 ? widen(Half{}) : widen(BFloat16{});
}
inline void store_value(Dtype dtype, std::byte* at, float value) {
  if (dtype == Dtype::kFloat32) {
    std::memcpy(at, &value, sizeof(value));
    return;
  }
  const auto half = Half::from_float32(value);
  const auto bfloat = BFloat16::from_float32(value);
  std::memcpy(at, dtype == Dtype::kFloat16 ? static_cast<const void*>(&half) : &bfloat, 2);
}
// Half of the distance of two neighbours near 1, by which rounding may err.
inline double rounding_of(Dtype dtype) {
  return std::ldexp(1.0, dtype == Dtype::kFloat32 ? -24 : dtype == Dtype::kFloat16 ? -11 : -8);
}

class MultimemRig {
 public:
  explicit MultimemRig(int world, std::uint64_t meetings = 0)
      : rig_(world, {.first = {.meetings = meetings}, .multimem_kernel = stand_in_kernel}) {
    take_forbidden_accesses();
  }
  ~MultimemRig() { EXPECT_EQ(take_forbidden_accesses(), 0u); }

  DeviceRig& rig() { return rig_; }
  int world() const { return rig_.world(); }

  // Memory and inputs of a call. Whole numbers, whose sums are exact in any order and dtype, or
  // numbers of which sums are rounded.
  void prepare(const MultimemCall& call, bool whole_numbers) {
    call_ = call;
    size_ = dtype_bytes(call.dtype);
    inputs_.clear();
    in_.clear();
    out_.clear();
    for (int rank = 0; rank < world(); ++rank) {
      inputs_.push_back(random_input(whole_numbers));
      in_.push_back(
          std::make_unique<DeviceBytes>(inputs_.back().size() + kSymmetricOffset + kMultimemGuard));
      out_.push_back(
          std::make_unique<DeviceBytes>(output_bytes() + kSymmetricOffset + kMultimemGuard));
      check(gpuMemset(out_.back()->at(0), static_cast<int>(kUntouchedByte), out_.back()->bytes()),
            "Memset");
      check(gpuMemcpy(input(rank), inputs_.back().data(), inputs_.back().size(),
                      gpuMemcpyHostToDevice),
            "Memcpy");
    }
    check(gpuDeviceSynchronize(), "DeviceSynchronize");
  }

  void launch(int rank, BufferLocation moved = 0, std::chrono::milliseconds timeout = {}) {
    std::vector<std::byte*> inputs;
    std::vector<std::byte*> outputs;
    for (int r = 0; r < world(); ++r) {
      inputs.push_back(input(r));
      outputs.push_back(output(r));
    }
    CollectiveArgs args;
    args.kind = call_.kind;
    args.dtype = call_.dtype;
    args.op = call_.op;
    args.root = call_.root;
    args.count = call_.count;
    args.input = input(rank);
    args.output = output(rank);
    MultimemMemory memory;
    // Nothing is at these addresses: they stand for tables.
    if (reduces(call_.kind)) {
      memory.input = {reinterpret_cast<std::byte*>(std::uintptr_t{0x7a0000000000}), inputs,
                      kInputLocation + moved};
    }
    if (call_.kind != CollectiveKind::kReduceScatter) {
      memory.output = {reinterpret_cast<std::byte*>(std::uintptr_t{0x7b0000000000}), outputs,
                       kOutputLocation};
    }
    std::vector<Part> parts;
    const bool of_output = call_.kind == CollectiveKind::kAllGather;
    for (int r = 0; r < world(); ++r) {
      std::byte* const first = of_output ? output(rank) : input(rank);
      parts.push_back({first + static_cast<std::size_t>(r) * call_.count * size_, call_.count});
    }
    if (of_output) args.output_parts = parts;
    if (call_.kind == CollectiveKind::kReduceScatter) args.input_parts = parts;
    Plan plan;
    plan.algorithm = Algorithm::kMultimem;
    plan.channels = call_.channels;
    LaunchOptions options = rig_.options(rank);
    if (timeout.count() != 0) options.timeout = timeout;
    rig_.kernels(rank).launch_multimem(args, plan, memory, options);
  }
  void launch_all() {
    for (int rank = 0; rank < world(); ++rank) launch(rank);
  }

  // Launches and compares.
  void run(const MultimemCall& call, bool whole_numbers = true) {
    SCOPED_TRACE(describe(call));
    prepare(call, whole_numbers);
    launch_all();
    rig_.finish();
    rig_.expect_healthy();
    for (int rank = 0; rank < world(); ++rank) compare(rank, whole_numbers);
  }

  void compare(int rank, bool exactly) {
    const Bytes got = read(rank);
    const auto end = got.begin() + static_cast<std::ptrdiff_t>(output_bytes());
    EXPECT_EQ(std::count(end, got.end(), kUntouchedByte), std::ssize(got) - (end - got.begin()))
        << "behind the output of rank " << rank;
    if (call_.kind == CollectiveKind::kAllGather) {
      Bytes all;
      for (const Bytes& input : inputs_) all.insert(all.end(), input.begin(), input.end());
      ASSERT_TRUE(std::equal(all.begin(), all.end(), got.begin())) << "rank " << rank;
      return;
    }
    if (call_.kind == CollectiveKind::kBroadcast) {
      const Bytes& sent = inputs_[static_cast<std::size_t>(call_.root)];
      ASSERT_TRUE(std::equal(sent.begin(), sent.end(), got.begin())) << "rank " << rank;
      return;
    }
    const std::size_t first = call_.kind == CollectiveKind::kReduceScatter
                                  ? static_cast<std::size_t>(rank) * call_.count
                                  : 0;
    for (std::size_t i = 0; i < call_.count; ++i) {
      compare_element(got.data() + i * size_, (first + i) * size_, exactly);
      if (testing::Test::HasFailure()) {
        FAIL() << "element " << i << " of rank " << rank;
      }
    }
    if (call_.kind == CollectiveKind::kAllReduce) {
      EXPECT_TRUE(got == read(0)) << "ranks 0 and " << rank << " differ";
    }
  }

  bool is_untouched(int rank) const {
    const Bytes got = read(rank);
    return std::count(got.begin(), got.end(), kUntouchedByte) == std::ssize(got);
  }

  std::byte* input(int rank) const {
    const auto index = static_cast<std::size_t>(rank);
    return call_.in_place ? output(rank)
                          : in_[index]->at(reduces(call_.kind) ? kSymmetricOffset : call_.shift);
  }
  std::byte* output(int rank) const {
    const bool ordinary = call_.kind == CollectiveKind::kReduceScatter;
    return out_[static_cast<std::size_t>(rank)]->at(ordinary ? call_.shift : kSymmetricOffset);
  }
  const Bytes& host_input(int rank) const { return inputs_[static_cast<std::size_t>(rank)]; }
  std::size_t output_bytes() const {
    const std::size_t shares = call_.kind == CollectiveKind::kAllGather ? world_size() : 1;
    return shares * call_.count * size_;
  }

 private:
  static constexpr BufferLocation kInputLocation =
      BufferLocation{1} << kLocationShift | kSymmetricOffset;
  static constexpr BufferLocation kOutputLocation =
      BufferLocation{2} << kLocationShift | kSymmetricOffset;

  std::size_t world_size() const { return static_cast<std::size_t>(world()); }

  Bytes random_input(bool whole_numbers) {
    const std::size_t shares = call_.kind == CollectiveKind::kReduceScatter ? world_size() : 1;
    Bytes bytes(shares * call_.count * size_);
    if (!reduces(call_.kind)) {
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random_());
      return bytes;
    }
    std::uniform_int_distribution<int> whole(-8, 8);
    std::uniform_real_distribution<float> real(-3, 3);
    for (std::size_t at = 0; at < bytes.size(); at += size_) {
      store_value(call_.dtype, &bytes[at],
                  whole_numbers ? static_cast<float>(whole(random_)) : real(random_));
    }
    return bytes;
  }

  Bytes read(int rank) const {
    Bytes bytes(output_bytes() + kMultimemGuard);
    check(gpuMemcpy(bytes.data(), output(rank), bytes.size(), gpuMemcpyDeviceToHost), "Memcpy");
    return bytes;
  }

  // Against the sequential sum in double precision. The instruction may add in any order, in
  // float32, and rounds the result to the dtype once.
  void compare_element(const std::byte* got, std::size_t at, bool exactly) const {
    double sum = 0;
    double magnitude = 0;
    double least = load_value(call_.dtype, &inputs_[0][at]);
    double most = least;
    for (const Bytes& input : inputs_) {
      const double value = load_value(call_.dtype, &input[at]);
      sum += value;
      magnitude += std::abs(value);
      least = std::min(least, value);
      most = std::max(most, value);
    }
    const double value = load_value(call_.dtype, got);
    if (call_.op == ReduceOp::kMin) {
      EXPECT_EQ(value, least);
    } else if (call_.op == ReduceOp::kMax) {
      EXPECT_EQ(value, most);
    } else if (exactly) {
      EXPECT_EQ(value, sum);
    } else {
      const double of_adding = magnitude * world() * rounding_of(Dtype::kFloat32);
      const double of_rounding = (std::abs(sum) + of_adding) * rounding_of(call_.dtype);
      EXPECT_NEAR(value, sum, of_adding + of_rounding + std::ldexp(1.0, -25));
    }
  }

  DeviceRig rig_;
  MultimemCall call_;
  std::size_t size_ = 1;
  std::mt19937 random_{11};
  std::vector<Bytes> inputs_;
  std::vector<std::unique_ptr<DeviceBytes>> in_;
  std::vector<std::unique_ptr<DeviceBytes>> out_;
};

}  // namespace symm::test
