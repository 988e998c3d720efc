// Compares the GPU's own conversions of narrow floats with the portable ones.
#pragma once

#include <cstdint>

#include "kernels/core/dtype.hpp"

namespace symm::test {

struct ConversionCheck {
  std::uint64_t inputs = 0;
  std::uint64_t wrong = 0;
  std::uint32_t first_wrong = 0;  // an input that is wrong, where there is one
};

// Every code of `dtype`, a float of 16 or 8 bits, on the current GPU: alone and in both places of
// a pair. Throws Error.
ConversionCheck check_widening(Dtype dtype);
// Every float32.
ConversionCheck check_rounding(Dtype dtype);

}  // namespace symm::test
