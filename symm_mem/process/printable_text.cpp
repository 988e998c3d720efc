#include "symm_mem/process/printable_text.hpp"

#include <cstddef>

namespace symm {
namespace {

struct Character {
  std::size_t bytes = 0;  // 0: none begins here
  char32_t code = 0;
};

Character first_character(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return {1, lead};
  if (lead < 0xc2 || lead > 0xf4) return {};
  const std::size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (text.size() < bytes) return {};
  auto code = static_cast<char32_t>(lead & (0x7f >> bytes));
  for (const char next : text.substr(1, bytes - 1)) {
    const auto byte = static_cast<unsigned char>(next);
    if ((byte & 0xc0) != 0x80) return {};
    code = (code << 6) | static_cast<char32_t>(byte & 0x3f);
  }
  constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = code >= 0xd800 && code <= 0xdfff;
  if (code < kLeast[bytes] || code > 0x10ffff || is_surrogate) return {};
  return {bytes, code};
}

bool is_control(char32_t code) { return code < 0x20 || (code >= 0x7f && code < 0xa0); }

}  // namespace

std::string printable(std::string_view text) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const Character character = first_character(text);
    const std::size_t bytes = character.bytes == 0 ? 1 : character.bytes;
    if (character.bytes > 0 && !is_control(character.code)) {
      result += text.substr(0, bytes);
    } else {
      for (const char escaped : text.substr(0, bytes)) {
        const auto byte = static_cast<unsigned char>(escaped);
        result += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 0xf]};
      }
    }
    text.remove_prefix(bytes);
  }
  return result;
}

}  // namespace symm
