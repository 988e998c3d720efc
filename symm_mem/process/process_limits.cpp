#include "symm_mem/process/process_limits.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <system_error>

#include "kernels/core/decimal.hpp"
#include "kernels/core/error.hpp"
#include "symm_mem/process/available_memory.hpp"

namespace symm {
namespace {

// nullopt: unlimited.
std::optional<std::size_t> soft_limit(decltype(RLIMIT_AS) resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return static_cast<std::size_t>(limit.rlim_cur);
}

// 0 where it cannot be read: then the limit is met where it is met.
std::size_t open_descriptors() {
  std::error_code error;
  const std::filesystem::directory_iterator files("/proc/self/fd", error);
  if (error) return 0;
  // One of them is the listing's own.
  return static_cast<std::size_t>(std::distance(begin(files), end(files))) - 1;
}

std::size_t mapped_bytes() {
  std::ifstream file("/proc/self/statm");
  std::string pages;
  file >> pages;
  return parse_decimal<std::size_t>(pages).value_or(0) *
         static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

bool has_room(std::size_t used, std::size_t needed, std::size_t limit) {
  return used <= limit && needed <= limit - used;
}

}  // namespace

void check_process_limits(const std::string& user, const ProcessNeeds& needs) {
  if (const auto limit = soft_limit(RLIMIT_NOFILE)) {
    const std::size_t used = open_descriptors();
    if (!has_room(used, needs.descriptors, *limit)) {
      throw Error(ErrorCode::kSystem, user, " needs ", needs.descriptors,
                  " descriptors beside the ", used, " that this process has; RLIMIT_NOFILE allows ",
                  *limit, ": raise it with `ulimit -n`");
    }
  }
  if (const auto limit = soft_limit(RLIMIT_AS)) {
    const std::size_t used = mapped_bytes();
    if (!has_room(used, needs.address_space, *limit)) {
      throw Error(ErrorCode::kSystem, user, " needs ", needs.address_space,
                  " bytes of address space beside the ", used,
                  " that this process has; RLIMIT_AS allows ", *limit,
                  ": raise it with `ulimit -v`, or take a smaller workspace_bytes");
    }
  }
  check_available_memory(text_of("allocating the ", needs.memory, " bytes of ", user),
                         needs.memory);
}

}  // namespace symm
