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

}  // namespace symm
