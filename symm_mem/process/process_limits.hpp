// Whether a process has room for what it is about to take, before it takes the first part.
#pragma once

#include <cstddef>
#include <string>

namespace symm {

struct ProcessNeeds {
  std::size_t descriptors = 0;
  std::size_t address_space = 0;  // bytes to be mapped
  std::size_t memory = 0;         // bytes to be allocated
};

// Throws Error(kSystem) that names the limit where RLIMIT_NOFILE, RLIMIT_AS or the memory that is
// available (available_memory.hpp) leaves no room for `needs` beside what the process has. `user`
// needs them, e.g. "a group of 4 ranks". Local; reads a few files of /proc.
void check_process_limits(const std::string& user, const ProcessNeeds& needs);

}  // namespace symm
