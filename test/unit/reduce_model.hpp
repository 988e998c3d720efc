// The reduction rules once more, element by element and without any of the code under test except
// the narrow formats' conversions, which numeric_test.cpp checks on their own.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/core/dtype.hpp"
#include "kernels/core/narrow_float.hpp"
#include "kernels/core/reduce_op.hpp"

namespace symm::test {

// Bytes of one element of each source, in source order.
using ElementBytes = std::vector<const unsigned char*>;

template <class T>
T read_element(const unsigned char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

// Each step passes through a volatile, so that no compiler fuses or widens it.
template <class Real>
Real rounded(Real value) {
  volatile Real kept = value;
  return kept;
}

template <class Real>
Real canonical_nan(Real value) {
  return std::isnan(value) ? std::numeric_limits<Real>::quiet_NaN() : value;
}

template <class Real>
Real model_real(ReduceOp op, const std::vector<Real>& xs, const std::vector<double>& factors,
                int divisor) {
  const bool scaled = op == ReduceOp::kPreMulSum;
  Real acc = scaled ? rounded(xs[0] * static_cast<Real>(factors[0])) : xs[0];
  for (std::size_t j = 1; j < xs.size(); ++j) {
    const Real x = xs[j];
    const bool nan = std::isnan(acc) || std::isnan(x);
    if (op == ReduceOp::kProduct) {
      acc = rounded(acc * x);
    } else if (op == ReduceOp::kMin) {
      acc = nan ? std::numeric_limits<Real>::quiet_NaN() : (acc <= x ? acc : x);
    } else if (op == ReduceOp::kMax) {
      acc = nan ? std::numeric_limits<Real>::quiet_NaN() : (acc >= x ? acc : x);
    } else {
      acc = rounded(acc + (scaled ? rounded(x * static_cast<Real>(factors[j])) : x));
    }
  }
  if (op == ReduceOp::kAvg) acc = rounded(acc / static_cast<Real>(divisor));
  return canonical_nan(acc);
}

template <class Real>
void model_complex(ReduceOp op, const ElementBytes& elements, const std::vector<double>& factors,
                   int divisor, unsigned char* out) {
  std::vector<Real> re;
  std::vector<Real> im;
  for (const unsigned char* element : elements) {
    re.push_back(read_element<Real>(element));
    im.push_back(read_element<Real>(element + sizeof(Real)));
  }
  Real result[2];
  if (op == ReduceOp::kProduct) {
    result[0] = re[0];
    result[1] = im[0];
    for (std::size_t j = 1; j < re.size(); ++j) {
      const Real a = result[0];
      const Real b = result[1];
      result[0] = rounded(rounded(a * re[j]) - rounded(b * im[j]));
      result[1] = rounded(rounded(a * im[j]) + rounded(b * re[j]));
    }
    for (Real& part : result) part = canonical_nan(part);
  } else {
    result[0] = model_real(op, re, factors, divisor);
    result[1] = model_real(op, im, factors, divisor);
  }
  std::memcpy(out, result, sizeof(result));
}

// Sums and products modulo 2^64 agree with wrapping in any narrower type. The sum that AVG divides
// wraps in int32 or, for int64, in int64.
template <class T>
void model_integer(ReduceOp op, const ElementBytes& elements, int divisor, unsigned char* out) {
  std::int64_t acc = read_element<T>(elements[0]);
  for (std::size_t j = 1; j < elements.size(); ++j) {
    const std::int64_t x = read_element<T>(elements[j]);
    const auto a = static_cast<std::uint64_t>(acc);
    const auto b = static_cast<std::uint64_t>(x);
    switch (op) {
      case ReduceOp::kProduct:
        acc = static_cast<std::int64_t>(a * b);
        break;
      case ReduceOp::kMin:
        acc = x < acc ? x : acc;
        break;
      case ReduceOp::kMax:
        acc = x > acc ? x : acc;
        break;
      case ReduceOp::kBand:
        acc = static_cast<std::int64_t>(a & b);
        break;
      case ReduceOp::kBor:
        acc = static_cast<std::int64_t>(a | b);
        break;
      case ReduceOp::kBxor:
        acc = static_cast<std::int64_t>(a ^ b);
        break;
      default:
        acc = static_cast<std::int64_t>(a + b);
    }
  }
  if (op == ReduceOp::kAvg) {
    if (sizeof(T) < 8) acc = static_cast<std::int32_t>(acc);
    acc /= divisor;
  }
  const T result = static_cast<T>(acc);
  std::memcpy(out, &result, sizeof(T));
}

inline void model_bool(ReduceOp op, const ElementBytes& elements, unsigned char* out) {
  std::size_t trues = 0;
  for (const unsigned char* element : elements) trues += *element != 0 ? 1 : 0;
  if (op == ReduceOp::kBxor) {
    *out = trues % 2 == 1;
  } else if (op == ReduceOp::kSum || op == ReduceOp::kMax || op == ReduceOp::kBor) {
    *out = trues > 0;
  } else {
    *out = trues == elements.size();
  }
}

template <class Narrow>
void model_narrow(ReduceOp op, const ElementBytes& elements, const std::vector<double>& factors,
                  int divisor, unsigned char* out) {
  std::vector<float> xs;
  for (const unsigned char* element : elements) {
    xs.push_back(Narrow::to_float32(read_element<Narrow>(element)));
  }
  const Narrow result = Narrow::from_float32(model_real(op, xs, factors, divisor));
  std::memcpy(out, &result, sizeof(Narrow));
}

template <class Real>
void model_wide(ReduceOp op, const ElementBytes& elements, const std::vector<double>& factors,
                int divisor, unsigned char* out) {
  std::vector<Real> xs;
  for (const unsigned char* element : elements) xs.push_back(read_element<Real>(element));
  const Real result = model_real(op, xs, factors, divisor);
  std::memcpy(out, &result, sizeof(Real));
}

// The expected bytes of one result element.
inline void model_element(Dtype dtype, ReduceOp op, const ElementBytes& elements,
                          const std::vector<double>& factors, int divisor, unsigned char* out) {
  switch (dtype) {
    case Dtype::kFloat16:
      return model_narrow<Half>(op, elements, factors, divisor, out);
    case Dtype::kBFloat16:
      return model_narrow<BFloat16>(op, elements, factors, divisor, out);
    case Dtype::kFloat8E4M3Fn:
      return model_narrow<Float8E4M3Fn>(op, elements, factors, divisor, out);
    case Dtype::kFloat8E5M2:
      return model_narrow<Float8E5M2>(op, elements, factors, divisor, out);
    case Dtype::kFloat8E4M3FnUz:
      return model_narrow<Float8E4M3FnUz>(op, elements, factors, divisor, out);
    case Dtype::kFloat8E5M2FnUz:
      return model_narrow<Float8E5M2FnUz>(op, elements, factors, divisor, out);
    case Dtype::kFloat32:
      return model_wide<float>(op, elements, factors, divisor, out);
    case Dtype::kFloat64:
      return model_wide<double>(op, elements, factors, divisor, out);
    case Dtype::kInt8:
      return model_integer<std::int8_t>(op, elements, divisor, out);
    case Dtype::kUInt8:
      return model_integer<std::uint8_t>(op, elements, divisor, out);
    case Dtype::kInt16:
      return model_integer<std::int16_t>(op, elements, divisor, out);
    case Dtype::kInt32:
      return model_integer<std::int32_t>(op, elements, divisor, out);
    case Dtype::kInt64:
      return model_integer<std::int64_t>(op, elements, divisor, out);
    case Dtype::kBool:
      return model_bool(op, elements, out);
    case Dtype::kComplex64:
      return model_complex<float>(op, elements, factors, divisor, out);
    case Dtype::kComplex128:
      return model_complex<double>(op, elements, factors, divisor, out);
  }
}

}  // namespace symm::test
