// SYMM_AUDIT: a file a rank with a line for every collective that has ended, which says what went
// in and what came out by a hash of its bytes. docs/diagnostics.md describes the lines; `python -m
// torch_symm.audit` compares the files of two runs.
//
// The file belongs to the process and its global rank: groups of all names write to it, and a line
// that follows another one ended after it. Each line is in the file when its call returns.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/core/collective.hpp"

namespace symm {

// SYMM_AUDIT: what the names of the files begin with; null where it is not set. Throws
// Error(kInvalidArgument) where it is empty.
const char* audit_prefix_in_environment();

class AuditFile {
 public:
  // The file of this process for `global_rank`, begun by the first call; null where SYMM_AUDIT is
  // not set. Throws Error(kInvalidArgument) where it cannot be written.
  static AuditFile* of_process(std::int64_t global_rank);

  // Begins a group; returns its number in the file.
  int add_group(const std::string& name, int rank, const std::vector<std::int64_t>& global_ranks);

  struct Call {
    int group = 0;
    const char* place = "";      // "host", or "device": calls there are counted apart
    std::uint64_t sequence = 0;  // as errors name it
    std::string what;            // describe_audited()
    std::uint64_t input = 0;
    std::uint64_t output = 0;
  };
  void add(const Call& call);

 private:
  explicit AuditFile(const std::string& path);
  void write(const std::string& line);

  std::mutex mutex_;  // guards what follows
  std::FILE* file_ = nullptr;
  int groups_ = 0;
};

// "all_reduce(float32, SUM, count 8)".
std::string describe_audited(const CollectiveArgs& args);

}  // namespace symm
