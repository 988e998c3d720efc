// Element types of every collective: identity, size and name. Arithmetic is in numeric.hpp.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/core/platform.hpp"

namespace symm {

enum class Dtype : std::uint8_t {
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
  kFloat8E4M3Fn,
  kFloat8E5M2,
  kFloat8E4M3FnUz,
  kFloat8E5M2FnUz,
  kInt8,
  kUInt8,
  kInt16,
  kInt32,
  kInt64,
  kBool,
  kComplex64,
  kComplex128,
};
inline constexpr int kDtypeCount = 16;

struct DtypeInfo {
  std::string_view name;  // torch's spelling without the "torch." prefix
  std::size_t bytes;
};

inline constexpr std::array<DtypeInfo, kDtypeCount> kDtypeInfo = {{
    {"float16", 2},
    {"bfloat16", 2},
    {"float32", 4},
    {"float64", 8},
    {"float8_e4m3fn", 1},
    {"float8_e5m2", 1},
    {"float8_e4m3fnuz", 1},
    {"float8_e5m2fnuz", 1},
    {"int8", 1},
    {"uint8", 1},
    {"int16", 2},
    {"int32", 4},
    {"int64", 8},
    {"bool", 1},
    {"complex64", 8},
    {"complex128", 16},
}};

constexpr std::size_t dtype_bytes(Dtype dtype) {
  return kDtypeInfo[static_cast<std::size_t>(dtype)].bytes;
}

constexpr std::string_view dtype_name(Dtype dtype) {
  return kDtypeInfo[static_cast<std::size_t>(dtype)].name;
}

// Eight bytes that fill memory of which no element is to be used: NaN; the most negative integer,
// of unsigned ones the largest; true.
SYMM_INLINE constexpr std::uint64_t poison_of(Dtype dtype) {
  constexpr std::uint64_t kBytes = 0x0101010101010101;
  constexpr std::uint64_t kHalves = 0x0001000100010001;
  constexpr std::uint64_t kWords = 0x0000000100000001;
  switch (dtype) {
    case Dtype::kFloat16:
      return kHalves * 0x7e00;
    case Dtype::kBFloat16:
      return kHalves * 0x7fc0;
    case Dtype::kFloat32:
    case Dtype::kComplex64:
      return kWords * 0x7fc00000;
    case Dtype::kFloat64:
    case Dtype::kComplex128:
      return 0x7ff8000000000000;
    case Dtype::kFloat8E4M3Fn:
    case Dtype::kFloat8E5M2:
      return kBytes * 0x7f;
    case Dtype::kFloat8E4M3FnUz:
    case Dtype::kFloat8E5M2FnUz:
    case Dtype::kInt8:
      return kBytes * 0x80;
    case Dtype::kUInt8:
      return kBytes * 0xff;
    case Dtype::kInt16:
      return kHalves * 0x8000;
    case Dtype::kInt32:
      return kWords * 0x80000000;
    case Dtype::kInt64:
      return 0x8000000000000000;
    case Dtype::kBool:
      return kBytes;
  }
  return kBytes * 0xff;
}

}  // namespace symm
