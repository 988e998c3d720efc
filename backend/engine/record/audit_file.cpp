#include "backend/engine/record/audit_file.hpp"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>

#include "kernels/core/error.hpp"
#include "symm_mem/process/fork_guard.hpp"
#include "symm_mem/process/printable_text.hpp"

namespace symm {

namespace {

constexpr int kAuditFormat = 1;

// The files of one process; never freed, since a group may end at any time.
struct AuditFiles {
  std::mutex mutex;
  std::map<std::pair<std::uint32_t, std::string>, std::unique_ptr<AuditFile>> by_path;
};

AuditFiles& audit_files() {
  static auto* const files = new AuditFiles;
  return *files;
}

// As a string of JSON; `text` may be anything.
std::string json_string(const std::string& text) {
  std::string quoted = "\"";
  for (const char letter : printable(text)) {
    if (letter == '"' || letter == '\\') quoted += '\\';
    quoted += letter;
  }
  return quoted + "\"";
}

std::string hexadecimal(std::uint64_t hash) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

}  // namespace

const char* audit_prefix_in_environment() {
  const char* const prefix = std::getenv("SYMM_AUDIT");
  if (prefix == nullptr || *prefix != '\0') return prefix;
  throw Error(
      ErrorCode::kInvalidArgument,
      "SYMM_AUDIT: expected the path of a file, to which '.' and the rank are added, got ''");
}

AuditFile* AuditFile::of_process(std::int64_t global_rank) {
  const char* const prefix = audit_prefix_in_environment();
  if (prefix == nullptr) return nullptr;
  const std::string path = text_of(prefix, ".", global_rank);
  AuditFiles& files = audit_files();
  const std::lock_guard lock(files.mutex);
  std::unique_ptr<AuditFile>& file = files.by_path[{fork_generation(), path}];
  if (!file) file.reset(new AuditFile(path));
  return file.get();
}

AuditFile::AuditFile(const std::string& path) : file_(std::fopen(path.c_str(), "we")) {
  if (file_ != nullptr) return;
  throw Error(ErrorCode::kInvalidArgument, "SYMM_AUDIT: cannot write ", printable(path), ": ",
              std::strerror(errno));
}

int AuditFile::add_group(const std::string& name, int rank,
                         const std::vector<std::int64_t>& global_ranks) {
  std::string ranks;
  for (const std::int64_t global : global_ranks) {
    ranks += (ranks.empty() ? "" : ", ") + std::to_string(global);
  }
  const std::lock_guard lock(mutex_);
  const int number = groups_++;
  write(text_of(R"({"audit": )", kAuditFormat, R"(, "group": )", number, R"(, "name": )",
                json_string(name), R"(, "rank": )", rank, R"(, "world": )", global_ranks.size(),
                R"(, "global_ranks": [)", ranks, "]}\n"));
  return number;
}

void AuditFile::add(const Call& call) {
  const std::string line =
      text_of(R"({"group": )", call.group, R"(, "on": ")", call.place, R"(", "seq": )",
              call.sequence, R"(, "call": )", json_string(call.what), R"(, "in": ")",
              hexadecimal(call.input), R"(", "out": ")", hexadecimal(call.output), "\"}\n");
  const std::lock_guard lock(mutex_);
  write(line);
}

void AuditFile::write(const std::string& line) {
  const bool well = std::fwrite(line.data(), 1, line.size(), file_) == line.size();
  if (std::fflush(file_) == 0 && well) return;
  throw Error(ErrorCode::kSystem, "SYMM_AUDIT: writing a line failed: ", std::strerror(errno));
}

std::string describe_audited(const CollectiveArgs& args) {
  std::string text(collective_name(args.kind));
  if (args.kind == CollectiveKind::kBarrier) return text;
  text += text_of("(", dtype_name(args.dtype));
  if (reduces(args.kind)) text += text_of(", ", reduce_op_name(args.op));
  const auto list = [&](const char* name, std::span<const Part> parts) {
    if (parts.empty()) return;
    text += text_of(", ", name);
    for (const Part& part : parts) text += text_of(" ", part.count);
  };
  if (args.kind == CollectiveKind::kAllToAll) {
    list("to", args.input_parts);
    list("from", args.output_parts);
  } else {
    text += text_of(", count ", args.count);
  }
  if (has_root(args.kind)) text += text_of(", root ", args.root);
  return text + ")";
}

}  // namespace symm
