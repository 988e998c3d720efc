// Conversions between narrow floats and float32 by the GPU's own instructions, where it has them:
// the same bits as narrow_float.hpp gives for every input, NaN included, which is why NaN and what
// instructions saturate are selected afterwards. conversions_test.cpp compares all 2^32 inputs.
//
//   float16        NVIDIA: cvt.f32.f16 and cvt.rn.f16.f32
//   bfloat16       it is the upper half of a float32; rounding from sm_80 on: cvt.rn.bf16.f32
//   float8_e4m3fn  NVIDIA from sm_89 on: cvt of pairs
//   float8_e5m2    it is the upper byte of a float16; rounding from sm_89 on: cvt of pairs
//   others         no instruction: the portable code
//
// Of 8-bit floats whole units are tested for what is selected, which is seldom there, so that the
// others need no selection: has_special() of four bytes and is_plain() of a float32 say where
// widen_plain() and round_plain() give the same bits.
//
// AMD GPUs have such instructions too; as none has been at hand to compare them, the portable code
// serves there.
#pragma once

#include <cstdint>

#include "kernels/core/narrow_float.hpp"
#include "kernels/gpu/vendor/gpu_api.hpp"

namespace symm {

// Two elements, as fp8 instructions have them.
struct FloatPair {
  float low;
  float high;
};
template <class Storage>
struct NarrowPair {
  Storage low;
  Storage high;
};

template <class Storage>
struct PortableConversion {
  __device__ static float widen(Storage value) { return Storage::to_float32(value); }
  __device__ static Storage round(float value) { return Storage::from_float32(value); }
  __device__ static FloatPair widen(NarrowPair<Storage> pair) {
    return {widen(pair.low), widen(pair.high)};
  }
  __device__ static NarrowPair<Storage> round(FloatPair wide) {
    return {round(wide.low), round(wide.high)};
  }
};

template <class Storage>
struct Conversion : PortableConversion<Storage> {};
// Whether there are instructions for pairs of them.
template <class Storage>
inline constexpr bool kConvertsPairs = false;
// Whether there is one that rounds two numbers, neither of which is NaN, to a word: round_plain().
template <class Storage>
inline constexpr bool kRoundsToWords = false;

#if SYMM_CONVERTS_HALF

namespace conversion {

__device__ inline std::uint32_t bits_of(float value) { return __float_as_uint(value); }
__device__ inline bool is_nan(std::uint32_t bits) { return (bits & 0x7fffffffu) > 0x7f800000u; }
// The sign of a float32 in the highest bit of a byte.
__device__ inline std::uint32_t byte_sign(std::uint32_t bits) { return (bits >> 24) & 0x80u; }

}  // namespace conversion

template <>
struct Conversion<Half> {
  __device__ static float widen(Half value) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
    const std::uint32_t raw = value.bits;
    const std::uint32_t nan = 0x7fc00000u | ((raw & 0x7fffu) << 13) | ((raw & 0x8000u) << 16);
    return (raw & 0x7fffu) > 0x7c00u ? __uint_as_float(nan) : wide;
  }
  __device__ static Half round(float value) {
    std::uint16_t narrow;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow) : "f"(value));
    const std::uint32_t raw = conversion::bits_of(value);
    const std::uint32_t nan = 0x7e00u | ((raw >> 16) & 0x8000u);
    return {conversion::is_nan(raw) ? static_cast<std::uint16_t>(nan) : narrow};
  }
  __device__ static std::uint32_t round_plain(FloatPair pair) {
    std::uint32_t word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(pair.high), "f"(pair.low));
    return word;
  }
  __device__ static FloatPair widen(NarrowPair<Half> pair) {
    return {widen(pair.low), widen(pair.high)};
  }
  __device__ static NarrowPair<Half> round(FloatPair wide) {
    return {round(wide.low), round(wide.high)};
  }
};

#if SYMM_CONVERTS_BFLOAT16

template <>
inline constexpr bool kRoundsToWords<Half> = true;  // from sm_80 on as well
template <>
inline constexpr bool kRoundsToWords<BFloat16> = true;

template <>
struct Conversion<BFloat16> : PortableConversion<BFloat16> {
  using PortableConversion<BFloat16>::round;
  __device__ static BFloat16 round(float value) {
    std::uint16_t narrow;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrow) : "f"(value));
    return {value != value ? std::uint16_t{0x7fc0} : narrow};
  }
  __device__ static std::uint32_t round_plain(FloatPair pair) {
    std::uint32_t word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(pair.high), "f"(pair.low));
    return word;
  }
};

#endif

#if SYMM_CONVERTS_FLOAT8

namespace conversion {

// Of both halves of a pair of bytes.
template <class Storage, class Fix>
__device__ inline NarrowPair<Storage> fixed(std::uint16_t narrow, FloatPair wide, const Fix& fix) {
  const std::uint32_t low = fix(narrow & 0xffu, bits_of(wide.low));
  const std::uint32_t high = fix(static_cast<std::uint32_t>(narrow) >> 8, bits_of(wide.high));
  return {{static_cast<std::uint8_t>(low)}, {static_cast<std::uint8_t>(high)}};
}

}  // namespace conversion

template <>
inline constexpr bool kConvertsPairs<Float8E4M3Fn> = true;
template <>
inline constexpr bool kConvertsPairs<Float8E5M2> = true;

template <>
struct Conversion<Float8E4M3Fn> {
  using Pair = NarrowPair<Float8E4M3Fn>;

  __device__ static bool has_special(std::uint32_t four) {
    return (((four & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u) != 0;
  }
  __device__ static FloatPair widen_plain(Pair pair) {
    const std::uint32_t halves = halves_of(pair);
    return {of_half(halves & 0xffffu), of_half(halves >> 16)};
  }
  __device__ static FloatPair widen(Pair pair) {
    const FloatPair plain = widen_plain(pair);
    return {one(plain.low, pair.low), one(plain.high, pair.high)};
  }
  __device__ static bool is_plain(float value) { return value == value; }
  __device__ static std::uint16_t round_plain(FloatPair wide) {
    std::uint16_t narrow;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(narrow) : "f"(wide.high), "f"(wide.low));
    return narrow;
  }
  __device__ static Pair round(FloatPair wide) {
    const std::uint16_t narrow = round_plain(wide);
    return conversion::fixed<Float8E4M3Fn>(narrow, wide, [](std::uint32_t byte, std::uint32_t raw) {
      return conversion::is_nan(raw) ? 0x7fu | conversion::byte_sign(raw) : byte;
    });
  }
  __device__ static float widen(Float8E4M3Fn value) { return widen(Pair{value, value}).low; }
  __device__ static Float8E4M3Fn round(float value) { return round(FloatPair{value, value}).low; }

 private:
  __device__ static std::uint32_t halves_of(Pair pair) {
    const auto narrow = static_cast<std::uint16_t>(pair.low.bits | (pair.high.bits << 8));
    std::uint32_t halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(narrow));
    return halves;
  }
  __device__ static float of_half(std::uint32_t half) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(static_cast<std::uint16_t>(half)));
    return wide;
  }
  __device__ static float one(float wide, Float8E4M3Fn from) {
    const std::uint32_t raw = from.bits;
    const std::uint32_t nan = 0x7ff00000u | ((raw & 0x80u) << 24);
    return (raw & 0x7fu) == 0x7fu ? __uint_as_float(nan) : wide;
  }
};

template <>
struct Conversion<Float8E5M2> {
  using Pair = NarrowPair<Float8E5M2>;

  __device__ static float widen(Float8E5M2 value) {
    return Conversion<Half>::widen(Half{static_cast<std::uint16_t>(value.bits << 8)});
  }
  __device__ static FloatPair widen(Pair pair) { return {widen(pair.low), widen(pair.high)}; }
  __device__ static bool has_special(std::uint32_t four) {
    return (((four & 0x7f7f7f7fu) + 0x03030303u) & 0x80808080u) != 0;
  }
  __device__ static FloatPair widen_plain(Pair pair) {
    return {of_byte(pair.low), of_byte(pair.high)};
  }
  // The instruction saturates where infinity is right: from 61440 on, which lies between the
  // largest number and the next power of two.
  __device__ static bool is_plain(float value) { return __builtin_fabsf(value) < 61440.0f; }
  __device__ static std::uint16_t round_plain(FloatPair wide) {
    std::uint16_t narrow;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(narrow) : "f"(wide.high), "f"(wide.low));
    return narrow;
  }
  __device__ static Pair round(FloatPair wide) {
    const std::uint16_t narrow = round_plain(wide);
    return conversion::fixed<Float8E5M2>(narrow, wide, [](std::uint32_t byte, std::uint32_t raw) {
      const std::uint32_t magnitude = raw & 0x7fffffffu;
      const std::uint32_t sign = conversion::byte_sign(raw);
      const std::uint32_t finite = magnitude >= 0x47700000u ? 0x7cu | sign : byte;
      return conversion::is_nan(raw) ? 0x7fu | sign : finite;
    });
  }
  __device__ static Float8E5M2 round(float value) { return round(FloatPair{value, value}).low; }

 private:
  __device__ static float of_byte(Float8E5M2 value) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(static_cast<std::uint16_t>(value.bits << 8)));
    return wide;
  }
};

#endif  // SYMM_CONVERTS_FLOAT8
#endif  // SYMM_CONVERTS_HALF

}  // namespace symm
