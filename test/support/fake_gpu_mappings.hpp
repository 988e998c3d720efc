// Which handles of the stand-in for the CUDA driver are held, and which is mapped where. A handle
// is a descriptor of memory of the host; it is closed when nobody holds it and it is mapped
// nowhere, as the driver lets memory live for as long as it is mapped.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>

namespace symm::test {

class FakeGpuMappings {
 public:
  struct Mapped {
    std::uint64_t base = 0;
    std::size_t bytes = 0;
    int fd = -1;
  };

  void hold(int fd) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++holders_[fd];
  }
  // False for a descriptor that nobody holds.
  bool let_go(int fd) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return drop(fd);
  }

  void map(std::uint64_t base, std::size_t bytes, int fd) {
    const std::lock_guard<std::mutex> lock(mutex_);
    mapped_[base] = {base, bytes, fd};
    ++holders_[fd];
  }
  void unmap(std::uint64_t base) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = mapped_.find(base);
    if (found == mapped_.end()) return;
    drop(found->second.fd);
    mapped_.erase(found);
  }
  std::optional<Mapped> find(std::uint64_t at) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto after = mapped_.upper_bound(at);
    if (after == mapped_.begin()) return std::nullopt;
    const Mapped& before = std::prev(after)->second;
    if (at - before.base >= before.bytes) return std::nullopt;
    return before;
  }

 private:
  bool drop(int fd) {
    const auto found = holders_.find(fd);
    if (found == holders_.end()) return false;
    if (--found->second > 0) return true;
    holders_.erase(found);
    return ::close(fd) == 0;
  }

  std::mutex mutex_;
  std::map<int, int> holders_;
  std::map<std::uint64_t, Mapped> mapped_;  // by base
};

}  // namespace symm::test
