#include <symm/ProcessGroupSymmOptions.hpp>

#include <cstdlib>

#include "backend/engine/group/settings.hpp"
#include "backend/engine/hosts/engine_choice.hpp"
#include "kernels/plan/algorithm.hpp"
#include "kernels/protocol/device_layout.hpp"
#include "symm_mem/c10d/errors.hpp"

namespace symm {

namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw_torch_error(Error(ErrorCode::kInvalidArgument, message));
}

std::size_t checked_bytes(const std::string& option, std::int64_t bytes, const SizeRange& range) {
  with_torch_errors([&] { check_size("the option " + option, bytes, range); });
  return static_cast<std::size_t>(bytes);
}

std::string checked_engine(const std::string& option, const std::string& text) {
  with_torch_errors([&] { parse_engine_wish(text, option); });
  return text;
}

}  // namespace

ProcessGroupSymmOptions::ProcessGroupSymmOptions(std::chrono::milliseconds timeout)
    : c10d::Backend::Options("symm", timeout) {}

c10::intrusive_ptr<ProcessGroupSymmOptions> ProcessGroupSymmOptions::from(
    const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  if (!options) return c10::make_intrusive<ProcessGroupSymmOptions>();
  if (const auto* own = dynamic_cast<const ProcessGroupSymmOptions*>(options.get())) {
    return c10::make_intrusive<ProcessGroupSymmOptions>(*own);
  }
  auto copy = c10::make_intrusive<ProcessGroupSymmOptions>(options->timeout);
  copy->group_name = options->group_name;
  copy->global_ranks_in_group = options->global_ranks_in_group;
  return copy;
}

void ProcessGroupSymmOptions::set_algorithm(const std::string& name) {
  with_torch_errors([&] { parse_algorithm(name, "the option algorithm"); });
  algorithm_ = name;
}

std::string ProcessGroupSymmOptions::inter_host() const {
  const char* const given = std::getenv("SYMM_INTER_HOST");
  if (inter_host_ != "auto" || given == nullptr) return inter_host_;
  return checked_engine("SYMM_INTER_HOST", given);
}

void ProcessGroupSymmOptions::set_inter_host(const std::string& name) {
  inter_host_ = checked_engine("the option inter_host", name);
}

void ProcessGroupSymmOptions::set_workspace_bytes(std::int64_t bytes) {
  workspace_bytes_ = checked_bytes(
      "workspace_bytes", bytes,
      {.least = kMinWorkspaceBytes, .most = kMaxWorkspaceBytes, .unit = kWorkspaceUnit});
}

void ProcessGroupSymmOptions::set_device_workspace_bytes(std::int64_t bytes) {
  device_workspace_bytes_ = checked_bytes(
      "device_workspace_bytes", bytes,
      {.least = kLeastDeviceWorkspace, .most = kMostDeviceWorkspace, .unit = kDeviceWorkspaceUnit});
}

void ProcessGroupSymmOptions::set_max_device_blocks(std::int64_t blocks) {
  static_assert(kMostDeviceBlocks == kMaxChannels);
  if (blocks < 1 || blocks > kMostDeviceBlocks) {
    refuse("the option max_device_blocks: expected 1 to " + std::to_string(kMostDeviceBlocks) +
           ", got " + std::to_string(blocks));
  }
  max_device_blocks_ = static_cast<int>(blocks);
}

void ProcessGroupSymmOptions::validate_timeout() const {
  if (timeout.count() <= 0) {
    refuse("the option timeout: expected more than 0 ms, got " + std::to_string(timeout.count()) +
           " ms");
  }
}

void ProcessGroupSymmOptions::validate(int world_size) const {
  validate_timeout();
  if (!global_ranks_in_group.empty() &&
      global_ranks_in_group.size() != static_cast<std::size_t>(world_size)) {
    refuse("the option global_ranks_in_group: expected none or one entry for each of the " +
           std::to_string(world_size) + " ranks, got " +
           std::to_string(global_ranks_in_group.size()));
  }
}

}  // namespace symm
