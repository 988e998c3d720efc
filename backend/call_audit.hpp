// What SYMM_AUDIT writes of a group's collectives: reads their buffers on the host or on a GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/collective_call.hpp"
#include "backend/engine/record/audit_file.hpp"

namespace symm {

class CallAudit {
 public:
  // null where SYMM_AUDIT is not set. Throws as AuditFile::of_process().
  static std::shared_ptr<CallAudit> of_group(const std::string& name, int rank,
                                             const std::vector<std::int64_t>& global_ranks);
  CallAudit(AuditFile& file, int group, int rank) : file_(file), group_(group), rank_(rank) {}

  // Runs `body` as call `sequence` between a look at its input and one at its output, then writes
  // the line. On a GPU the current stream is the call's, and the host waits for it twice; a call
  // in a graph capture throws kUnsupported.
  template <typename Body>
  void around(const CollectiveCall& call, std::uint64_t sequence, Body&& body) {
    const std::uint64_t input = input_hash(call);
    body();
    write(call, sequence, input);
  }

 private:
  std::uint64_t input_hash(const CollectiveCall& call) const;
  void write(const CollectiveCall& call, std::uint64_t sequence, std::uint64_t input);

  AuditFile& file_;
  const int group_;
  const int rank_;
};

}  // namespace symm
