// The settings of a group: environment and options, parsed once, and what all ranks must share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "backend/engine/group/communicator_config.hpp"
#include "kernels/plan/plan.hpp"
#include "kernels/protocol/device_layout.hpp"
#include "symm_mem/process/process_memory.hpp"

namespace symm {

// SYMM_ALGO: an algorithm's name, which forces it for every collective that has it. This and the
// next three throw Error(kInvalidArgument) that names the variable.
Algorithm algorithm_in_environment();
// SYMM_DETERMINISTIC. 0: algorithms may be named whose sums have other bits; 1: as unset.
bool deterministic_in_environment();
// SYMM_POISON. 0: a GPU's kernels that give up leave their outputs as they are; 1: as unset.
bool poison_in_environment();
// SYMM_RETURN_WORK. 1: calls return a Work also where nothing is to be waited for. Throws
// likewise.
bool return_work_in_environment();
// SYMM_NAN_CHECK. 1: inputs with NaN are refused. Throws likewise.
bool nan_check_in_environment();
// SYMM_TUNING_FILE: path of JSON tuning tables (PlanTables::from_json), a regular file of at most
// 16 MiB.
PlanTables tables_in_environment();
// SYMM_WIRE. kAuto where it is unset.
enum class WireChoice : std::uint8_t {
  kLL,
  kLine,  // refused where two GPUs of the group have no NVLink between them
  kAuto,  // line where that would not be refused
};
inline constexpr int kWireChoiceCount = 3;
const char* wire_choice_name(WireChoice choice);
WireChoice wire_in_environment();

// SYMM_SINGLE_COPY: whether ranks read ordinary memory of each other's processes (NOTE [Reading a
// peer's process] in peer_memory.hpp). kAuto where it is unset. Throws likewise.
enum class SingleCopy : std::uint8_t {
  kNever,   // on one rank: on none
  kAuto,    // where another rank says kAlways
  kAlways,  // on one rank: on all; refused where one cannot
};
inline constexpr int kSingleCopyCount = 3;
const char* single_copy_name(SingleCopy choice);
SingleCopy single_copy_in_environment();

// A size that a program chooses, in bytes.
struct SizeRange {
  std::size_t least;
  std::size_t most;
  std::size_t unit;
};

// This and the next throw Error(kInvalidArgument) that names the option, what is expected and what
// came.
void check_size(const std::string& option, std::int64_t bytes, const SizeRange& range);
void check_config(const CommunicatorConfig& config);

// What must be the same on every rank. Rank 0 decides the algorithm, the wire and the tables; the
// rest must have been given alike.
struct Agreement {
  Algorithm algorithm = Algorithm::kAuto;
  std::uint64_t workspace_bytes = 0;
  std::uint64_t device_workspace_bytes = 0;
  std::uint32_t max_device_blocks = kMaxChannels;
  bool deterministic = true;  // false where the option or the environment waives it
  WireChoice wire = WireChoice::kAuto;
  SingleCopy single_copy = SingleCopy::kAuto;  // each rank's own
  MemoryProbe memory_probe;                    // likewise
  PlanTables tables;

  // Reads the environment. SYMM_HANDLE_TYPE and SYMM_DISABLE_MULTICAST are checked with it, and
  // read where memory is made and shared.
  static Agreement proposed_by(const CommunicatorConfig& config);
  std::vector<std::uint8_t> encode() const;
  // Hostile input. Throws Error(kSecurity).
  static Agreement decode(std::span<const std::uint8_t> bytes);
};

}  // namespace symm
