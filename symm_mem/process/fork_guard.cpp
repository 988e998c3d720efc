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

struct View {
  void* base;
  std::size_t bytes;
  int fd;  // -1: forgotten
};

struct Registry {
  std::mutex mutex;
  std::vector<int> descriptors;
  std::vector<View> views;
};

// Never destroyed: a fork may come after static destructors have begun.
Registry& registry() {
  static Registry* const instance = new Registry;
  return *instance;
}

// Takes nothing away from what another handler of the child may have put there.
bool map_into_hole(const View& view, int protection, int flags, int fd) {
  void* const got = ::mmap(view.base, view.bytes, protection,
                           MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED_NOREPLACE | flags, fd, 0);
  if (got == MAP_FAILED) return false;
  if (got != view.base) ::munmap(got, view.bytes);  // Linux before 4.17
  return true;
}

// The child of a threaded process may only use what is async-signal-safe: no allocation here.
void after_fork_in_child() {
  generation.fetch_add(1, std::memory_order_relaxed);
  Registry& r = registry();
  for (const View& view : r.views) {
    if (view.fd >= 0 && map_into_hole(view, PROT_READ | PROT_WRITE, 0, view.fd)) continue;
    map_into_hole(view, PROT_NONE, MAP_ANONYMOUS, -1);
  }
  for (const int fd : r.descriptors) ::close(fd);
  r.views.clear();
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

void ForkHold::forget(int fd) noexcept {
  std::erase(registry().descriptors, fd);
  for (View& view : registry().views) {
    if (view.fd == fd) view.fd = -1;
  }
}

void ForkHold::view_privately_in_child(void* base, std::size_t bytes, int fd) {
  registry().views.push_back({base, bytes, fd});
  if (::madvise(base, bytes, MADV_DONTFORK) == 0) return;
  const int error = errno;
  registry().views.pop_back();
  throw_system_error("keeping " + std::to_string(bytes) + " mapped bytes out of forked children",
                     error);
}

void ForkHold::end_private_view(void* base) noexcept {
  std::erase_if(registry().views, [base](const View& view) { return view.base == base; });
}

}  // namespace symm
