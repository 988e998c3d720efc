// One place of the flight record's ring, for the files that write and read it.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <mutex>
#include <thread>

#include "backend/engine/record/flight_record.hpp"
#include "kernels/core/atomics.hpp"

namespace symm {

inline std::int64_t wall_clock_ns() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

// The value of the first variable that is set; null for none.
struct EnvironmentVariable {
  const char* name = nullptr;
  const char* value = nullptr;
};
inline EnvironmentVariable first_variable(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const char* value = std::getenv(name)) return {name, value};
  }
  return {};
}

class FlightEntry {
 public:
  using ThreadName = std::array<char, 16>;  // Linux has no longer ones
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};

  // Held while the entry is written or read.
  void lock() {
    while (busy_.exchange(true, std::memory_order_acquire)) std::this_thread::yield();
  }
  void unlock() { busy_.store(false, std::memory_order_release); }

  FlightRecord* record = nullptr;
  std::uint64_t id = kNone;
  std::uint64_t use = 0;  // of this place, which a ticket is for
  FlightGroup* group = nullptr;
  FlightCall call;
  FlightTensors tensors;
  DeviceProgress progress;
  std::int64_t created = 0;
  std::int64_t started = 0;  // 0: not known to have
  std::int64_t completed = 0;
  bool retired = false;
  std::uint64_t thread = 0;
  ThreadName thread_name{};

  void look_at_device() {
    if (progress.begun == nullptr || completed != 0) return;
    const std::int64_t now = wall_clock_ns();
    if (started == 0 && load_acquire(progress.begun) >= progress.number) started = now;
    if (!retired && load_acquire(progress.ended) >= progress.number) completed = now;
  }

 private:
  std::atomic<bool> busy_{false};
};

template <typename Visit>
void FlightRecord::visit(Visit&& visit) {
  const std::uint64_t end = next_.load(std::memory_order_acquire);
  for (std::uint64_t id = end - std::min<std::uint64_t>(end, size_); id < end; ++id) {
    FlightEntry& entry = place(id);
    const std::lock_guard lock(entry);
    if (entry.id == id) visit(entry);
  }
}

}  // namespace symm
