#include "symm_mem/c10d/tensor_properties.hpp"

#include <array>

namespace symm {

namespace {

constexpr auto kDtypes = [] {
  std::array<std::optional<Dtype>, static_cast<std::size_t>(c10::ScalarType::NumOptions)> dtypes;
  const auto set = [&](c10::ScalarType type, Dtype dtype) {
    dtypes[static_cast<std::size_t>(type)] = dtype;
  };
  set(c10::kHalf, Dtype::kFloat16);
  set(c10::kBFloat16, Dtype::kBFloat16);
  set(c10::kFloat, Dtype::kFloat32);
  set(c10::kDouble, Dtype::kFloat64);
  set(c10::kFloat8_e4m3fn, Dtype::kFloat8E4M3Fn);
  set(c10::kFloat8_e5m2, Dtype::kFloat8E5M2);
  set(c10::kFloat8_e4m3fnuz, Dtype::kFloat8E4M3FnUz);
  set(c10::kFloat8_e5m2fnuz, Dtype::kFloat8E5M2FnUz);
  set(c10::kChar, Dtype::kInt8);
  set(c10::kByte, Dtype::kUInt8);
  set(c10::kShort, Dtype::kInt16);
  set(c10::kInt, Dtype::kInt32);
  set(c10::kLong, Dtype::kInt64);
  set(c10::kBool, Dtype::kBool);
  set(c10::kComplexFloat, Dtype::kComplex64);
  set(c10::kComplexDouble, Dtype::kComplex128);
  return dtypes;
}();

}  // namespace

std::optional<Dtype> dtype_of(c10::ScalarType type) {
  return kDtypes[static_cast<std::size_t>(type)];
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
