// The settings of a group: environment and options, parsed once, and what all ranks must share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/engine/group/communicator_config.hpp"
#include "kernels/plan/plan.hpp"

namespace symm {

// SYMM_ALGO: an algorithm's name, which forces it for every collective that has it. This and the
// next two throw Error(kInvalidArgument) that names the variable.
Algorithm algorithm_in_environment();
// SYMM_DETERMINISTIC. 0: algorithms may be named whose sums have other bits; 1: as unset.
bool deterministic_in_environment();
// SYMM_TUNING_FILE: path of JSON tuning tables (PlanTables::from_json).
PlanTables tables_in_environment();

// The above. SYMM_HANDLE_TYPE and SYMM_DISABLE_MULTICAST are checked with them, and read where
// memory is made and shared.
struct Environment {
  Algorithm algorithm = Algorithm::kAuto;
  bool deterministic = true;
  PlanTables tables;

  static Environment read();
};

// Throws Error(kInvalidArgument) that names the option, what is expected and what came.
void check_config(const CommunicatorConfig& config);

// What must be the same on every rank. Rank 0 decides the algorithm and the tables; the rest must
// have been given alike.
struct Agreement {
  Algorithm algorithm = Algorithm::kAuto;
  std::uint64_t workspace_bytes = 0;
  std::uint64_t device_workspace_bytes = 0;
  bool deterministic = true;  // false where the option or the environment waives it
  PlanTables tables;

  static Agreement proposed_by(const CommunicatorConfig& config, const Environment& environment);
  std::vector<std::uint8_t> encode() const;
  // Hostile input. Throws Error(kSecurity).
  static Agreement decode(std::span<const std::uint8_t> bytes);
};

}  // namespace symm
