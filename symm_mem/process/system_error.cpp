#include "symm_mem/process/system_error.hpp"

#include <sys/resource.h>

#include <cerrno>

#include "kernels/core/error.hpp"

namespace symm {
namespace {

std::string limit_text(decltype(RLIMIT_NOFILE) resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0) return "unknown";
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_cur);
}

std::string advice(int error) {
  switch (error) {
    case EMFILE:
      return "; RLIMIT_NOFILE allows this process " + limit_text(RLIMIT_NOFILE) +
             " descriptors: raise it with `ulimit -n`";
    case ENFILE:
      return "; the whole system is out of file descriptors: raise the sysctl fs.file-max";
    case ENOMEM:
      return "; address space is limited to RLIMIT_AS = " + limit_text(RLIMIT_AS) +
             " (`ulimit -v`) and mappings to the sysctl vm.max_map_count, memory to what the "
             "machine or its control group has left";
    case ENOSPC:
      return "; shared memory is used up: free memory or raise the limit of the control group";
    case EFBIG:
      return "; RLIMIT_FSIZE = " + limit_text(RLIMIT_FSIZE) + ": raise it with `ulimit -f`";
    default:
      return "";
  }
}

}  // namespace

std::string describe_system_error(int error) {
  return std::generic_category().message(error) + advice(error);
}

void throw_system_error(const std::string& action, int error) {
  throw Error(ErrorCode::kSystem, action, " failed: ", describe_system_error(error));
}

void throw_no_thread(const std::string& users, const std::system_error& error) {
  throw Error(ErrorCode::kSystem, "cannot start the thread that ", users,
              " need: ", error.code().message(),
              "; threads are limited by RLIMIT_NPROC = ", limit_text(RLIMIT_NPROC),
              " (`ulimit -u`) and pids.max of the control group, their stacks by RLIMIT_AS = ",
              limit_text(RLIMIT_AS), " (`ulimit -v`)");
}

}  // namespace symm
