#include "backend/engine/group_engine.hpp"

#include <cstdlib>
#include <mutex>
#include <utility>
#include <vector>

#include "symm_mem/process/blocking_section.hpp"
#include "symm_mem/process/fork_guard.hpp"

namespace symm {

namespace {

// How long the end of a group waits for a thread that is inside a user's callback.
constexpr std::chrono::milliseconds kStopLimit{5'000};

// The failure of a group whose operation waits behind a callback that waits for it.
Error held_too_long(const std::weak_ptr<Communicator>& weak, std::chrono::milliseconds limit) {
  const std::shared_ptr<Communicator> communicator = weak.lock();
  if (!communicator) return {ErrorCode::kAborted, "the process group was destroyed"};
  const std::chrono::duration<double> seconds = limit;
  return communicator->time_out("an operation did not begin within " +
                                std::to_string(seconds.count()) +
                                " s because a callback of the one before it has not returned; a "
                                "callback may wait for operations that it issues itself, not for "
                                "the future of one that was issued outside of it");
}

// The groups that exist.
struct Registry {
  explicit Registry(std::uint32_t generation) : fork_generation(generation) {}

  const std::uint32_t fork_generation;
  std::mutex mutex;
  std::vector<std::weak_ptr<GroupEngine>> groups;
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

// Does not keep the group alive.
void add_live_group(const std::shared_ptr<GroupEngine>& group) {
  Registry& live = registry();
  std::lock_guard lock(live.mutex);
  std::erase_if(live.groups, [](const std::weak_ptr<GroupEngine>& g) { return g.expired(); });
  live.groups.push_back(group);
}

}  // namespace

std::shared_ptr<GroupEngine> GroupEngine::create(KeyValueStore& store, CommunicatorConfig config) {
  const std::chrono::milliseconds timeout = config.timeout;
  auto communicator = std::make_shared<Communicator>(store, std::move(config));
  std::shared_ptr<GroupEngine> engine(new GroupEngine(std::move(communicator), timeout));
  add_live_group(engine);
  return engine;
}

GroupEngine::GroupEngine(std::shared_ptr<Communicator> communicator,
                         std::chrono::milliseconds timeout)
    : communicator_(std::move(communicator)),
      queue_(AsyncQueue::Callbacks::kHoldNext,
             [weak = std::weak_ptr(communicator_)](std::chrono::milliseconds limit) {
               return held_too_long(weak, limit);
             }),
      transfer_callbacks_(std::make_shared<AsyncQueue>(AsyncQueue::Callbacks::kRunNext)),
      completion_hooks_(std::make_shared<AsyncQueue>()),
      timeout_ms_(timeout.count()),
      fork_generation_(fork_generation()) {}

GroupEngine::~GroupEngine() {
  if (is_forked_child()) {
    queue_.abandon();
    transfer_callbacks_->abandon();
    completion_hooks_->abandon();
    [[maybe_unused]] const auto* leaked =
        new std::shared_ptr<Communicator>(std::move(communicator_));
    return;
  }
  blocking_section([this] {
    close("the process group was dropped while the operation waited");
    communicator_.reset();
  });
}

bool GroupEngine::is_forked_child() const { return fork_generation() != fork_generation_; }

void GroupEngine::throw_unusable() const {
  if (is_forked_child()) {
    throw made_by_parent();
  }
  const LocalGroup& group = *communicator_->local_group();
  throw Error(ErrorCode::kAborted, "process group '", group.group_name(), "' (",
              group.rank_name(group.rank()), ") was destroyed; no further operation is possible");
}

void GroupEngine::set_timeout(std::chrono::milliseconds timeout) {
  if (timeout.count() <= 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "timeout: expected more than 0 ms, got " + std::to_string(timeout.count()) + " ms");
  }
  timeout_ms_.store(timeout.count(), std::memory_order_relaxed);
}

void GroupEngine::close(const char* why) {
  closed_.store(true, std::memory_order_release);
  communicator_->shutdown();
  queue_.stop(Error(ErrorCode::kAborted, why), kStopLimit);
  transfer_callbacks_->stop(Error(ErrorCode::kAborted, why), kStopLimit);
  completion_hooks_->stop(Error(ErrorCode::kAborted, why), kStopLimit);
}

void GroupEngine::suspend() {
  check_usable();
  blocking_call([this] {
    queue_.drain();
    communicator_->suspend(timeout());
    return true;
  });
}

void GroupEngine::resume() {
  check_exists();
  blocking_call([this] {
    communicator_->resume(timeout());
    return true;
  });
}

void GroupEngine::shutdown() {
  if (is_forked_child()) return;
  closed_.store(true, std::memory_order_release);
  blocking_section([this] {
    queue_.drain();
    if (DeviceGroup* device = communicator_->device_group_if_made()) device->drain();
    LocalGroup& group = *communicator_->local_group();
    if (!group.failed()) group.pending_work().finish();
    close("the process group was destroyed while the operation waited");
  });
}

void GroupEngine::interrupt() {
  if (is_forked_child()) return;
  if (when_interrupted_) when_interrupted_();
  blocking_section([this] { close("the process is ending while the operation waited"); });
}

void GroupEngine::abort(const std::string& reason) {
  if (is_forked_child()) return;
  communicator_->abort(reason);
  if (when_interrupted_) when_interrupted_();
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
