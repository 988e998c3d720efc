// Numbers from text without iostreams.
//
// NOTE [Numbers and iostreams]
// Text may be read and written by iostreams, numbers may not. Two copies of the C++ standard
// library in one process (one linked statically, as some compilers and wheels do) number the facets
// of their locales differently: streams then read every number as 0, or crash on writing it. Use
// parse_decimal() and std::to_string().
#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace symm {

// The number that `text` begins with, or nothing where it begins with none or one out of range.
template <typename Number>
std::optional<Number> parse_decimal(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  return number;
}

}  // namespace symm
