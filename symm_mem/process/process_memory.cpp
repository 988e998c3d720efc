#include "symm_mem/process/process_memory.hpp"

#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace symm {
namespace {

// The kernel moves less than 2 GiB a call.
constexpr std::size_t kMostAtOnce = std::size_t{1} << 30;

std::uint64_t random_word() {
  std::uint64_t word = 0;
  if (::getrandom(&word, sizeof(word), GRND_NONBLOCK) != sizeof(word)) {
    word = static_cast<std::uint64_t>(host_clock().count()) ^ (std::uint64_t{0x9e37} << 48);
  }
  return word;
}

}  // namespace

MemoryProbe own_memory_probe() {
  static const std::uint64_t word = random_word();
  return {reinterpret_cast<std::uintptr_t>(&word), word};
}

int read_process_memory(std::int64_t pid, std::uint64_t address, void* destination,
                        std::size_t bytes) {
  auto* to = static_cast<std::byte*>(destination);
  while (bytes > 0) {
    const std::size_t part = std::min(bytes, kMostAtOnce);
    const iovec local{to, part};
    const iovec remote{reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)), part};
    const ssize_t moved = ::process_vm_readv(static_cast<pid_t>(pid), &local, 1, &remote, 1, 0);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) return moved < 0 ? errno : EFAULT;
    to += moved;
    address += static_cast<std::uint64_t>(moved);
    bytes -= static_cast<std::size_t>(moved);
  }
  return 0;
}

bool is_readable_by_peers(const void* data, std::size_t bytes) {
  if (bytes == 0) return true;
  const auto first = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(data));
  std::byte ends[2];
  const iovec local{ends, sizeof(ends)};
  const iovec remote[2] = {
      {reinterpret_cast<void*>(static_cast<std::uintptr_t>(first)), 1},
      {reinterpret_cast<void*>(static_cast<std::uintptr_t>(first + bytes - 1)), 1}};
  return ::process_vm_readv(::getpid(), &local, 1, remote, 2, 0) == sizeof(ends);
}

void permit_reads_by_peers() {
#ifdef PR_SET_PTRACER
  static_cast<void>(::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0));
#endif
}

}  // namespace symm
