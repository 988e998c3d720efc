#include "symm_mem/process/environment_flag.hpp"

#include <cstdlib>
#include <string_view>

#include "kernels/core/error.hpp"

namespace symm {

bool flag_in_environment(const char* name, bool unset) {
  const char* const value = std::getenv(name);
  if (value == nullptr) return unset;
  const std::string_view word = value;
  if (word != "0" && word != "1") {
    throw Error(ErrorCode::kInvalidArgument, name, ": expected 0 or 1, got '", word, "'");
  }
  return word == "1";
}

}  // namespace symm
