// A Store in this process's memory, for ranks that are threads. Thread safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "symm_mem/bootstrap/store.hpp"

namespace symm::test {

class MemoryStore final : public KeyValueStore {
 public:
  using Tamper = std::function<void(const std::string& key, std::vector<std::uint8_t>& value)>;

  MemoryStore() = default;
  // `tamper` sees, and may change, what every reader gets.
  explicit MemoryStore(Tamper tamper) : tamper_(std::move(tamper)) {}

  void set(const std::string& key, const std::vector<std::uint8_t>& value) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    values_[key] = value;
  }

  std::optional<std::vector<std::uint8_t>> get(const std::string& key) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = values_.find(key);
    if (found == values_.end()) return std::nullopt;
    std::vector<std::uint8_t> value = found->second;
    if (tamper_) tamper_(key, value);
    return value;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::vector<std::uint8_t>> values_;
  Tamper tamper_;
};

}  // namespace symm::test
