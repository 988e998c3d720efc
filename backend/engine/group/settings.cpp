#include "backend/engine/group/settings.hpp"

#include <cstdlib>
#include <string>

#include "kernels/core/error.hpp"
#include "kernels/core/platform.hpp"
#include "kernels/protocol/device_layout.hpp"
#include "symm_mem/device/memory_handle.hpp"
#include "symm_mem/device/multicast.hpp"
#include "symm_mem/group/device_signals.hpp"
#include "symm_mem/group/failure_exit.hpp"
#include "symm_mem/process/byte_codec.hpp"
#include "symm_mem/process/environment_flag.hpp"
#include "symm_mem/process/regular_file.hpp"

namespace symm {

namespace {

constexpr std::size_t kMaxTuningFile = 16 * 1024 * 1024;
constexpr std::size_t kMaxTableText = 48 * 1024;
constexpr SizeRange kWorkspaceSizes{
    .least = 512 * 1024, .most = std::size_t{1} << 30, .unit = 64 * 1024};

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

}  // namespace

Algorithm algorithm_in_environment() {
  const char* const name = std::getenv("SYMM_ALGO");
  return name == nullptr ? Algorithm::kAuto : parse_algorithm(name, "SYMM_ALGO");
}

bool deterministic_in_environment() { return flag_in_environment("SYMM_DETERMINISTIC", true); }

bool nan_check_in_environment() { return flag_in_environment("SYMM_NAN_CHECK", false); }

bool poison_in_environment() { return flag_in_environment("SYMM_POISON", true); }

bool return_work_in_environment() { return flag_in_environment("SYMM_RETURN_WORK", false); }

const char* wire_choice_name(WireChoice choice) {
  constexpr const char* kNames[kWireChoiceCount] = {"ll", "line", "auto"};
  return kNames[static_cast<std::size_t>(choice)];
}

WireChoice wire_in_environment() {
  const char* const value = std::getenv("SYMM_WIRE");
  if (value == nullptr) return WireChoice::kAuto;
  for (int i = 0; i < kWireChoiceCount; ++i) {
    const auto choice = static_cast<WireChoice>(i);
    if (std::string(wire_choice_name(choice)) == value) return choice;
  }
  refuse("SYMM_WIRE: expected ll, line or auto, got '" + std::string(value) + "'");
}

const char* single_copy_name(SingleCopy choice) {
  constexpr const char* kNames[kSingleCopyCount] = {"0", "auto", "1"};
  return kNames[static_cast<std::size_t>(choice)];
}

SingleCopy single_copy_in_environment() {
  const char* const value = std::getenv("SYMM_SINGLE_COPY");
  if (value == nullptr) return SingleCopy::kAuto;
  for (int i = 0; i < kSingleCopyCount; ++i) {
    const auto choice = static_cast<SingleCopy>(i);
    if (std::string(single_copy_name(choice)) == value) return choice;
  }
  refuse("SYMM_SINGLE_COPY: expected 0, 1 or auto, got '" + std::string(value) + "'");
}

PlanTables tables_in_environment() {
  const char* const path = std::getenv("SYMM_TUNING_FILE");
  if (path == nullptr) return {};
  return PlanTables::from_json(read_regular_file(path, kMaxTuningFile, "SYMM_TUNING_FILE"),
                               std::string("SYMM_TUNING_FILE ") + path);
}

void check_size(const std::string& option, std::int64_t bytes, const SizeRange& range) {
  const auto size = static_cast<std::size_t>(bytes);
  if (bytes < 0 || size < range.least || size > range.most || size % range.unit != 0) {
    refuse(option + ": expected a multiple of " + std::to_string(range.unit) + " from " +
           std::to_string(range.least) + " to " + std::to_string(range.most) + ", got " +
           std::to_string(bytes));
  }
}

void check_config(const CommunicatorConfig& config) {
  if (config.world_size < 1 || config.world_size > kMaxRanks) {
    refuse("world_size: expected 1 to " + std::to_string(kMaxRanks) + " ranks on one host, got " +
           std::to_string(config.world_size));
  }
  if (config.rank < 0 || config.rank >= config.world_size) {
    refuse("rank: expected 0 to " + std::to_string(config.world_size - 1) + ", got " +
           std::to_string(config.rank));
  }
  if (!config.global_ranks.empty() &&
      config.global_ranks.size() != static_cast<std::size_t>(config.world_size)) {
    refuse("global_ranks: expected " + std::to_string(config.world_size) + " entries, got " +
           std::to_string(config.global_ranks.size()));
  }
  if (config.timeout.count() <= 0) {
    refuse("timeout: expected more than 0 ms, got " + std::to_string(config.timeout.count()));
  }
  check_size("workspace_bytes", static_cast<std::int64_t>(config.workspace_bytes), kWorkspaceSizes);
  check_size("device_workspace_bytes", static_cast<std::int64_t>(config.device_workspace_bytes),
             {kLeastDeviceWorkspace, kMostDeviceWorkspace, kDeviceWorkspaceUnit});
  if (config.max_device_blocks < 1 || config.max_device_blocks > kMaxChannels) {
    refuse("max_device_blocks: expected 1 to " + std::to_string(kMaxChannels) + ", got " +
           std::to_string(config.max_device_blocks));
  }
}

Agreement Agreement::proposed_by(const CommunicatorConfig& config) {
  static_cast<void>(handle_preference());  // throws for a wrong value, as the next ones do
  static_cast<void>(multicast_disabled());
  static_cast<void>(poison_in_environment());
  static_cast<void>(failure_grace_in_environment());
  static_cast<void>(signal_trap_in_environment());
  const Algorithm forced = algorithm_in_environment();
  const bool deterministic = deterministic_in_environment();
  return {.algorithm = config.algorithm != Algorithm::kAuto ? config.algorithm : forced,
          .workspace_bytes = config.workspace_bytes,
          .device_workspace_bytes = config.device_workspace_bytes,
          .max_device_blocks = static_cast<std::uint32_t>(config.max_device_blocks),
          .deterministic = config.deterministic && deterministic,
          .wire = wire_in_environment(),
          .single_copy = single_copy_in_environment(),
          .memory_probe = own_memory_probe(),
          .tables = tables_in_environment()};
}

std::vector<std::uint8_t> Agreement::encode() const {
  ByteWriter writer;
  writer.integer(static_cast<std::uint32_t>(algorithm));
  writer.integer(workspace_bytes);
  writer.integer(device_workspace_bytes);
  writer.integer(max_device_blocks);
  writer.integer(static_cast<std::uint32_t>(deterministic));
  writer.integer(static_cast<std::uint32_t>(wire));
  writer.integer(static_cast<std::uint32_t>(single_copy));
  writer.integer(memory_probe.address);
  writer.integer(memory_probe.word);
  const std::string text = tables == PlanTables{} ? "" : tables.to_json();
  if (text.size() > kMaxTableText) {
    refuse("tuning tables: expected at most " + std::to_string(kMaxTableText) +
           " bytes as JSON, got " + std::to_string(text.size()));
  }
  writer.sized(text);
  return writer.take();
}

Agreement Agreement::decode(std::span<const std::uint8_t> bytes) {
  ByteReader reader(bytes);
  const auto algorithm = reader.integer<std::uint32_t>();
  const auto workspace_bytes = reader.integer<std::uint64_t>();
  const auto device_workspace_bytes = reader.integer<std::uint64_t>();
  const auto max_device_blocks = reader.integer<std::uint32_t>();
  const auto deterministic = reader.integer<std::uint32_t>();
  const auto wire = reader.integer<std::uint32_t>();
  const auto single_copy = reader.integer<std::uint32_t>();
  const auto probe_address = reader.integer<std::uint64_t>();
  const auto probe_word = reader.integer<std::uint64_t>();
  const std::string text = reader.text(kMaxTableText);
  if (!reader.finished() || algorithm >= kAlgorithmCount || max_device_blocks < 1 ||
      max_device_blocks > kMaxChannels || deterministic > 1 || wire >= kWireChoiceCount ||
      single_copy >= kSingleCopyCount) {
    throw Error(ErrorCode::kSecurity, "its settings in the Store cannot be read");
  }
  return {.algorithm = static_cast<Algorithm>(algorithm),
          .workspace_bytes = workspace_bytes,
          .device_workspace_bytes = device_workspace_bytes,
          .max_device_blocks = max_device_blocks,
          .deterministic = deterministic != 0,
          .wire = static_cast<WireChoice>(wire),
          .single_copy = static_cast<SingleCopy>(single_copy),
          .memory_probe = {probe_address, probe_word},
          .tables = text.empty() ? PlanTables{}
                                 : PlanTables::from_json(text, "the tuning tables of rank 0")};
}

}  // namespace symm
