// How far two cores are from each other at the moment: what a cache line takes there and back, and
// what 256 KiB take that one writes and the other then reads. A virtual machine's cores may move on
// the real ones, and times of ranks that exchange data with them.
//
//   g++ -std=c++20 -O2 -pthread test/machine/speed/core_distance.cpp -o core_distance
//   ./core_distance [first core] [second core]
//
// Prints one JSON object: nanoseconds and microseconds, means.
#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kBytes = 256 * 1024;
constexpr int kLines = 20'000;
constexpr int kCopies = 400;

struct alignas(128) Turn {
  std::atomic<int> number{0};

  void pass(int to) { number.store(to, std::memory_order_release); }
  void await(int wanted) const {
    while (number.load(std::memory_order_acquire) != wanted) {
    }
  }
};

void stay_on(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  if (pthread_setaffinity_np(pthread_self(), sizeof(cores), &cores) != 0) {
    std::fprintf(stderr, "core_distance: core %d cannot be used\n", core);
    std::exit(1);
  }
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

int main(int argc, char** argv) {
  const int first = argc > 1 ? std::atoi(argv[1]) : 0;
  const int second = argc > 2 ? std::atoi(argv[2]) : 1;
  const std::vector<char> source(kBytes, 1);
  std::vector<char> shared(kBytes);
  std::vector<char> result(kBytes);
  Turn there;
  Turn back;
  double reading = 0;

  std::thread other([&] {
    stay_on(second);
    for (int i = 1; i <= kLines + kCopies; ++i) {
      there.await(i);
      if (i > kLines) {
        const auto start = Clock::now();
        std::memcpy(result.data(), shared.data(), kBytes);
        reading += seconds_since(start);
      }
      back.pass(i);
    }
  });

  stay_on(first);
  const auto start = Clock::now();
  for (int i = 1; i <= kLines; ++i) {
    there.pass(i);
    back.await(i);
  }
  const double lines = seconds_since(start);
  double writing = 0;
  for (int i = kLines + 1; i <= kLines + kCopies; ++i) {
    const auto begin = Clock::now();
    std::memcpy(shared.data(), source.data(), kBytes);
    writing += seconds_since(begin);
    there.pass(i);
    back.await(i);
  }
  other.join();
  std::printf("{\"line_ns\": %.0f, \"write_us\": %.1f, \"read_us\": %.1f}\n", lines / kLines * 1e9,
              writing / kCopies * 1e6, reading / kCopies * 1e6);
}
