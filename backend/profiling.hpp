// Titles of operations in a profile.
#pragma once

#include <ATen/record_function.h>

namespace symm {

// A title makes c10d::Work record a profiler event; without a profiler that is pure cost.
inline const char* profiled(const char* title) { return at::hasCallbacks() ? title : nullptr; }

}  // namespace symm
