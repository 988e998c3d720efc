#include "backend/engine/live_groups.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <utility>
#include <vector>

#include "backend/engine/group_engine.hpp"
#include "symm_mem/process/fork_guard.hpp"

namespace symm {

namespace {

struct Registry {
  explicit Registry(std::uint32_t generation) : fork_generation(generation) {}

  const std::uint32_t fork_generation;
  std::mutex mutex;
  std::vector<std::weak_ptr<GroupEngine>> groups;
  std::size_t prune_at = 64;
};

std::atomic<Registry*> current_registry{nullptr};

// Never destroyed: it must outlive every static of the program. A forked child gets its own, since
// the parent's mutex may have been held when it forked.
Registry& registry() {
  const std::uint32_t generation = fork_generation();
  Registry* found = current_registry.load(std::memory_order_acquire);
  if (found && found->fork_generation == generation) return *found;
  auto fresh = std::make_unique<Registry>(generation);
  if (current_registry.compare_exchange_strong(found, fresh.get(), std::memory_order_acq_rel)) {
    // A child inherits the parent's atexit registration.
    if (!found) std::atexit(interrupt_live_groups);
    return *fresh.release();
  }
  return *found;
}

}  // namespace

void add_live_group(const std::shared_ptr<GroupEngine>& group) {
  Registry& live = registry();
  std::lock_guard lock(live.mutex);
  if (live.groups.size() >= live.prune_at) {
    std::erase_if(live.groups, [](const std::weak_ptr<GroupEngine>& g) { return g.expired(); });
    live.prune_at = std::max<std::size_t>(64, 2 * live.groups.size());
  }
  live.groups.push_back(group);
}

void interrupt_live_groups() {
  Registry* live = current_registry.load(std::memory_order_acquire);
  if (!live || live->fork_generation != fork_generation()) return;
  std::vector<std::weak_ptr<GroupEngine>> groups;
  {
    std::lock_guard lock(live->mutex);
    groups.swap(live->groups);
  }
  for (const std::weak_ptr<GroupEngine>& weak : groups) {
    if (const std::shared_ptr<GroupEngine> group = weak.lock()) group->interrupt();
  }
}

}  // namespace symm
