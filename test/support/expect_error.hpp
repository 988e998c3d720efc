// Checks of symm::Error in tests.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/core/error.hpp"

namespace symm::test {

inline void expect_error(const std::optional<Error>& error, ErrorCode code,
                         const std::vector<std::string>& words) {
  ASSERT_TRUE(error.has_value()) << "expected an error, nothing was thrown";
  EXPECT_STREQ(error_code_name(error->code()), error_code_name(code)) << error->what();
  for (const std::string& word : words) {
    EXPECT_NE(std::string(error->what()).find(word), std::string::npos)
        << "no '" << word << "' in: " << error->what();
  }
}

inline std::optional<Error> error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

}  // namespace symm::test
