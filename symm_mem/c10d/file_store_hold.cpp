#include "symm_mem/c10d/file_store_hold.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "kernels/core/error.hpp"
#include "symm_mem/process/fork_guard.hpp"

namespace symm {
namespace {

// How far files, by device and inode, have been found to consist of whole entries. Use it under a
// ForkHold. Never destroyed, for threads that outlive statics.
off_t& whole_until(const struct stat& file) {
  static auto* const known = new std::map<std::pair<dev_t, ino_t>, off_t>;
  return (*known)[{file.st_dev, file.st_ino}];
}

// Where the entries that begin at `position` end; -1 where the last one is not whole. An entry is a
// key and a value, each a length and that many bytes.
off_t end_of_entries(int file, off_t position, off_t size) {
  std::vector<char> bytes(static_cast<std::size_t>(size - position));
  std::size_t filled = 0;
  while (filled < bytes.size()) {
    const ssize_t got = ::pread(file, bytes.data() + filled, bytes.size() - filled,
                                position + static_cast<off_t>(filled));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return -1;
    filled += static_cast<std::size_t>(got);
  }
  std::size_t at = 0;
  bool is_key = true;
  while (at < bytes.size()) {
    std::uint32_t length = 0;
    if (bytes.size() - at < sizeof(length)) return -1;
    std::memcpy(&length, bytes.data() + at, sizeof(length));
    at += sizeof(length);
    if (bytes.size() - at < length) return -1;
    at += length;
    is_key = !is_key;
  }
  return is_key ? size : -1;
}

c10d::FileStore* file_store_below(c10d::Store& store) {
  if (auto* const prefix = dynamic_cast<c10d::PrefixStore*>(&store)) {
    return dynamic_cast<c10d::FileStore*>(prefix->getUnderlyingNonPrefixStore().get());
  }
  return dynamic_cast<c10d::FileStore*>(&store);
}

}  // namespace

FileStoreHold::FileStoreHold(c10d::Store& store) {
  c10d::FileStore* const below = file_store_below(store);
  if (below == nullptr) return;
  const std::string& path = below->getPath();
  file_ = GuardedDescriptor::open([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); });
  if (!file_.valid()) return;  // torch's own words say why it cannot be read
  while (::flock(file_.get(), LOCK_SH) != 0 && errno == EINTR) {
  }
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) return;
  off_t known = 0;
  {
    const ForkHold hold;
    known = whole_until(status);
  }
  if (known == status.st_size) return;
  off_t end = known < status.st_size ? end_of_entries(file_.get(), known, status.st_size) : -1;
  // Another file may have got the inode of one that was removed.
  if (end < 0 && known > 0) end = end_of_entries(file_.get(), 0, status.st_size);
  if (end < 0) {
    throw Error(ErrorCode::kSystem, "the FileStore's file ", path,
                " ends inside an entry: a process was killed while it wrote; use a new file");
  }
  const ForkHold hold;
  whole_until(status) = end;
}

}  // namespace symm
