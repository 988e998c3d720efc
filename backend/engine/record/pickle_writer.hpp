// Plain values as a pickle of protocol 2, which Python reads without any class of ours.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace symm {

// Values follow each other; dict() and list() take the functions that write what is in them.
class PickleWriter {
 public:
  PickleWriter() : bytes_("\x80\x02") {}

  void text(std::string_view value) {
    bytes_ += 'X';
    number(static_cast<std::uint32_t>(value.size()), 4);
    bytes_ += value;
  }
  void integer(std::int64_t value) {
    bytes_ += "\x8a\x08";
    number(static_cast<std::uint64_t>(value), 8);
  }
  void boolean(bool value) { bytes_ += value ? '\x88' : '\x89'; }
  void none() { bytes_ += 'N'; }
  // `body` writes keys and values by turns.
  template <typename Body>
  void dict(Body&& body) {
    bytes_ += "}(";
    body();
    bytes_ += 'u';
  }
  template <typename Body>
  void list(Body&& body) {
    bytes_ += "](";
    body();
    bytes_ += 'e';
  }
  void pair(std::string_view first, std::string_view second) {
    text(first);
    text(second);
    bytes_ += '\x86';
  }

  std::string take() {
    bytes_ += '.';
    return std::move(bytes_);
  }

 private:
  void number(std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) bytes_ += static_cast<char>(value >> (8 * i));
  }

  std::string bytes_;
};

}  // namespace symm
