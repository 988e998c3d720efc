// How much memory a process can still get before the out-of-memory killer comes: what the machine
// has, and what the control groups of the process, versions 1 and 2, allow.
//
// A group's limit holds for all below it, so every group from the process's up to the root counts.
// What a group uses includes file pages that the kernel drops when it needs the room; those count
// as available, and so does swap. All of it is read anew each time; what others take meanwhile is
// not known.
#pragma once

#include <cstddef>
#include <string>

namespace symm {

struct AvailableMemory {
  std::size_t bytes = 0;  // the largest value where nothing can be read
  std::string holder;     // "the machine", "the control group /a/b (limit 4096 bytes)"
};

// Of the smallest limit. Reads proc and sys below `root`, which tests set. Local.
AvailableMemory available_memory(const std::string& root = "");

// Throws Error(kSystem), "<action> failed: <holder> has ... bytes available", where `bytes` are
// more.
void check_available_memory(const std::string& action, std::size_t bytes);

}  // namespace symm
