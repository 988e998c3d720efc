#include "symm_mem/process/fork_guard.hpp"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <mutex>
#include <string>
#include <vector>

#include "symm_mem/process/system_error.hpp"

namespace symm {
namespace {

std::atomic<std::uint32_t> generation{0};

struct Registry {
  std::mutex mutex;
  std::vector<int> descriptors;
};

// Never destroyed: a fork may come after static destructors have begun.
Registry& registry() {
  static Registry* const instance = new Registry;
  return *instance;
}

// The child of a threaded process may only use what is async-signal-safe: no allocation here.
void after_fork_in_child() {
  generation.fetch_add(1, std::memory_order_relaxed);
  Registry& r = registry();
  for (const int fd : r.descriptors) ::close(fd);
  r.descriptors.clear();
  r.mutex.unlock();
}

// Runs when the library is loaded, before anything could have been registered.
[[maybe_unused]] const bool handlers_installed = [] {
  registry();
  return ::pthread_atfork([] { registry().mutex.lock(); }, [] { registry().mutex.unlock(); },
                          after_fork_in_child) == 0;
}();

}  // namespace

std::uint32_t fork_generation() noexcept { return generation.load(std::memory_order_relaxed); }

ForkHold::ForkHold() { registry().mutex.lock(); }

ForkHold::~ForkHold() { registry().mutex.unlock(); }

void ForkHold::close_in_child(int fd) { registry().descriptors.push_back(fd); }

void ForkHold::forget(int fd) noexcept { std::erase(registry().descriptors, fd); }

void ForkHold::unmap_in_child(void* base, std::size_t bytes) {
  if (::madvise(base, bytes, MADV_DONTFORK) != 0) {
    throw_system_error("keeping " + std::to_string(bytes) + " mapped bytes out of forked children",
                       errno);
  }
}

}  // namespace symm
