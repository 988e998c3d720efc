#include "test/gpu/conversions.hpp"

#include "kernels/core/numeric.hpp"
#include "kernels/gpu/device/convert.cuh"
#include "kernels/gpu/vendor/gpu_check.hpp"
#include "test/support/gpu_calls.hpp"

namespace symm::test {

namespace {

struct Found {
  unsigned long long wrong;
  unsigned int first;
};

__device__ void note(Found* found, bool right, std::uint32_t input) {
  if (right) return;
  if (atomicAdd(&found->wrong, 1ull) == 0) found->first = input;
}

// In a pair beside another code, which must not matter.
template <class Storage>
__global__ void widen_all(std::uint64_t inputs, Found* found) {
  const std::uint64_t step = std::uint64_t{gridDim.x} * blockDim.x;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < inputs;
       i += step) {
    const auto code = static_cast<std::uint32_t>(i);
    using Bits = decltype(Storage::bits);
    const Storage value{static_cast<Bits>(code)};
    const Storage other{static_cast<Bits>(code * 37 + 11)};
    const auto right = [&](float wide, Storage of) {
      return __float_as_uint(wide) == __float_as_uint(Storage::to_float32(of));
    };
    const FloatPair pair = Conversion<Storage>::widen(NarrowPair<Storage>{value, other});
    note(found, right(Conversion<Storage>::widen(value), value), code);
    note(found, right(pair.low, value) && right(pair.high, other), code);
    if constexpr (kConvertsPairs<Storage>) {
      const std::uint32_t four = value.bits * 0x10001u | other.bits * 0x1000100u;
      const bool has_nan = isnan(pair.low) || isnan(pair.high);
      note(found, Conversion<Storage>::has_special(four) == has_nan, code);
      const FloatPair plain = Conversion<Storage>::widen_plain(NarrowPair<Storage>{value, other});
      note(found, has_nan || (right(plain.low, value) && right(plain.high, other)), code);
    }
  }
}

template <class Storage>
__global__ void round_all(std::uint64_t inputs, Found* found) {
  const std::uint64_t step = std::uint64_t{gridDim.x} * blockDim.x;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < inputs;
       i += step) {
    const auto code = static_cast<std::uint32_t>(i);
    const float value = __uint_as_float(code);
    const float other = __uint_as_float(code * 2654435761u + 11);
    const auto right = [&](Storage narrow, float of) {
      return narrow.bits == Storage::from_float32(of).bits;
    };
    const NarrowPair<Storage> pair = Conversion<Storage>::round(FloatPair{value, other});
    note(found, right(Conversion<Storage>::round(value), value), code);
    note(found, right(pair.low, value) && right(pair.high, other), code);
    if constexpr (kConvertsPairs<Storage>) {
      const std::uint16_t plain = Conversion<Storage>::round_plain({value, other});
      const bool is_right = (plain & 0xff) == pair.low.bits && plain >> 8 == pair.high.bits;
      const bool is_plain =
          Conversion<Storage>::is_plain(value) && Conversion<Storage>::is_plain(other);
      note(found, is_right || !is_plain, code);
    }
  }
}

using Kernel = void (*)(std::uint64_t, Found*);

ConversionCheck run(Kernel kernel, std::uint64_t inputs) {
  void* memory = nullptr;
  check_gpu(gpuMalloc(&memory, sizeof(Found)), "allocating");
  auto* const found = static_cast<Found*>(memory);
  check_gpu(gpuMemset(found, 0, sizeof(Found)), "clearing");
  kernel<<<4096, 256>>>(inputs, found);
  check_gpu(gpuGetLastError(), "launching");
  Found result{};
  check_gpu(gpuMemcpy(&result, found, sizeof(Found), gpuMemcpyDeviceToHost), "reading the result");
  check_gpu(gpuFree(found), "freeing");
  return {inputs, result.wrong, result.first};
}

struct Kernels {
  Kernel widen;
  Kernel round;
};

Kernels kernels_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat16:
      return {widen_all<Half>, round_all<Half>};
    case Dtype::kBFloat16:
      return {widen_all<BFloat16>, round_all<BFloat16>};
    case Dtype::kFloat8E4M3Fn:
      return {widen_all<Float8E4M3Fn>, round_all<Float8E4M3Fn>};
    case Dtype::kFloat8E5M2:
      return {widen_all<Float8E5M2>, round_all<Float8E5M2>};
    default:
      throw Error(ErrorCode::kInvalidArgument, "a dtype without instructions");
  }
}

}  // namespace

ConversionCheck check_widening(Dtype dtype) {
  return run(kernels_of(dtype).widen, std::uint64_t{1} << (8 * dtype_bytes(dtype)));
}

ConversionCheck check_rounding(Dtype dtype) {
  return run(kernels_of(dtype).round, std::uint64_t{1} << 32);
}

}  // namespace symm::test
