// Little-endian encoding of messages between ranks, and the bounded reader of messages of peers.
// field() and constant() of both take the same arguments, so one template over the codec can list
// the fields of a message for both directions.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace symm {

class ByteWriter {
 public:
  template <std::unsigned_integral T>
  void integer(T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      bytes_.push_back(static_cast<std::uint8_t>(static_cast<std::uint64_t>(value) >> (8 * i)));
    }
  }
  void raw(std::span<const std::uint8_t> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  // A 32-bit length and the bytes.
  void sized(std::span<const std::uint8_t> bytes) {
    integer(static_cast<std::uint32_t>(bytes.size()));
    raw(bytes);
  }
  void sized(std::string_view text) {
    sized(std::span(reinterpret_cast<const std::uint8_t*>(text.data()), text.size()));
  }
  template <std::integral T>
  void field(T value) {
    integer(static_cast<std::make_unsigned_t<T>>(value));
  }
  void field(bool value) { integer(std::uint32_t{value}); }
  template <std::size_t bytes>
  void field(const std::array<std::uint8_t, bytes>& value) {
    raw(value);
  }
  // A part that knows its own fields.
  template <typename Part>
  requires std::is_class_v<Part>
  void field(const Part& part) { part.write(*this); }
  // A text or bytes; the reader refuses more than its `limit`.
  void field(const auto& value, std::size_t /*limit*/) { sized(value); }
  void constant(std::uint32_t value) { integer(value); }
  std::vector<std::uint8_t> take() { return std::move(bytes_); }

 private:
  std::vector<std::uint8_t> bytes_;
};

// Reads hostile bytes. The first read that does not fit fails, and so do all after it: read
// everything, then ask finished() once. Values read after a failure are zero or empty.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::uint8_t> bytes) : rest_(bytes) {}

  template <std::unsigned_integral T>
  T integer() {
    const std::span<const std::uint8_t> bytes = raw(sizeof(T));
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i) value |= std::uint64_t{bytes[i]} << (8 * i);
    return static_cast<T>(value);
  }
  std::span<const std::uint8_t> raw(std::size_t count) {
    if (failed_ || count > rest_.size()) {
      failed_ = true;
      return {};
    }
    const std::span<const std::uint8_t> result = rest_.first(count);
    rest_ = rest_.subspan(count);
    return result;
  }
  // A 32-bit length of at most `limit` and the bytes.
  std::span<const std::uint8_t> sized(std::size_t limit) {
    const std::uint32_t count = integer<std::uint32_t>();
    if (count > limit) failed_ = true;
    return raw(count);
  }
  std::string text(std::size_t limit) {
    const std::span<const std::uint8_t> bytes = sized(limit);
    return std::string(bytes.begin(), bytes.end());
  }
  template <std::integral T>
  void field(T& value) {
    value = static_cast<T>(integer<std::make_unsigned_t<T>>());
  }
  void field(bool& value) { value = integer<std::uint32_t>() == 1; }
  template <std::size_t bytes>
  void field(std::array<std::uint8_t, bytes>& value) {
    std::ranges::copy(raw(bytes), value.begin());
  }
  template <typename Part>
  requires std::is_class_v<Part>
  void field(Part& part) { part = Part::read(*this); }
  void field(auto& value, std::size_t limit) {
    const std::span<const std::uint8_t> bytes = sized(limit);
    value.assign(bytes.begin(), bytes.end());
  }
  // Anything else fails.
  void constant(std::uint32_t expected) { failed_ |= integer<std::uint32_t>() != expected; }
  // True when every read fitted and nothing is left over.
  bool finished() const { return !failed_ && rest_.empty(); }
  bool failed() const { return failed_; }

 private:
  std::span<const std::uint8_t> rest_;
  bool failed_ = false;
};

}  // namespace symm
