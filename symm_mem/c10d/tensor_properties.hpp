// Properties of tensors in symm's terms and as text.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <optional>
#include <string>

#include "kernels/core/dtype.hpp"

namespace symm {

// nullopt for a type that symm only moves (uint16, quantised and packed types, ...).
std::optional<Dtype> dtype_of(c10::ScalarType type);

// Sizes or strides, "[2, 3]". Not through a stream: see NOTE [Numbers and iostreams] in
// kernels/core/decimal.hpp.
std::string printed(c10::IntArrayRef values);

}  // namespace symm
