// What this process holds, as the system counts it.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace symm::test {

// Lines of /proc/self/maps that contain `text`; all of them where it is empty.
inline int mapped_areas(const std::string& text = "") {
  std::ifstream maps("/proc/self/maps");
  int lines = 0;
  for (std::string line; std::getline(maps, line);) lines += line.find(text) != std::string::npos;
  return lines;
}

// Shared memory of symm that is mapped here.
inline int memfd_mappings() { return mapped_areas("/memfd:symm"); }

inline int open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<int>(std::distance(begin(all), end(all))) - 1;  // less the one that looks
}

struct MemoryUse {
  std::size_t address_space = 0;  // bytes
  std::size_t resident = 0;       // bytes
};

inline MemoryUse memory_use() {
  std::ifstream file("/proc/self/statm");
  MemoryUse pages;
  file >> pages.address_space >> pages.resident;
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return {pages.address_space * page, pages.resident * page};
}

}  // namespace symm::test
