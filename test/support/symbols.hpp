// What a shared object defines or needs.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

namespace symm::test {

// The dynamic symbols of `file`, "name" or "name@version"; `which`: nm's --defined-only or
// --undefined-only.
inline std::vector<std::string> symbols_of(const std::string& file, const std::string& which) {
  const std::string command = "nm -D " + which + " " + file;
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  EXPECT_TRUE(pipe);
  std::vector<std::string> symbols;
  std::array<char, 512> line{};
  while (pipe && std::fgets(line.data(), line.size(), pipe.get()) != nullptr) {
    std::istringstream words(line.data());
    std::string word;
    while (words >> word) continue;
    symbols.push_back(word);
  }
  return symbols;
}

}  // namespace symm::test
