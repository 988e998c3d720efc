#include "symm_mem/bootstrap/private_directory.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <vector>

#include "kernels/core/error.hpp"
#include "symm_mem/bootstrap/host_identity.hpp"
#include "symm_mem/bootstrap/peer_record.hpp"
#include "symm_mem/process/fork_guard.hpp"
#include "symm_mem/process/system_error.hpp"

namespace symm {
namespace {

constexpr char kUnknownHost[] = "00000000";
constexpr char kPattern[] = "symm-mesh-00000000-XXXXXX";
constexpr char kSocket[] = "s";
constexpr int kAttempts = 16;

// Eight hexadecimal digits of this boot of the host.
std::string own_host() {
  const std::string host = host_boot_id().substr(0, sizeof(kUnknownHost) - 1);
  return host.empty() ? kUnknownHost : host;
}

std::vector<std::string> candidate_bases() {
  std::vector<std::string> bases;
  const char* const chosen = std::getenv("TMPDIR");
  if (chosen != nullptr && chosen[0] == '/') {
    const std::string base(chosen);
    const std::size_t longest = base.size() + 1 + sizeof(kPattern) + sizeof(kSocket);
    if (longest <= PeerRecord::kMaxSocketPath) bases.push_back(base);
  }
  bases.emplace_back("/tmp");
  return bases;
}

GuardedDescriptor open_directory(const std::string& path) {
  return GuardedDescriptor::open(
      [&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC); });
}

bool lock_directory(const GuardedDescriptor& directory) {
  return ::flock(directory.get(), LOCK_EX | LOCK_NB) == 0;
}

// False when somebody has removed the directory, or put another one in its place.
bool is_still_at(const std::string& path, const GuardedDescriptor& directory) {
  struct stat here {};
  struct stat opened {};
  return ::lstat(path.c_str(), &here) == 0 && ::fstat(directory.get(), &opened) == 0 &&
         here.st_ino == opened.st_ino && here.st_dev == opened.st_dev;
}

void remove_socket_and_directory(const std::string& path) {
  ::unlink((path + "/" + kSocket).c_str());
  ::rmdir(path.c_str());
}

void remove_if_orphan(const std::string& path) {
  const GuardedDescriptor directory = open_directory(path);
  struct stat status {};
  if (!directory.valid() || ::fstat(directory.get(), &status) != 0) return;
  if (status.st_uid != ::geteuid() || (status.st_mode & 0777) != 0700) return;
  if (lock_directory(directory)) remove_socket_and_directory(path);
}

void remove_orphans(const std::string& base, const std::string& prefix) {
  std::error_code ignored;
  for (std::filesystem::directory_iterator entry(base, ignored), end; !ignored && entry != end;
       entry.increment(ignored)) {
    const std::string name = entry->path().filename().string();
    if (name.size() == sizeof(kPattern) - 1 && name.starts_with(prefix)) {
      remove_if_orphan(entry->path().string());
    }
  }
}

// True once in every process.
bool is_first_in_process() {
  static std::atomic<std::int64_t> last_generation{-1};
  const std::int64_t now = fork_generation();
  return last_generation.exchange(now) != now;
}

}  // namespace

PrivateDirectory::PrivateDirectory() {
  const std::string host = own_host();
  const std::string prefix = "symm-mesh-" + host + "-";
  const bool removes = is_first_in_process() && host != kUnknownHost;
  std::string tried;
  int error = 0;
  for (const std::string& base : candidate_bases()) {
    if (removes) remove_orphans(base, prefix);
    // Another process may take a directory for an orphan before it is locked: then make another.
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      std::string path = text_of(base, "/", prefix, "XXXXXX");
      if (::mkdtemp(path.data()) == nullptr) {
        error = errno;
        break;
      }
      lock_ = open_directory(path);
      error = errno;
      path_ = path;
      if (lock_.valid() && lock_directory(lock_) && is_still_at(path, lock_)) return;
      remove_socket_and_directory(path);
      if (!lock_.valid() && error != ENOENT) break;
    }
    tried += (tried.empty() ? "" : " and ") + base;
  }
  throw_system_error("making a private directory under " + tried, error);
}

PrivateDirectory::~PrivateDirectory() {
  if (lock_.valid()) remove_socket_and_directory(path_);
}

std::string PrivateDirectory::socket_path() const { return path_ + "/" + kSocket; }

}  // namespace symm
