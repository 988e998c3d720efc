// Checks of torch's exceptions in tests.
#pragma once

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

namespace symm::test {

// `call` must raise a `Kind` whose message has all the words.
template <typename Kind>
void expect_raises(const std::function<void()>& call, const std::vector<std::string>& words) {
  try {
    call();
  } catch (const Kind& error) {
    const std::string text = error.what_without_backtrace();
    for (const std::string& word : words) {
      EXPECT_NE(text.find(word), std::string::npos) << "no \"" << word << "\" in: " << text;
    }
    return;
  }
  ADD_FAILURE() << "nothing was raised that says " << words.front();
}

}  // namespace symm::test
