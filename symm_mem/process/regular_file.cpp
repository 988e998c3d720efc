#include "symm_mem/process/regular_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "kernels/core/error.hpp"
#include "symm_mem/process/file_descriptor.hpp"
#include "symm_mem/process/system_error.hpp"

namespace symm {
namespace {

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a fifo";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "no regular file";
}

class NamedFile {
 public:
  NamedFile(const std::string& path, std::size_t most, const std::string& what)
      : path_(path), most_(most), what_(what) {}

  std::string read() const {
    // To open a device may do something.
    struct stat status {};
    if (::stat(path_.c_str(), &status) != 0) refuse_errno();
    check(status);
    const FileDescriptor file(::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
    // Another file may have taken the name meanwhile.
    if (!file.valid() || ::fstat(file.get(), &status) != 0) refuse_errno();
    check(status);
    std::string content;
    char part[64 * 1024];
    for (;;) {
      const ssize_t bytes = ::read(file.get(), part, sizeof(part));
      if (bytes < 0 && errno == EINTR) continue;
      if (bytes < 0) refuse_errno();
      if (bytes == 0) return content;
      content.append(part, static_cast<std::size_t>(bytes));
      if (content.size() > most_) refuse("one that is larger");
    }
  }

 private:
  void check(const struct stat& status) const {
    if (!S_ISREG(status.st_mode)) refuse(kind_of(status.st_mode));
    if (status.st_size > static_cast<off_t>(most_)) {
      refuse(text_of("one of ", status.st_size, " bytes"));
    }
  }
  [[noreturn]] void refuse_errno() const {
    refuse("one that cannot be read (" + describe_system_error(errno) + ")");
  }
  [[noreturn]] void refuse(const std::string& found) const {
    throw Error(ErrorCode::kInvalidArgument, what_,
                ": expected a readable regular file of at most ", most_, " bytes, got ", found,
                ": '", path_, "'");
  }

  const std::string& path_;
  const std::size_t most_;
  const std::string& what_;
};

}  // namespace

std::string read_regular_file(const std::string& path, std::size_t most, const std::string& what) {
  return NamedFile(path, most, what).read();
}

}  // namespace symm
