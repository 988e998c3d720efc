#include "backend/engine/group/settings.hpp"

#include <cstdlib>
#include <string>

#include "kernels/core/error.hpp"
#include "kernels/core/platform.hpp"
#include "kernels/protocol/device_layout.hpp"
#include "symm_mem/device/memory_handle.hpp"
#include "symm_mem/device/multicast.hpp"
#include "symm_mem/process/byte_codec.hpp"

namespace symm {

namespace {

constexpr std::size_t kMaxTableText = 48 * 1024;
constexpr std::size_t kWorkspaceUnit = 64 * 1024;
constexpr std::size_t kLeastWorkspace = 512 * 1024;
constexpr std::size_t kMostWorkspace = std::size_t{1} << 30;

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

}  // namespace

Algorithm algorithm_in_environment() {
  const char* const name = std::getenv("SYMM_ALGO");
  return name == nullptr ? Algorithm::kAuto : parse_algorithm(name, "SYMM_ALGO");
}

bool deterministic_in_environment() {
  const char* const value = std::getenv("SYMM_DETERMINISTIC");
  const std::string text = value == nullptr ? "1" : value;
  if (text != "0" && text != "1") {
    refuse("SYMM_DETERMINISTIC: expected 0 or 1, got '" + text + "'");
  }
  return text == "1";
}

PlanTables tables_in_environment() {
  const char* const path = std::getenv("SYMM_TUNING_FILE");
  return path == nullptr ? PlanTables{} : PlanTables::from_file(path);
}

Environment Environment::read() {
  static_cast<void>(handle_preference());  // throws for a wrong value, as the next one does
  static_cast<void>(multicast_disabled());
  return {.algorithm = algorithm_in_environment(),
          .deterministic = deterministic_in_environment(),
          .tables = tables_in_environment()};
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
  if (config.workspace_bytes < kLeastWorkspace || config.workspace_bytes > kMostWorkspace ||
      config.workspace_bytes % kWorkspaceUnit != 0) {
    refuse("workspace_bytes: expected a multiple of 65536 from 524288 to 1073741824, got " +
           std::to_string(config.workspace_bytes));
  }
  if (config.device_workspace_bytes < kLeastDeviceWorkspace ||
      config.device_workspace_bytes > kMostDeviceWorkspace ||
      config.device_workspace_bytes % kDeviceWorkspaceUnit != 0) {
    refuse("device_workspace_bytes: expected a multiple of " +
           std::to_string(kDeviceWorkspaceUnit) + " from " + std::to_string(kLeastDeviceWorkspace) +
           " to " + std::to_string(kMostDeviceWorkspace) + ", got " +
           std::to_string(config.device_workspace_bytes));
  }
}

Agreement Agreement::proposed_by(const CommunicatorConfig& config, const Environment& environment) {
  return {
      .algorithm = config.algorithm != Algorithm::kAuto ? config.algorithm : environment.algorithm,
      .workspace_bytes = config.workspace_bytes,
      .device_workspace_bytes = config.device_workspace_bytes,
      .deterministic = config.deterministic && environment.deterministic,
      .tables = environment.tables};
}

std::vector<std::uint8_t> Agreement::encode() const {
  ByteWriter writer;
  writer.integer(static_cast<std::uint32_t>(algorithm));
  writer.integer(workspace_bytes);
  writer.integer(device_workspace_bytes);
  writer.integer(static_cast<std::uint32_t>(deterministic));
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
  const auto deterministic = reader.integer<std::uint32_t>();
  const std::string text = reader.text(kMaxTableText);
  if (!reader.finished() || algorithm >= kAlgorithmCount || deterministic > 1) {
    throw Error(ErrorCode::kSecurity, "a rank's settings in the Store cannot be read");
  }
  return {.algorithm = static_cast<Algorithm>(algorithm),
          .workspace_bytes = workspace_bytes,
          .device_workspace_bytes = device_workspace_bytes,
          .deterministic = deterministic != 0,
          .tables = text.empty() ? PlanTables{}
                                 : PlanTables::from_json(text, "the tuning tables of rank 0")};
}

}  // namespace symm
