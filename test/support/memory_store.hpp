// A Store in this process's memory, for ranks that are threads. Thread safe.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/error.hpp"
#include "symm_mem/bootstrap/store.hpp"

namespace symm::test {

class MemoryStore final : public KeyValueStore {
 public:
  using Tamper = std::function<void(const std::string& key, std::vector<std::uint8_t>& value)>;

  MemoryStore() = default;
  // `tamper` sees, and may change, what every reader gets.
  explicit MemoryStore(Tamper tamper) : tamper_(std::move(tamper)) {}

  void set(const std::string& key, const std::vector<std::uint8_t>& value) override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      values_[key] = value;
    }
    changed_.notify_all();
  }

  std::vector<std::uint8_t> get(const std::string& key,
                                std::chrono::milliseconds timeout) override {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!changed_.wait_until(lock, std::chrono::system_clock::now() + timeout,
                             [&] { return values_.count(key) != 0; })) {
      throw Error(ErrorCode::kTimeout, "no key " + key);
    }
    std::vector<std::uint8_t> value = values_.at(key);
    if (tamper_) tamper_(key, value);
    return value;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::vector<std::uint8_t>> values_;
  Tamper tamper_;
};

}  // namespace symm::test
