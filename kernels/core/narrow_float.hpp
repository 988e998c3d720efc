// Storage types of the 16-bit and 8-bit floating formats and their conversion to and from float32.
//
// Conversion from float32 rounds to nearest, ties to even, and gives the bits that c10's scalar
// conversions give (torch 2.13), overflow and NaN included:
//
//   format                overflow          NaN from float32
//   float16               infinity          0x7e00 with the sign
//   bfloat16              infinity          0x7fc0, no sign
//   float8_e5m2           infinity          0x7f with the sign
//   float8_e4m3fn         +-448, infinities too (older torch gave NaN)   0x7f with the sign
//   float8_e4m3fnuz, e5m2fnuz               0x80, the only NaN; there is no negative zero
//
// Everything is pure, branchless (so that it vectorises) and compiles for the host and for a GPU.
// No step makes or reads a subnormal float32, so a flush-to-zero mode of the calling thread does
// not change a conversion of any value that the narrow format can hold. Every function is inlined
// by force: a copy compiled with wider vector instructions must never be the one that the linker
// keeps for a caller on an older processor.
#pragma once

#include <cstdint>

#include "kernels/core/platform.hpp"

namespace symm {

// What an encoding whose exponent bits are all ones means, and what an overflow becomes.
enum class NonFinite {
  kIeee,          // infinities and NaNs as in IEEE 754; overflow becomes infinity
  kSaturate,      // "fn": only all-ones is NaN; overflow becomes the largest finite value
  kUnsignedZero,  // "fnuz": the encoding of negative zero is the only NaN; overflow becomes NaN
};

// A sign bit, exponent bits biased by kBias, and kMantissaBits, stored in `bits`. Callers read and
// write the value as raw bits; size and alignment are those of Bits.
template <class Bits, int kMantissaBits, int kBias, NonFinite kNonFinite>
struct NarrowFloat {
  Bits bits;

  SYMM_FORCE_INLINE static float to_float32(NarrowFloat value) {
    const std::uint32_t raw = value.bits;
    const std::uint32_t magnitude = raw & kMagnitudeMask;
    const std::uint32_t sign = (raw & kSignMask) << (32 - kWidth);
    const std::uint32_t normal = (magnitude << kShift) + kRebias;
    const float fraction =
        static_cast<float>(static_cast<std::int32_t>(magnitude)) * as_float(kSubnormalUnit);
    const std::uint32_t subnormal = as_bits(fraction);
    std::uint32_t result = magnitude < kFirstNormal ? subnormal : normal;
    if constexpr (kNonFinite == NonFinite::kIeee) {
      const std::uint32_t quiet = magnitude > kNonFiniteCode ? 0x00400000u : 0u;
      const std::uint32_t special = (magnitude << kShift) | 0x7f800000u | quiet;
      result = magnitude >= kNonFiniteCode ? special : result;
    } else if constexpr (kNonFinite == NonFinite::kSaturate) {
      result = magnitude == kMagnitudeMask ? (magnitude << kShift) | 0x7f800000u : result;
    }
    result |= sign;
    if constexpr (kNonFinite == NonFinite::kUnsignedZero) {
      result = raw == kSignMask ? kSignallingNan : result;
    }
    return as_float(result);
  }

  SYMM_FORCE_INLINE static NarrowFloat from_float32(float value) {
    const std::uint32_t raw = as_bits(value);
    const std::uint32_t magnitude = raw & 0x7fffffffu;
    const std::uint32_t sign = (raw >> 31) << (kWidth - 1);
    const std::uint32_t odd = (magnitude >> kShift) & 1u;
    const std::uint32_t normal =
        (magnitude - kRebias + odd + ((1u << (kShift - 1)) - 1u)) >> kShift;
    // Adding a number whose unit in the last place is the smallest subnormal makes the adder round.
    const std::uint32_t subnormal =
        as_bits(as_float(magnitude) + as_float(kSubnormalMagic)) - kSubnormalMagic;
    std::uint32_t result = magnitude < kRebias + (1u << 23) ? subnormal : normal;
    if constexpr (kNonFinite == NonFinite::kUnsignedZero) {
      // A carry out of the largest finite value ends in kSignMask, which is NaN.
      result = magnitude >= kOverflow ? kSignMask : result;
      const bool signless = (result == 0u) | (result == kSignMask);
      result |= signless ? 0u : sign;
    } else {
      constexpr std::uint32_t kLargest =
          kNonFinite == NonFinite::kIeee ? kNonFiniteCode : kMagnitudeMask - 1u;
      constexpr std::uint32_t kNan =
          kNonFinite == NonFinite::kIeee && kWidth == 16 ? 0x7e00u : kMagnitudeMask;
      result = ((magnitude >= kOverflow) | (result > kLargest)) ? kLargest : result;
      result = magnitude > 0x7f800000u ? kNan : result;
      result |= sign;
    }
    return NarrowFloat{static_cast<Bits>(result)};
  }

 private:
  static constexpr int kWidth = static_cast<int>(sizeof(Bits)) * 8;
  static constexpr int kShift = 23 - kMantissaBits;
  static constexpr std::uint32_t kSignMask = 1u << (kWidth - 1);
  static constexpr std::uint32_t kMagnitudeMask = kSignMask - 1u;
  static constexpr std::uint32_t kFirstNormal = 1u << kMantissaBits;
  static constexpr std::uint32_t kNonFiniteCode = kSignMask - kFirstNormal;
  static constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(127 - kBias) << 23;
  static constexpr std::uint32_t kSubnormalUnit =
      static_cast<std::uint32_t>(128 - kBias - kMantissaBits) << 23;
  static constexpr std::uint32_t kSubnormalMagic =
      static_cast<std::uint32_t>(151 - kBias - kMantissaBits) << 23;
  // The float32 magnitude from which no rounding brings the value back into range.
  static constexpr std::uint32_t kOverflow =
      (kSignMask << kShift) + kRebias -
      (kNonFinite == NonFinite::kIeee ? kFirstNormal << kShift : 0u);
  static constexpr std::uint32_t kSignallingNan = 0x7f800001u;

  SYMM_FORCE_INLINE static std::uint32_t as_bits(float value) {
    return __builtin_bit_cast(std::uint32_t, value);
  }
  SYMM_FORCE_INLINE static float as_float(std::uint32_t bits) {
    return __builtin_bit_cast(float, bits);
  }
};

using Half = NarrowFloat<std::uint16_t, 10, 15, NonFinite::kIeee>;
using Float8E4M3Fn = NarrowFloat<std::uint8_t, 3, 7, NonFinite::kSaturate>;
using Float8E5M2 = NarrowFloat<std::uint8_t, 2, 15, NonFinite::kIeee>;
using Float8E4M3FnUz = NarrowFloat<std::uint8_t, 3, 8, NonFinite::kUnsignedZero>;
using Float8E5M2FnUz = NarrowFloat<std::uint8_t, 2, 16, NonFinite::kUnsignedZero>;

// The upper half of a float32, so that decoding is a shift.
struct BFloat16 {
  std::uint16_t bits;

  SYMM_FORCE_INLINE static float to_float32(BFloat16 value) {
    return __builtin_bit_cast(float, static_cast<std::uint32_t>(value.bits) << 16);
  }

  SYMM_FORCE_INLINE static BFloat16 from_float32(float value) {
    const std::uint32_t raw = __builtin_bit_cast(std::uint32_t, value);
    const std::uint32_t rounded = (raw + 0x7fffu + ((raw >> 16) & 1u)) >> 16;
    const bool is_nan = (raw & 0x7fffffffu) > 0x7f800000u;
    return BFloat16{static_cast<std::uint16_t>(is_nan ? 0x7fc0u : rounded)};
  }
};

}  // namespace symm
