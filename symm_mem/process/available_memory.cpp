#include "symm_mem/process/available_memory.hpp"

#include <algorithm>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <map>
#include <optional>
#include <string_view>

#include "kernels/core/decimal.hpp"
#include "kernels/core/error.hpp"

namespace symm {
namespace {

constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();

std::size_t add(std::size_t a, std::size_t b) { return a > kUnlimited - b ? kUnlimited : a + b; }
std::size_t subtract(std::size_t a, std::size_t b) { return a > b ? a - b : 0; }

// The lines "key value ..." of a file; none where it cannot be read.
std::map<std::string, std::size_t> read_table(const std::string& path) {
  std::ifstream file(path);
  std::map<std::string, std::size_t> table;
  std::string key;
  std::string value;
  std::string rest;
  while (file >> key >> value) {
    std::getline(file, rest);
    table[key] = parse_decimal<std::size_t>(value).value_or(0);
  }
  return table;
}

// nullopt where there is no such file. "max" is kUnlimited.
std::optional<std::size_t> read_bytes(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  if (!(file >> text)) return std::nullopt;
  return text == "max" ? kUnlimited : parse_decimal<std::size_t>(text);
}

// How a version of control groups calls its files.
struct GroupFiles {
  const char* mount;
  const char* limit;
  const char* usage;
  // Version 2 counts swap apart, version 1 together with memory.
  const char* swap_limit;
  const char* swap_usage;
  bool swap_apart;
  std::initializer_list<const char*> droppable;  // in memory.stat
};

const GroupFiles kVersion1{"/sys/fs/cgroup/memory",
                           "memory.limit_in_bytes",
                           "memory.usage_in_bytes",
                           "memory.memsw.limit_in_bytes",
                           "memory.memsw.usage_in_bytes",
                           false,
                           {"total_inactive_file", "total_active_file"}};
const GroupFiles kVersion2{"/sys/fs/cgroup",
                           "memory.max",
                           "memory.current",
                           "memory.swap.max",
                           "memory.swap.current",
                           true,
                           {"inactive_file", "active_file"}};

// What the group in `folder` allows; `swap` is free on the machine. nullopt where it has no limit.
std::optional<AvailableMemory> allowed_by(const std::string& folder, const std::string& name,
                                          const GroupFiles& files, std::size_t swap) {
  const auto read = [&folder](const char* file) { return read_bytes(folder + "/" + file); };
  const auto limit = read(files.limit);
  const auto usage = read(files.usage);
  // Version 1 writes "none" as the largest whole number of pages.
  if (!limit || !usage || *limit >= kUnlimited / 4) return std::nullopt;
  const auto stat = read_table(folder + "/memory.stat");
  std::size_t droppable = 0;
  for (const char* const key : files.droppable) {
    if (const auto found = stat.find(key); found != stat.end()) droppable += found->second;
  }
  const std::size_t memory = add(subtract(*limit, *usage), std::min(droppable, *usage));
  std::size_t total = add(memory, swap);
  const auto swap_limit = read(files.swap_limit);
  const auto swap_usage = read(files.swap_usage);
  if (swap_limit && swap_usage) {
    const std::size_t room = subtract(*swap_limit, *swap_usage);
    total = files.swap_apart ? add(memory, std::min(swap, room))
                             : std::min(total, add(room, std::min(droppable, *usage)));
  }
  return AvailableMemory{total, text_of("the control group ", name, " (limit ", *limit, " bytes)")};
}

// The smallest that the group `path` and those above it allow. A container may see its own group,
// or one above it, at the mount: what is not there is skipped.
void take_groups(const std::string& root, std::string path, const GroupFiles& files,
                 std::size_t swap, AvailableMemory& least) {
  for (;;) {
    const std::string folder = root + files.mount + (path == "/" ? "" : path);
    const auto found = allowed_by(folder, path, files, swap);
    if (found && found->bytes < least.bytes) least = *found;
    if (path == "/" || path.empty()) return;
    path.erase(std::max<std::size_t>(path.rfind('/'), 1));
    if (path.front() != '/') path = "/";
  }
}

// Of a line "4:cpu,memory:/path": whether `list` has `name`.
bool has_controller(std::string_view list, std::string_view name) {
  while (!list.empty()) {
    const std::size_t comma = list.find(',');
    if (list.substr(0, comma) == name) return true;
    if (comma == std::string_view::npos) break;
    list.remove_prefix(comma + 1);
  }
  return false;
}

}  // namespace

AvailableMemory available_memory(const std::string& root) {
  AvailableMemory least{kUnlimited, "the machine"};
  const auto machine = read_table(root + "/proc/meminfo");
  const auto swap_line = machine.find("SwapFree:");
  const std::size_t swap = swap_line == machine.end() ? 0 : swap_line->second * 1024;
  if (const auto memory = machine.find("MemAvailable:"); memory != machine.end()) {
    least.bytes = add(memory->second * 1024, swap);
  }
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (path.empty() || path.front() != '/') continue;
    if (controllers.empty()) {
      take_groups(root, path, kVersion2, swap, least);
    } else if (has_controller(controllers, "memory")) {
      take_groups(root, path, kVersion1, swap, least);
    }
  }
  return least;
}

void check_available_memory(const std::string& action, std::size_t bytes) {
  const AvailableMemory available = available_memory();
  if (bytes <= available.bytes) return;
  throw Error(ErrorCode::kSystem, action, " failed: ", available.holder, " has ", available.bytes,
              " bytes available");
}

}  // namespace symm
