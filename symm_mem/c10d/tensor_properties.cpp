#include "symm_mem/c10d/tensor_properties.hpp"

namespace symm {

std::optional<Dtype> dtype_of(c10::ScalarType type) {
  switch (type) {
    case c10::kHalf:
      return Dtype::kFloat16;
    case c10::kBFloat16:
      return Dtype::kBFloat16;
    case c10::kFloat:
      return Dtype::kFloat32;
    case c10::kDouble:
      return Dtype::kFloat64;
    case c10::kFloat8_e4m3fn:
      return Dtype::kFloat8E4M3Fn;
    case c10::kFloat8_e5m2:
      return Dtype::kFloat8E5M2;
    case c10::kFloat8_e4m3fnuz:
      return Dtype::kFloat8E4M3FnUz;
    case c10::kFloat8_e5m2fnuz:
      return Dtype::kFloat8E5M2FnUz;
    case c10::kChar:
      return Dtype::kInt8;
    case c10::kByte:
      return Dtype::kUInt8;
    case c10::kShort:
      return Dtype::kInt16;
    case c10::kInt:
      return Dtype::kInt32;
    case c10::kLong:
      return Dtype::kInt64;
    case c10::kBool:
      return Dtype::kBool;
    case c10::kComplexFloat:
      return Dtype::kComplex64;
    case c10::kComplexDouble:
      return Dtype::kComplex128;
    default:
      return std::nullopt;
  }
}

std::string printed(c10::IntArrayRef values) {
  std::string text = "[";
  for (const std::int64_t value : values) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(value);
  }
  return text + "]";
}

}  // namespace symm
