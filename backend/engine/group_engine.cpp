#include "backend/engine/group_engine.hpp"

#include <utility>

#include "backend/engine/live_groups.hpp"
#include "symm_mem/process/blocking_section.hpp"
#include "symm_mem/process/fork_guard.hpp"

namespace symm {

namespace {

// How long the end of a group waits for a thread that is inside a user's callback.
constexpr std::chrono::milliseconds kStopLimit{5'000};

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
      timeout_ms_(timeout.count()),
      fork_generation_(fork_generation()) {}

GroupEngine::~GroupEngine() {
  if (is_forked_child()) {
    queue_.abandon();
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
    throw Error(ErrorCode::kAborted,
                "this process group was made before fork() and belongs to the parent process; "
                "a child must make its own");
  }
  throw Error(ErrorCode::kAborted, "process group '" + communicator_->config().group_name +
                                       "' (rank " + std::to_string(communicator_->rank()) +
                                       ") was destroyed; no further operation is possible");
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
}

void GroupEngine::shutdown() {
  if (is_forked_child()) return;
  closed_.store(true, std::memory_order_release);
  blocking_section([this] {
    queue_.drain();
    if (DeviceGroup* device = communicator_->device_group_if_made()) device->drain();
    close("the process group was destroyed while the operation waited");
  });
}

void GroupEngine::interrupt() {
  if (is_forked_child()) return;
  blocking_section([this] { close("the process is ending while the operation waited"); });
}

void GroupEngine::abort(const std::string& reason) {
  if (is_forked_child()) return;
  communicator_->abort(reason);
}

}  // namespace symm
